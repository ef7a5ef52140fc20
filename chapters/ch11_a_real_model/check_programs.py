"""Modules that unpack a matrix and read it: where chapter 11's passes fire, and where not."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import tvm
from tvm import relax, te, tirx

from chapters.kit.ir.tensor_ir import substitute
from chapters.kit.quantized.dequantize import int64s, kernel, weight
from chapters.kit.quantized.weight_blocks import PackedLayout
from solutions.ch03_transpose_matmul.fuse_transpose_matmul import FuseTransposeMatmul

N, K, ROWS = 48, 64, 5
FORM = PackedLayout(4, 32, True, "float16", 16)
LOWER = [
    FuseTransposeMatmul(),
    relax.transform.LegalizeOps(),
    relax.transform.AnnotateTIROpPattern(),
]
through = tvm.transform.Sequential


INPUTS = {
    "codes": FORM.shapes(N, K)[0],
    "scales": FORM.shapes(N, K)[1],
    "x": ((ROWS, K), "float32"),
    "other": ((24, K), "float32"),
    "square": ((ROWS, N), "float32"),
    "numbers": ((7,), "int32"),
}
OP = relax.op


def function(step: Callable, where: str = "one block") -> tvm.IRModule:
    """A lowered module whose function "main", of INPUTS, unpacks a matrix and does `step` with it.

    step: takes the builder, `matrix` and the inputs by name; it returns a list, which "main" returns. where: "one
    block", or "an output" if the matrix is an output of the dataflow block.
    """
    builder = relax.BlockBuilder()
    params = {
        name: relax.Var(name, relax.TensorType(*described)) for name, described in INPUTS.items()
    }
    unpack = builder.add_func(kernel(FORM, (N, K)), "dequantize")
    ty = relax.TensorType((N, K), "float32")
    call = relax.call_tir(unpack, [params["codes"], params["scales"]], ty)
    with builder.function("main", list(params.values())):
        with builder.dataflow():
            emit = builder.emit_output if where == "an output" else builder.emit
            matrix = emit(call)
            made = [builder.emit_output(one) for one in step(builder, matrix=matrix, **params)]
        builder.emit_func_output(relax.Tuple(made))
    return through(LOWER)(builder.get())


def times(x: relax.Expr, w: relax.Expr) -> relax.Expr:
    return OP.matmul(x, OP.permute_dims(w))


def row(matrix: relax.Expr, numbers: relax.Expr, axis: int = 0) -> relax.Expr:
    return OP.take(matrix, numbers, axis=axis, mode="clip")


def write(builder: relax.BlockBuilder, tensor: relax.Var) -> relax.Var:
    """Emits a kernel that adds 1 to a tensor in place."""
    one = te.placeholder(list(tensor.ty.shape), str(tensor.ty.dtype), "a")
    grown = te.compute(one.shape, lambda *i: one(*i) + tirx.const(1, one.dtype), "grown")
    func = te.create_prim_func([one, grown])
    func = tirx.PrimFunc(
        func.params[:1], substitute(func.body, {func.params[1]: func.params[0]}), attrs=func.attrs
    )
    gvar = builder.add_func(func.without_attr("global_symbol"), "grow")
    return builder.emit(OP.call_tir_inplace(gvar, [tensor], [0], tensor.ty))


def ones() -> te.Tensor:
    return te.compute((3,), lambda i: tirx.const(1, "float32"), name="ones")


def unpack(
    builder: relax.BlockBuilder,
    codes: relax.Var,
    scales: relax.Var,
    func: tirx.PrimFunc | None = None,
    name: str = "dequantize",
) -> relax.Var:
    """The matrix of the codes, by a call of its own: of `func` if it is given, under the name `name`."""
    gvar = builder.add_func(func or kernel(FORM, (N, K)), name)
    ty = relax.TensorType((N, K), "float32")
    return builder.emit(relax.call_tir(gvar, [codes, scales], ty))


def floats(builder: relax.BlockBuilder, codes: relax.Var, scales: relax.Var) -> relax.Var:
    """The matrix of the codes, by a kernel that has another name, and so another attribute: equal ones are merged."""
    func = kernel(FORM, (N, K)).with_attr("written_by_hand", True)
    return unpack(builder, codes, scales, func, "floats")


def two_matrices(builder, matrix, x, codes, scales, one_name=False, **_) -> list[relax.Expr]:
    """Two products; both matrices are unpacked before the first. Their variables may have one name."""
    second = unpack(builder, codes, scales)
    if one_name:  # as after `w = …; w = …` in TVMScript
        call = builder.lookup_binding(second)
        second = relax.DataflowVar(matrix.name, matrix.ty)
        builder.emit_normalized(relax.VarBinding(second, call))
    return [times(x, matrix), times(x, second)]


# what a function does with the matrix -> the kernels of the calls that can unpack it, in order
FIRES = {
    "a product": (lambda b, matrix, x, **_: [times(x, matrix)], ["NT_matmul"]),
    "a lookup": (lambda b, matrix, numbers, **_: [row(matrix, numbers)], ["take"]),
    "two products and a lookup": (
        lambda b, matrix, x, other, numbers, **_: [
            times(x, matrix),
            row(matrix, numbers),
            times(other, matrix),
        ],
        ["NT_matmul", "take", "NT_matmul1"],
    ),
    "a product with rows that the matrix gave": (
        lambda b, matrix, numbers, **_: [times(row(matrix, numbers), matrix)],
        ["take", "NT_matmul"],
    ),
    "a kernel without tensors before the product": (
        lambda b, matrix, x, **_: [b.emit(b.call_te(ones)), times(x, matrix)],
        ["NT_matmul"],
    ),
    "two matrices": (two_matrices, ["NT_matmul", "NT_matmul"]),
    "two matrices whose variables have one name": (
        partial(two_matrices, one_name=True),
        ["NT_matmul", "NT_matmul"],
    ),
    "a matrix from a kernel of another name": (
        lambda b, x, codes, scales, **_: [times(x, floats(b, codes, scales))],
        ["NT_matmul"],
    ),
    "a vector": (lambda b, matrix, x, **_: [times(OP.max(x, axis=0), matrix)], ["NT_matmul"]),
    "a write before the matrix is unpacked again": (
        lambda b, matrix, x, codes, scales, **_: [times(x, unpack(b, write(b, codes), scales))],
        ["NT_matmul"],
    ),
    "a write behind the product": (
        lambda b, matrix, x, codes, **_: [b.emit(times(x, matrix)), write(b, codes)],
        ["NT_matmul"],
    ),
}


# --- where they must not fire ---------------------------------------------------------------------


def twice() -> tirx.PrimFunc:
    """A kernel that looks like `dequantize`, whose weights are twice as large."""
    codes, scales = (te.placeholder(int64s(shape), dtype) for shape, dtype in FORM.shapes(N, K))
    out = te.compute(int64s((N, K)), lambda j, k: weight(FORM, codes, scales, j, k) * 2.0)
    return te.create_prim_func([codes, scales, out], "int64").without_attr("global_symbol")


def between(name: str) -> Callable:
    """A product, with a write into one of the inputs between it and the unpacking."""

    def step(builder, matrix, x, **inputs):
        written = write(builder, {"x": x, **inputs}[name])
        return [times(x, matrix), written]

    return step


def product_named_nt_matmul(element: Callable) -> Callable:
    """A step that multiplies by a kernel under the name NT_matmul, whose sums are sum(element(x, w, i, j, k))."""

    def compute(w, x):
        k = te.reduce_axis((0, K), name="k")
        return te.compute(
            (ROWS, N), lambda i, j: te.sum(element(x, w, i, j, k), axis=k), name="NT_matmul"
        )

    def step(builder, matrix, x, **_):
        return [builder.call_te(compute, matrix, x, primfunc_name_hint="NT_matmul")]

    return step


def lookup(element: Callable) -> Callable:
    """A step whose kernel's element (i, k) is element(matrix, numbers, i, k), under the name take."""

    def compute(matrix, numbers):
        return te.compute((7, K), lambda i, k: element(matrix, numbers, i, k), name="T_take")

    def step(builder, matrix, numbers, **_):
        return [builder.call_te(compute, matrix, numbers, primfunc_name_hint="take")]

    return step


