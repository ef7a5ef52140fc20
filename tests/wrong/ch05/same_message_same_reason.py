"""Takes the same message for the same reason."""

from solutions.ch05_schedules_and_their_limits.schedules import *

EXERCISE = "5.6"
WHAT = "the same reason for the second attempt and the third"
WHY = (
    "The message names two conditions: a single producer, and that this one is complete. Before the "
    "decomposition the bias has one producer, afterwards two."
)
READ = "chapters/ch05_schedules_and_their_limits/lesson.md, “Three attempts”"


def reasons() -> dict[str, str]:
    return {
        "inline the product": REASONS[0],
        "inline the bias": REASONS[1],
        "decompose, then inline": REASONS[1],
    }
