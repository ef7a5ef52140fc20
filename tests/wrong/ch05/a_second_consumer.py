"""Blames a second consumer."""

from solutions.ch05_schedules_and_their_limits.schedules import *

EXERCISE = "5.6"
WHAT = "a second consumer blamed for the refusal"
WHY = (
    "Nobody but `bias` reads temp. The sentence lists all conditions; the one that fails is the complete "
    "block."
)
READ = "chapters/ch05_schedules_and_their_limits/lesson.md, “Three attempts”"


def reasons() -> dict[str, str]:
    return {
        "inline the product": REASONS[0],
        "inline the bias": REASONS[4],
        "decompose, then inline": REASONS[2],
    }