def clipped(numbers, i):
    return te.max(te.min(numbers[i], N - 1), 0)


def called_between(builder, matrix, x, scales, **_) -> list[relax.Expr]:
    """A product, with a call between it and the unpacking, of a Relax function that writes to the scales."""
    inner, tensor = relax.BlockBuilder(), relax.Var("tensor", scales.ty)
    with inner.function("grow", [tensor], private=True):
        call = OP.call_inplace_packed(
            "course.grow_scales", tensor, inplace_indices=0, ty_args=tensor.ty
        )
        inner.emit_func_output(inner.emit(call))
    written = builder.emit(builder.add_func(inner.get()["grow"], "grow_scales")(scales))
    return [times(x, matrix), written]


def second_names(builder, matrix, x, codes, scales, **_) -> list[relax.Expr]:
    """Products with two matrices. The second name of one is added up, and the second name of the other multiplied."""
    other = unpack(builder, codes, scales)
    added, multiplied = builder.emit(matrix), builder.emit(other)
    return [times(x, matrix), OP.sum(added), times(x, multiplied), OP.sum(other)]


KEPT = {
    "the kernel only looks like dequantize": lambda b, x, codes, scales, **_: [
        times(x, unpack(b, codes, scales, twice()))
    ],
    "a function that is called in between writes": called_between,
    "the matrix is also returned": lambda b, matrix, x, **_: [times(x, matrix), matrix],
    "another operator reads the matrix too": lambda b, matrix, x, **_: [
        times(x, matrix),
        OP.negative(matrix),
    ],
    "the matrix is also read under another name": second_names,
    "the product does not transpose the matrix": lambda b, matrix, square, **_: [
        OP.matmul(square, matrix)
    ],
    "a second product does not transpose the matrix": lambda b, matrix, x, square, **_: [
        times(x, matrix),
        OP.matmul(square, matrix),
    ],
    "the matrix is the left factor": lambda b, matrix, other, **_: [times(matrix, other)],
    "the matrix is both factors": lambda b, matrix, **_: [times(matrix, matrix)],
    "columns of the matrix are copied": lambda b, matrix, numbers, **_: [
        row(matrix, numbers, axis=1)
    ],
    "the codes are written in between": between("codes"),
    "the scales are written in between": between("scales"),
    "another tensor is written in between": between("other"),
    "a write stands between two products": lambda b, matrix, x, codes, **_: [
        b.emit(times(x, matrix)),
        *between("codes")(b, matrix, x, codes=codes),
    ],
    "squares of the weights are added up": product_named_nt_matmul(
        lambda x, w, i, j, k: x[i, k] * w[j, k] * w[j, k]
    ),
    "the product reads each row backwards": product_named_nt_matmul(
        lambda x, w, i, j, k: x[i, k] * w[j, K - 1 - k]
    ),
    "the lookup adds the first row": lookup(
        lambda m, numbers, i, k: m[clipped(numbers, i), k] + m[0, k]
    ),
    "each row is multiplied by its number": lookup(
        lambda m, numbers, i, k: m[i, k] * numbers[i].astype("float32")
    ),
}
