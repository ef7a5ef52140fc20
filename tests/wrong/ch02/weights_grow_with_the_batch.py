"""2.9: the largest buffer is thought to double with the batch."""

from solutions.ch02_attach_metadata.attach_support_info import *

EXERCISE = "2.9"
WHAT = "the transposed weight is taken to grow with the batch"
WHY = (
    "Every sequence of the batch is multiplied by the same weight; its transposed copy has the "
    "size of the weight, whatever the batch."
)
READ = "chapters/ch02_attach_metadata/lesson.md, “Measure it”"


def predicted_storage():
    return {
        "largest": 128 * 2 * 352 * 4,
        "largest_at_batch_16": 2 * 128 * 2 * 352 * 4,
        "symbolic": 1,
    }
