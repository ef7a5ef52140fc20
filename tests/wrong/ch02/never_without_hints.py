"""2.8: a static function is thought to need hints."""

from solutions.ch02_attach_metadata.attach_support_info import *

EXERCISE = "2.8"
WHAT = "a function of static shape is thought to need a hint and a bound"
WHY = (
    "Hints and bounds are about symbolic dimensions. Where there is none, storage and sizes are "
    "the same in every call already."
)
READ = "chapters/ch02_attach_metadata/lesson.md, “See it”"


def is_captured(dims, hints, bounds, use_cuda_graph):
    return bool(use_cuda_graph and dims and dims <= hints and dims <= bounds)
