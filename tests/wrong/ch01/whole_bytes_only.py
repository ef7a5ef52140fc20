"""1.2: divides bits by eight before multiplying."""

from solutions.ch01_walk_the_ir.walk_the_ir import *

EXERCISE = "1.2"
WHAT = "an element is taken to be at least a whole number of bytes"
WHY = (
    "Four-bit weights are packed two to a byte. Count the bits of the whole tensor first, then "
    "round up to bytes once."
)
READ = "chapters/ch01_walk_the_ir/lesson.md, “What a call moves”"


def type_bytes(ty, sizes):
    if isinstance(ty, relax.TupleType):
        return sum(type_bytes(field, sizes) for field in ty.fields)
    if not isinstance(ty, relax.TensorType):
        return 0
    return ty.dtype.dtype.bits // 8 * math.prod(extents(ty, sizes))
