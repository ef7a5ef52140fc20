"""2.9: the attention scores are thought to be the largest."""

from solutions.ch02_attach_metadata.attach_support_info import *

EXERCISE = "2.9"
WHAT = "the largest buffer is taken to be an activation"
WHY = (
    "8 × 12 heads × 64 positions × 4 bytes is the largest activation. But nn.Linear transposes "
    "its weight in every call, into a temporary of the weight's size."
)
READ = "chapters/ch02_attach_metadata/lesson.md, “Measure it”"


def predicted_storage():
    return {"largest": 8 * 12 * 64 * 4, "largest_at_batch_16": 16 * 12 * 64 * 4, "symbolic": 1}
