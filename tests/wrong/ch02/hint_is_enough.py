"""2.8: the bounds are not asked for."""

from solutions.ch02_attach_metadata.attach_support_info import *

EXERCISE = "2.8"
WHAT = "a hint alone is taken to be enough"
WHY = (
    "Without a bound the storage is allocated anew in every call, in the size of that call. A "
    "graph remembers addresses; on the next replay they would be somebody else's."
)
READ = "chapters/ch02_attach_metadata/lesson.md, “See it”"


def is_captured(dims, hints, bounds, use_cuda_graph):
    return use_cuda_graph and dims <= hints
