"""Blames the output."""

from solutions.ch05_schedules_and_their_limits.schedules import *

EXERCISE = "5.6"
WHAT = "an output block blamed for the refusal"
WHY = (
    "`bias` writes the output, and reverse_compute_inline is made for such consumers. What fails is what "
    "it knows of the producer."
)
READ = "chapters/ch05_schedules_and_their_limits/lesson.md, “Three attempts”"


def reasons() -> dict[str, str]:
    return {
        "inline the product": REASONS[0],
        "inline the bias": REASONS[3],
        "decompose, then inline": REASONS[2],
    }
