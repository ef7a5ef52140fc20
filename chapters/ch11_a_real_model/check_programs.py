"""Modules that unpack a matrix and read it: where chapter 11's passes fire, where not, and the numbers in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import numpy as np
import tvm
from tvm import relax, te, tirx
from tvm_ffi import structural_equal

from chapters.ch11_a_real_model.given import kernel_calls
from chapters.kit.cases.guard_zones import QUICK_HERE
from chapters.kit.ir.tensor_ir import substitute
from chapters.kit.quantized.blocks import Codes, Form, pack
from chapters.kit.quantized.dequantize import kernel, weight
from solutions.ch03_transpose_matmul.fuse_transpose_matmul import FuseTransposeMatmul

N, K, ROWS = 48, 64, 5
FORM = Form(4, 32, True, "float16", 16)
LOWER = [
    FuseTransposeMatmul(),
    relax.transform.LegalizeOps(),
    relax.transform.AnnotateTIROpPattern(),
]
through = tvm.transform.Sequential


def random_codes(form: Form = FORM, n: int = N, k: int = K, seed: int = 0) -> Codes:
    random = np.random.default_rng(seed)
    scales = random.uniform(0.5, 1.5, (1 + form.has_minimum, n, k // form.group)).astype(form.scale)
    codes = random.integers(0, 1 << form.bits, (n, k), "u1")
    return Codes(form.bits, codes, scales[0], scales[1] if form.has_minimum else None)


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype("float32")


def close(found: np.ndarray, exact: np.ndarray) -> None:
    """Equal within 1e-5 of the largest number: sums of 64 products in float32."""
    np.testing.assert_allclose(found, exact, rtol=0, atol=1e-5 * np.abs(exact).max(), strict=False)
    assert found.shape == exact.shape


def float_copies(mod: tvm.IRModule, shape: tuple = (N, K), name: str = "main") -> int:
    """How many tensors of the shape of the float matrix a function computes."""
    found = [call.ty_args[0] for call in kernel_calls(mod[name])]
    return sum(
        isinstance(ty, relax.TensorType) and structural_equal(list(ty.shape), _long(shape))
        for ty in found
    )


def _long(shape) -> list:
    return [tirx.IntImm("int64", one) for one in shape]


def run(mod: tvm.IRModule, *arrays, name: str = "main"):
    """The result of a function on NumPy arrays, as NumPy arrays. A list stands for a tuple of arrays."""
    vm = relax.VirtualMachine(tvm.compile(mod, QUICK_HERE), tvm.cpu())

    def tensors(one):
        return [tensors(a) for a in one] if isinstance(one, list) else tvm.runtime.tensor(one)

    found = vm[name](*map(tensors, arrays))
    return found.numpy() if hasattr(found, "numpy") else [one.numpy() for one in found]


INPUTS = {
    "codes": FORM.shapes(N, K)[0],
    "scales": FORM.shapes(N, K)[1],
    "x": ((ROWS, K), "float32"),
    "other": ((24, K), "float32"),
    "square": ((ROWS, N), "float32"),
    "numbers": ((7,), "int32"),
    "bias": ((N,), "float32"),
    "residual": ((ROWS, N), "float32"),
}
OP = relax.op


def function(step: Callable, where: str = "one block", form: Form = FORM) -> tvm.IRModule:
    """A lowered module whose function "main", of INPUTS, unpacks a matrix and does `step` with it.

    step: takes the builder, `matrix` and the inputs by name; it returns a list, which "main" returns. where: "one
    block"; "an output" if the matrix is an output of the dataflow block; or "no block".
    """
    builder = relax.BlockBuilder()
    block = nullcontext if where == "no block" else builder.dataflow
    params = {
        name: relax.Var(name, relax.TensorType(*described)) for name, described in INPUTS.items()
    }
    unpack = builder.add_func(kernel(form, (N, K)), "dequantize")
    ty = relax.TensorType((N, K), "float32")
    call = relax.call_tir(unpack, [params["codes"], params["scales"]], ty)
    with builder.function("main", list(params.values())):
        with block():
            emit = builder.emit_output if where == "an output" else builder.emit
            matrix = emit(call)
            made = step(builder, matrix=matrix, **params)
            emit = builder.emit if where == "no block" else builder.emit_output
            made = [emit(one) for one in made]
        builder.emit_func_output(relax.Tuple(made))
    return through(LOWER)(builder.get())


class Inputs:
    """Random arrays for INPUTS, and the matrix in float64."""

    def __init__(self, form: Form = FORM):
        codes = random_codes(form)
        self.matrix = codes.floats().astype("float64")
        self.codes, self.scales = pack(codes, form)
        self.numbers = np.array([3, 0, 47, -5, 99, 3, 16], "int32")
        for name in ("x", "other", "square", "bias", "residual"):
            setattr(self, name, normal(*INPUTS[name][0]))

    def __getitem__(self, name: str) -> np.ndarray:
        return getattr(self, name)

    def run(self, mod: tvm.IRModule) -> list[np.ndarray]:
        return run(mod, *(self[name] for name in INPUTS))


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


# what a function does with the matrix -> its results in NumPy, from `Inputs`
FIRES = {
    "a product": (
        lambda b, matrix, x, **_: [times(x, matrix)],
        lambda i: [i.x @ i.matrix.T],
    ),
    "a lookup": (
        lambda b, matrix, numbers, **_: [row(matrix, numbers)],
        lambda i: [i.matrix[np.clip(i.numbers, 0, N - 1)]],
    ),
    "two products and a lookup": (
        lambda b, matrix, x, other, numbers, **_: [
            times(x, matrix),
            row(matrix, numbers),
            times(other, matrix),
        ],
        lambda i: [i.x @ i.matrix.T, i.matrix[np.clip(i.numbers, 0, N - 1)], i.other @ i.matrix.T],
    ),
    "a product with rows that the matrix gave": (
        lambda b, matrix, numbers, **_: [times(row(matrix, numbers), matrix)],
        lambda i: [i.matrix[np.clip(i.numbers, 0, N - 1)] @ i.matrix.T],
    ),
    "a kernel without tensors before the product": (
        lambda b, matrix, x, **_: [b.emit(b.call_te(ones)), times(x, matrix)],
        lambda i: [np.ones(3), i.x @ i.matrix.T],
    ),
    "two matrices": (
        lambda b, matrix, x, codes, scales, **_: two_matrices(b, matrix, x, codes, scales),
        lambda i: [i.x @ i.matrix.T, i.x @ i.matrix.T],
    ),
    "two matrices whose variables have one name": (
        lambda b, matrix, x, codes, scales, **_: two_matrices(b, matrix, x, codes, scales, True),
        lambda i: [i.x @ i.matrix.T, i.x @ i.matrix.T],
    ),
    "a matrix from a kernel of another name": (
        lambda b, x, codes, scales, **_: [times(x, floats(b, codes, scales))],
        lambda i: [i.x @ i.matrix.T],
    ),
    "a vector": (
        lambda b, matrix, x, **_: [times(OP.max(x, axis=0), matrix)],
        lambda i: [i.x.max(axis=0) @ i.matrix.T],
    ),
    "a write before the matrix is unpacked again": (
        lambda b, matrix, x, codes, scales, **_: [times(x, again(b, codes, scales))],
        lambda i: [i.x @ moved_on(i).T],
    ),
    "a write behind the product": (
        lambda b, matrix, x, codes, **_: [b.emit(times(x, matrix)), write(b, codes)],
        lambda i: [i.x @ i.matrix.T, i.codes + 1],
    ),
}


def ones() -> te.Tensor:
    return te.compute((3,), lambda i: tirx.const(1, "float32"), name="ones")


# the kernels of the calls that read the matrix, in order
READERS = {
    "a product": ["NT_matmul"],
    "a lookup": ["take"],
    "two products and a lookup": ["NT_matmul", "take", "NT_matmul1"],
    "a product with rows that the matrix gave": ["take", "NT_matmul"],
    "a kernel without tensors before the product": ["NT_matmul"],
    "two matrices": ["NT_matmul", "NT_matmul"],
    "two matrices whose variables have one name": ["NT_matmul", "NT_matmul"],
    "a matrix from a kernel of another name": ["NT_matmul"],
    "a vector": ["NT_matmul"],
    "a write before the matrix is unpacked again": ["NT_matmul"],
    "a write behind the product": ["NT_matmul"],
}


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


def two_matrices(builder, matrix, x, codes, scales, one_name=False) -> list[relax.Expr]:
    """Two products; both matrices are unpacked before the first. Their variables may have one name."""
    second = unpack(builder, codes, scales)
    if one_name:  # as after `w = …; w = …` in TVMScript
        call = builder.lookup_binding(second)
        second = relax.DataflowVar(matrix.name, matrix.ty)
        builder.emit_normalized(relax.VarBinding(second, call))
    return [times(x, matrix), times(x, second)]


def twice() -> tirx.PrimFunc:
    """A kernel that looks like `dequantize`, whose weights are twice as large."""
    codes, scales = (te.placeholder(_long(shape), dtype) for shape, dtype in FORM.shapes(N, K))
    out = te.compute(_long((N, K)), lambda j, k: weight(FORM, codes, scales, j, k) * 2.0)
    return te.create_prim_func([codes, scales, out], "int64").without_attr("global_symbol")


def again(builder: relax.BlockBuilder, codes: relax.Var, scales: relax.Var) -> relax.Var:
    """The matrix of the codes after a write into them."""
    return unpack(builder, write(builder, codes), scales)


def moved_on(inputs: Inputs) -> np.ndarray:
    """The matrix after 1 was added to each word of codes: the first code of each word is one larger."""
    codes = random_codes()
    words = pack(codes, FORM)[0] + 1
    back = words.transpose(0, 3, 1, 2).copy().view("u1").reshape(N, K // 32, 16)
    codes = np.concatenate([back & 15, back >> 4], axis=-1).reshape(N, K)
    return Codes(4, codes, random_codes().scales, random_codes().minima).floats().astype("float64")


# --- where they must not fire ---------------------------------------------------------------------


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


@tvm.register_global_func("course.grow_scales", override=True)
def grow_scales(scales: tvm.runtime.Tensor) -> tvm.runtime.Tensor:
    """Adds 1 to a float16 tensor in place."""
    scales.copyfrom(scales.numpy() + np.float16(1))
    return scales


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
    "the kernel only looks like dequantize": (
        lambda b, x, codes, scales, **_: [times(x, unpack(b, codes, scales, twice()))],
        lambda i: [2 * i.x @ i.matrix.T],
    ),
    "a function that is called in between writes": (
        called_between,
        lambda i: [i.x @ i.matrix.T, i.scales + np.float16(1)],
    ),
    "the matrix is also returned": (
        lambda b, matrix, x, **_: [times(x, matrix), matrix],
        lambda i: [i.x @ i.matrix.T, i.matrix],
    ),
    "another operator reads the matrix too": (
        lambda b, matrix, x, **_: [times(x, matrix), OP.negative(matrix)],
        lambda i: [i.x @ i.matrix.T, -i.matrix],
    ),
    "the matrix is also read under another name": (
        second_names,
        lambda i: [i.x @ i.matrix.T, i.matrix.sum()] * 2,
    ),
    "the product does not transpose the matrix": (
        lambda b, matrix, square, **_: [OP.matmul(square, matrix)],
        lambda i: [i.square @ i.matrix],
    ),
    "a second product does not transpose the matrix": (
        lambda b, matrix, x, square, **_: [times(x, matrix), OP.matmul(square, matrix)],
        lambda i: [i.x @ i.matrix.T, i.square @ i.matrix],
    ),
    "the matrix is the left factor": (
        lambda b, matrix, other, **_: [times(matrix, other)],
        lambda i: [i.matrix @ i.other.T],
    ),
    "the matrix is both factors": (
        lambda b, matrix, **_: [times(matrix, matrix)],
        lambda i: [i.matrix @ i.matrix.T],
    ),
    "columns of the matrix are copied": (
        lambda b, matrix, numbers, **_: [row(matrix, numbers, axis=1)],
        lambda i: [i.matrix[:, np.clip(i.numbers, 0, K - 1)]],
    ),
    "the codes are written in between": (
        between("codes"),
        lambda i: [i.x @ i.matrix.T, i.codes + 1],
    ),
    "the scales are written in between": (
        between("scales"),
        lambda i: [i.x @ i.matrix.T, i.scales + np.float16(1)],
    ),
    "another tensor is written in between": (
        between("other"),
        lambda i: [i.x @ i.matrix.T, i.other + 1],
    ),
    "a write stands between two products": (
        lambda b, matrix, x, codes, **_: [
            b.emit(times(x, matrix)),
            *between("codes")(b, matrix, x, codes=codes),
        ],
        lambda i: [i.x @ i.matrix.T, i.x @ i.matrix.T, i.codes + 1],
    ),
    "squares of the weights are added up": (
        product_named_nt_matmul(lambda x, w, i, j, k: x[i, k] * w[j, k] * w[j, k]),
        lambda i: [i.x @ (i.matrix**2).T],
    ),
    "the product reads each row backwards": (
        product_named_nt_matmul(lambda x, w, i, j, k: x[i, k] * w[j, K - 1 - k]),
        lambda i: [i.x @ i.matrix[:, ::-1].T],
    ),
    "the lookup adds the first row": (
        lookup(lambda m, numbers, i, k: m[clipped(numbers, i), k] + m[0, k]),
        lambda i: [i.matrix[np.clip(i.numbers, 0, N - 1)] + i.matrix[0]],
    ),
    "each row is multiplied by its number": (
        lookup(lambda m, numbers, i, k: m[i, k] * numbers[i].astype("float32")),
        lambda i: [i.matrix[:7] * i.numbers[:, None]],
    ),
}
