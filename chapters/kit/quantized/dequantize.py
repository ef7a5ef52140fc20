"""The kernel that unpacks a matrix of codes into floats, and how to recognize it.

Models contain it; a compiled program should not: its result is the float copy that 4-bit weights are there to avoid.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import te, tirx
from tvm.ir import Expr
from tvm_ffi import structural_equal

from chapters.kit.quantized.weight_blocks import PackedLayout

NAME = "dequantize"


def weight(form: PackedLayout, codes, scales, j: Expr, k: Expr) -> Expr:
    """Element (j, k) of the matrix in float32."""
    panel, lane, group, step = j // form.lanes, j % form.lanes, k // form.group, k % form.group
    # steps per group whose codes lie in the low bits of their byte
    half = form.group * form.bits // 8
    word, shift = step % half // 4, step % 4 * 8 + step // half * 4
    code = (codes[panel, group, word, lane] >> shift.astype("int32")) & ((1 << form.bits) - 1)
    scale = scales[panel, group, 0, lane].astype("float32")
    if form.has_minimum:
        return scale * code.astype("float32") + scales[panel, group, 1, lane].astype("float32")
    return scale * (code - form.zero).astype("float32")


def dequantize(
    form: PackedLayout, shape: Sequence, codes: te.Tensor, scales: te.Tensor
) -> te.Tensor:
    """The TE compute of the matrix (n, k) = `shape` in float32."""
    return te.compute(shape, lambda j, k: weight(form, codes, scales, j, k), name=NAME)


def kernel(form: PackedLayout, shape: tuple[int, int]) -> tirx.PrimFunc:
    """`dequantize` as a PrimFunc (codes, scales, result)."""
    arrays = [
        te.placeholder(int64s(extents), dtype, name)
        for (extents, dtype), name in zip(form.shapes(*shape), ("codes", "scales"), strict=True)
    ]
    func = te.create_prim_func([*arrays, dequantize(form, int64s(shape), *arrays)])
    return func.without_attr("global_symbol")


def int64(value: Expr | int) -> Expr:
    """A number as an int64 constant, like the extents of Relax tensors; an expression stays as it is."""
    return tirx.IntImm("int64", value) if isinstance(value, int) else value


def int64s(values: Sequence[Expr | int]) -> list[Expr]:
    """`int64` of each value: the extents of a shape, or a loop's first iteration and their number."""
    return [int64(value) for value in values]


def match_dequantize(func: tirx.PrimFunc) -> PackedLayout | None:
    """The form that `func` unpacks; None if it is another kernel than `kernel(form, shape)`, whatever its name."""
    if len(func.params) != 3 or not all(tirx.is_buffer_var(param) for param in func.params):
        return None
    shapes = [
        [int(n) if isinstance(n, tirx.IntImm) else 0 for n in param.shape] for param in func.params
    ]
    if [len(shape) for shape in shapes] != [4, 4, 2] or not all(map(all, shapes)):
        return None
    (_, groups, words, lanes), (_, _, kinds, _), (n, k) = shapes
    if k % groups or words * 32 % (k // groups):
        return None
    form = PackedLayout(
        bits=words * 32 // (k // groups),
        group=k // groups,
        has_minimum=kinds == 2,
        scale=str(func.params[1].dtype),
        lanes=lanes,
    )
    if form.bits not in (4, 8) or form.group * form.bits % 32 or n % lanes:
        return None
    found = tirx.PrimFunc(func.params, func.body)
    template = kernel(form, (n, k))
    return form if structural_equal(found, tirx.PrimFunc(template.params, template.body)) else None
