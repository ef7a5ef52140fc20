"""2.9: no size is thought to stay symbolic."""

from solutions.ch02_attach_metadata.attach_support_info import *

EXERCISE = "2.9"
WHAT = "no storage is taken to stay symbolic"
WHY = (
    "batch_size and context_window are bounded, vocab_size is not: the transposed weight of "
    "lm_head keeps a symbolic size."
)
READ = "chapters/ch02_attach_metadata/lesson.md, “Measure it”"


def predicted_storage():
    return {"largest": 128 * 2 * 352 * 4, "largest_at_batch_16": 128 * 2 * 352 * 4, "symbolic": 0}
