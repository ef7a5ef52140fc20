"""2.8: the hints are not asked for."""

from solutions.ch02_attach_metadata.attach_support_info import *

EXERCISE = "2.8"
WHAT = "a bound alone is taken to be enough"
WHY = (
    "A bound makes the storage static, but a kernel on n rows is launched with n in its "
    "arguments. The pass captures such a kernel only where a hint allows one graph for each n."
)
READ = "chapters/ch02_attach_metadata/lesson.md, “See it”"


def is_captured(dims, hints, bounds, use_cuda_graph):
    return use_cuda_graph and dims <= bounds
