"""2.8: it is not asked which dimension is hinted and bounded."""

from solutions.ch02_attach_metadata.attach_support_info import *

EXERCISE = "2.8"
WHAT = "any hint and any bound are taken to be enough"
WHY = (
    "A hint for batch_size says nothing about context_window. Every symbolic dimension of the "
    "kernel's tensors needs its own."
)
READ = "chapters/ch02_attach_metadata/lesson.md, “See it”"


def is_captured(dims, hints, bounds, use_cuda_graph):
    return bool(use_cuda_graph and hints and bounds)
