"""The passes that move the unpacking of a matrix into its readers: where they fire, where not, and right numbers.

References are NumPy in float64. The codes are random, and so are the scales, float16 numbers near 1.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import numpy as np
import pytest
import tvm
from tvm import relax, te, tirx
from tvm.relax.frontend import nn
from tvm_ffi import structural_equal

from chapters.kit.ir.relax_effects import calls_in
from chapters.kit.ir.tensor_ir import substitute
from chapters.kit.quantized.blocks import Codes, Form, pack
from chapters.kit.quantized.dequantize import form_of, kernel, weight
from chapters.kit.quantized.fuse_dequantize import FuseDequantizeMatmul, FuseDequantizeTake
from chapters.kit.quantized.layers import (
    CodedMatrix,
    FloatMatrix,
    Matrix,
    MatrixEmbedding,
    MatrixLinear,
    TiedHead,
)
from chapters.kit.quantized.schedule_coded_products import ScheduleCodedProducts
from solutions.ch03_transpose_matmul.fuse_transpose_matmul import FuseTransposeMatmul
from tests.support.targets import QUICK_HERE

N, K, ROWS = 48, 64, 5
FORM = Form(4, 32, True, "float16", 16)
FORMS = [
    FORM,
    Form(4, 32, False, "float16", 8),
    Form(8, 32, False, "float16", 4),
    Form(8, 16, False, "float32", 1),
]
LOWER = [
    FuseTransposeMatmul(),
    relax.transform.LegalizeOps(),
    relax.transform.AnnotateTIROpPattern(),
]
FUSE = [FuseDequantizeTake(), FuseDequantizeMatmul()]
BEHIND = [
    relax.transform.FuseOps(),
    relax.transform.FuseTIR(),
    relax.transform.DeadCodeElimination(),
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


# --- which kernels unpack a matrix ----------------------------------------------------------------


@pytest.mark.parametrize("name", ["dequantize", "another"])
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_kernel_that_unpacks_is_recognized(form, name):
    func = kernel(form, (N, K))
    assert form_of(func) == form
    assert form_of(func.with_attr("global_symbol", name).with_attr("op_pattern", 2)) == form


def test_the_smallest_matrix_is_recognized():
    form = Form(8, 4, False, "float16", 1)
    assert form_of(kernel(form, (1, 4))) == form


def unpacks(element: Callable, form: Form = FORM, dtypes=("int32", None, "float32"), shape=(N, K)):
    """The kernel whose element (j, k) is element(codes, scales, j, k), under the name that `kernel` gives it."""
    dtypes = (dtypes[0], dtypes[1] or form.scale, dtypes[2])
    arrays = [
        te.placeholder([tirx.IntImm("int64", one) for one in extents], dtype, name)
        for (extents, _), dtype, name in zip(
            form.shapes(N, K), dtypes, ("codes", "scales"), strict=False
        )
    ]
    extents = [tirx.IntImm("int64", one) for one in shape]
    out = te.compute(extents, lambda j, k: element(*arrays, j, k), name="dequantize")
    return te.create_prim_func([*arrays, out]).without_attr("global_symbol")


def changed(
    form: Form = FORM,
    *,
    panel=lambda j, k: j // 16,
    lane=lambda j, k: j % 16,
    group=lambda j, k: k // 32,
    word=lambda k: k % 16 // 4,
    shift=lambda k: k % 4 * 8 + k % 32 // 16 * 4,
    mask=15,
    zero=8,
    combine=lambda scale, code, minimum: scale * code.astype("float32") + minimum,
    of_scale=lambda at: at,
    kinds=(0, 1),
) -> tirx.PrimFunc:
    """The kernel of a form of 4 bits, written out, with one of its parts replaced."""

    def element(codes, scales, j, k):
        at = panel(j, k), group(j, k)
        code = codes[(*at, word(k), lane(j, k))] >> shift(k).astype("int32") & mask
        numbers = [
            scales[(*of_scale(at), kind, lane(j, k))].astype("float32")
            for kind in kinds[: 1 + form.has_minimum]
        ]
        if form.has_minimum:
            return combine(numbers[0], code, numbers[1])
        return numbers[0] * (code - zero).astype("float32")

    return unpacks(element, form)


WITHOUT = Form(4, 32, False, "float16", 16)
CHANGED = {
    "the nibbles swapped": changed(shift=lambda k: k % 4 * 8 + (1 - k % 32 // 16) * 4),
    "neighbouring nibbles": changed(
        word=lambda k: k % 32 // 8, shift=lambda k: k % 8 // 2 * 8 + k % 2 * 4
    ),
    "bytes from the top": changed(shift=lambda k: (3 - k % 4) * 8 + k % 32 // 16 * 4),
    "five bits": changed(mask=31),
    "the minimum forgotten": changed(combine=lambda s, c, m: s * c.astype("float32")),
    "the minimum subtracted": changed(combine=lambda s, c, m: s * c.astype("float32") - m),
    "the minimum scaled": changed(combine=lambda s, c, m: s * (c.astype("float32") + m)),
    "a zero besides the minimum": changed(
        combine=lambda s, c, m: s * (c - 8).astype("float32") + m
    ),
    "scale and minimum exchanged": changed(kinds=(1, 0)),
    "the scale as minimum": changed(kinds=(0, 0)),
    "a zero of 7": changed(WITHOUT, zero=7),
    "a zero of 9": changed(WITHOUT, zero=9),
    "no zero": changed(WITHOUT, zero=0),
    "lanes backwards": changed(lane=lambda j, k: 15 - j % 16),
    "lanes far apart": changed(panel=lambda j, k: j % 3, lane=lambda j, k: j // 3),
    "the next group": changed(group=lambda j, k: (k // 32 + 1) % 2),
    "the scale of the next group": changed(of_scale=lambda at: (at[0], (at[1] + 1) % 2)),
    "the scale of the first group": changed(of_scale=lambda at: (at[0], at[1] * 0)),
    "the scale of the first panel": changed(of_scale=lambda at: (at[0] * 0, at[1])),
    "float64": unpacks(
        lambda c, s, j, k: weight(FORM, c, s, j, k).astype("float64"),
        dtypes=("int32", None, "float64"),
    ),
    "float16": unpacks(lambda c, s, j, k: weight(FORM, c, s, j, k).astype("float16")),
    "unsigned words": unpacks(
        lambda c, s, j, k: weight(FORM, c, s, j, k), dtypes=("uint32", None, "float32")
    ),
    "half of the rows": unpacks(lambda c, s, j, k: weight(FORM, c, s, j, k), shape=(N // 2, K)),
    "half of the steps": unpacks(lambda c, s, j, k: weight(FORM, c, s, j, k), shape=(N, K // 2)),
    "transposed": unpacks(lambda c, s, j, k: weight(FORM, c, s, k, j), shape=(K, N)),
}


def test_the_kernel_written_out_is_recognized():
    """So the changes below are the reason why the others are not."""
    assert form_of(changed()) == FORM
    assert form_of(changed(WITHOUT)) == WITHOUT


@pytest.mark.parametrize("name", CHANGED)
def test_a_changed_kernel_is_not_recognized(name):
    assert form_of(CHANGED[name]) is None


def test_other_kernels_are_not_recognized():
    codes, scales = (te.placeholder(s, d) for s, d in FORM.shapes(N, K))
    sums = te.compute((N, K), lambda j, k: weight(FORM, codes, scales, j, k) * 2.0)
    n = te.placeholder((tirx.Var("n", "int64"), K))
    for tensors in (
        [codes, scales, sums],
        [n, te.compute(n.shape, lambda *i: n(*i) + 1.0)],
        [n, n, te.compute(n.shape, lambda *i: n(*i) + 1.0)],
    ):
        assert form_of(te.create_prim_func(tensors)) is None
    scalar = tirx.Var("a", "int64")
    func = kernel(FORM, (N, K))
    assert form_of(tirx.PrimFunc([*func.params, scalar], func.body)) is None
    assert form_of(tirx.PrimFunc([*func.params[:2], scalar], func.body)) is None
    assert form_of(tirx.PrimFunc(func.params, tirx.Evaluate(0))) is None


# --- where the passes fire ------------------------------------------------------------------------


def kernels_of(mod: tvm.IRModule, name: str = "main") -> list[str]:
    """The names of the kernels that a function calls, in order."""
    calls = [call for call in calls_in(mod[name]) if call.op.name == "relax.call_tir"]
    return [call.args[0].name_hint for call in calls]


def float_copies(mod: tvm.IRModule, shape: tuple = (N, K), name: str = "main") -> int:
    """How many tensors of the shape of the float matrix a function computes."""
    found = [call.ty_args[0] for call in calls_in(mod[name]) if call.op.name == "relax.call_tir"]
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


def fuse_once_and_again(mod: tvm.IRModule) -> tvm.IRModule:
    """`mod` after both passes. They leave `mod` itself alone, and a second time they change nothing."""
    before = tvm.ir.load_json(tvm.ir.save_json(mod))
    assert structural_equal(before, mod)
    with tvm.transform.PassContext(config={"testing.immutable_module": True}):
        fused = through(FUSE)(mod)
        again = through(FUSE)(fused)
        other_order = through(FUSE[::-1])(mod)
    assert structural_equal(before, mod)
    assert structural_equal(fused, again)
    assert kernels_of(other_order) == kernels_of(fused)
    assert relax.analysis.check_well_formed(fused)
    return fused


class Net(nn.Module):
    """An embedding whose matrix the head shares, and a layer of two matrices between the two."""

    def __init__(self, shared: Matrix, *parts: Matrix):
        self.embed, self.layer = MatrixEmbedding(shared), MatrixLinear(parts)
        self.head = TiedHead(self.embed)

    def main(self, numbers: nn.Tensor):
        """(s,) int32 -> the layer's result, (s, n), and the head's."""
        x = self.embed(numbers)
        return self.layer(x), self.head(x)


def exported(net: nn.Module, **inputs) -> tuple[tvm.IRModule, list[str]]:
    spec = {"main": {**inputs, "$": {"param_mode": "packed", "effect_mode": "none"}}}
    mod, parameters = net.export_tvm(spec=spec)
    return mod, [name for name, _ in parameters]


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_no_layer_keeps_a_float_matrix(form):
    shared, first, second = (random_codes(form, n, seed=n) for n in (N, 32, 16))
    net = Net(*(CodedMatrix(form, len(one.codes), K) for one in (shared, first, second)))
    mod, names = exported(net, numbers=nn.spec.Tensor(["s"], "int32"))
    lowered = through(LOWER)(mod)
    assert [float_copies(lowered, (n, K)) for n in (N, 32, 16)] == [2, 1, 1]
    fused = fuse_once_and_again(lowered)
    assert [float_copies(fused, (n, K)) for n in (N, 32, 16)] == [0, 0, 0]
    kinds = [name.split("_")[:2] for name in kernels_of(fused)]
    assert kinds.count(["dequantize", "take"]) == 1 and kinds.count(["dequantize", "NT"]) == 3

    arrays = {
        f"{layer}.{kind}": array
        for layer, one in (
            ("embed.matrix", shared),
            ("layer.parts.0", first),
            ("layer.parts.1", second),
        )
        for kind, array in zip(("codes", "scales"), pack(one, form), strict=True)
    }
    numbers = np.array([0, 47, 17, 17, -3, 1000], "int32")  # the last two are clipped
    found = run(through(BEHIND)(fused), numbers, [arrays[name] for name in names])
    shared, first, second = (one.floats().astype("float64") for one in (shared, first, second))
    x = shared[np.clip(numbers, 0, N - 1)]
    close(found[0], x @ np.concatenate([first, second]).T)
    close(found[1], x @ shared.T)


def test_a_float_matrix_may_stand_beside_a_coded_one():
    coded = random_codes()
    net = MatrixLinear([CodedMatrix(FORM, N, K), FloatMatrix(24, K)])
    net.main = net.forward
    mod, names = exported(net, x=nn.spec.Tensor([2, ROWS, K], "float32"))
    fused = fuse_once_and_again(through(LOWER)(mod))
    assert not float_copies(fused)
    assert names == ["parts.0.codes", "parts.0.scales", "parts.1.weight"]
    x, w = normal(2, ROWS, K), normal(24, K)
    found = run(fused, x, [*pack(coded, FORM), w])
    both = np.concatenate([coded.floats(), w]).astype("float64")
    close(found, x.astype("float64") @ both.T)


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
    block", "two blocks" if the matrix is unpacked in a dataflow block before that of `step`, or "no block".
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
        if where == "two blocks":
            with block():
                matrix = builder.emit_output(call)
        with block():
            if where != "two blocks":
                matrix = builder.emit(call)
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


def again(builder: relax.BlockBuilder, codes: relax.Var, scales: relax.Var) -> relax.Var:
    """The matrix of the codes after a write into them."""
    codes = write(builder, codes)
    unpack = builder.add_func(kernel(FORM, (N, K)), "dequantize")
    ty = relax.TensorType((N, K), "float32")
    return builder.emit(relax.call_tir(unpack, [codes, scales], ty))


def moved_on(inputs: Inputs) -> np.ndarray:
    """The matrix after 1 was added to each word of codes: the first code of each word is one larger."""
    codes = random_codes()
    words = pack(codes, FORM)[0] + 1
    back = words.transpose(0, 3, 1, 2).copy().view("u1").reshape(N, K // 32, 16)
    codes = np.concatenate([back & 15, back >> 4], axis=-1).reshape(N, K)
    return Codes(4, codes, random_codes().scales, random_codes().minima).floats().astype("float64")


@pytest.mark.parametrize("name", FIRES)
def test_the_passes_fire(name):
    step, expected = FIRES[name]
    mod = function(step)
    assert float_copies(mod)
    fused = fuse_once_and_again(mod)
    assert not float_copies(fused)
    inputs = Inputs()
    for found, exact in zip(inputs.run(fused), expected(inputs), strict=True):
        close(found, exact)


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


KEPT = {
    "also returned": (
        lambda b, matrix, x, **_: [times(x, matrix), matrix],
        lambda i: [i.x @ i.matrix.T, i.matrix],
    ),
    "also read by another operator": (
        lambda b, matrix, x, **_: [times(x, matrix), OP.negative(matrix)],
        lambda i: [i.x @ i.matrix.T, -i.matrix],
    ),
    "also read under another name": (
        lambda b, matrix, x, **_: [times(x, matrix), OP.sum(b.emit(matrix))],
        lambda i: [i.x @ i.matrix.T, i.matrix.sum()],
    ),
    "not transposed": (
        lambda b, matrix, square, **_: [OP.matmul(square, matrix)],
        lambda i: [i.square @ i.matrix],
    ),
    "also not transposed": (
        lambda b, matrix, x, square, **_: [times(x, matrix), OP.matmul(square, matrix)],
        lambda i: [i.x @ i.matrix.T, i.square @ i.matrix],
    ),
    "the left factor": (
        lambda b, matrix, other, **_: [times(matrix, other)],
        lambda i: [i.matrix @ i.other.T],
    ),
    "both factors": (
        lambda b, matrix, **_: [times(matrix, matrix)],
        lambda i: [i.matrix @ i.matrix.T],
    ),
    "columns": (
        lambda b, matrix, numbers, **_: [row(matrix, numbers, axis=1)],
        lambda i: [i.matrix[:, np.clip(i.numbers, 0, K - 1)]],
    ),
    "codes written between": (
        between("codes"),
        lambda i: [i.x @ i.matrix.T, i.codes + 1],
    ),
    "scales written between": (
        between("scales"),
        lambda i: [i.x @ i.matrix.T, i.scales + np.float16(1)],
    ),
    "another tensor written between": (
        between("other"),
        lambda i: [i.x @ i.matrix.T, i.other + 1],
    ),
    "one product before a write, one behind": (
        lambda b, matrix, x, codes, **_: [
            b.emit(times(x, matrix)),
            *between("codes")(b, matrix, x, codes=codes),
        ],
        lambda i: [i.x @ i.matrix.T, i.x @ i.matrix.T, i.codes + 1],
    ),
    "squares": (
        product_named_nt_matmul(lambda x, w, i, j, k: x[i, k] * w[j, k] * w[j, k]),
        lambda i: [i.x @ (i.matrix**2).T],
    ),
    "sums from the last step on": (
        product_named_nt_matmul(lambda x, w, i, j, k: x[i, k] * w[j, K - 1 - k]),
        lambda i: [i.x @ i.matrix[:, ::-1].T],
    ),
    "a row and the first one": (
        lookup(lambda m, numbers, i, k: m[clipped(numbers, i), k] + m[0, k]),
        lambda i: [i.matrix[np.clip(i.numbers, 0, N - 1)] + i.matrix[0]],
    ),
    "rows by their own numbers": (
        lookup(lambda m, numbers, i, k: m[i, k] * numbers[i].astype("float32")),
        lambda i: [i.matrix[:7] * i.numbers[:, None]],
    ),
}


@pytest.mark.parametrize("name", KEPT)
def test_the_passes_do_not_fire(name):
    step, expected = KEPT[name]
    mod = function(step)
    fused = fuse_once_and_again(mod)
    assert structural_equal(fused, mod) and float_copies(fused)
    inputs = Inputs()
    for found, exact in zip(inputs.run(fused), expected(inputs), strict=True):
        close(found, exact)


@pytest.mark.parametrize("where", ["two blocks", "no block"])
def test_the_passes_stay_inside_a_dataflow_block(where):
    mod = function(FIRES["a product"][0], where)
    assert structural_equal(fuse_once_and_again(mod), mod)


def test_a_kernel_that_only_resembles_dequantize_stays():
    mod = function(FIRES["a product"][0])
    (gvar,) = (one for one in mod.get_global_vars() if one.name_hint == "dequantize")
    mod[gvar] = changed(lane=lambda j, k: 15 - j % 16).with_attr("op_pattern", 2)
    assert structural_equal(fuse_once_and_again(mod), mod)


def test_functions_of_another_compiler_stay():
    mod = function(FIRES["a product"][0])
    mod["main"] = mod["main"].with_attr("Codegen", "another")
    assert structural_equal(fuse_once_and_again(mod), mod)


def test_the_left_factor_keeps_its_floats_if_both_are_coded():
    """The kernel of left @ right.T unpacks the right matrix; the left one is an x like any other."""
    builder = relax.BlockBuilder()
    names = "codes", "scales", "left_codes", "left_scales"
    shapes = [*FORM.shapes(N, K), *FORM.shapes(32, K)]
    params = [
        relax.Var(name, relax.TensorType(*described))
        for name, described in zip(names, shapes, strict=True)
    ]

    def unpacked(n: int, given: list[relax.Var]) -> relax.Var:
        func = builder.add_func(kernel(FORM, (n, K)), "dequantize")
        return builder.emit(relax.call_tir(func, given, relax.TensorType((n, K), "float32")))

    with builder.function("main", params):
        with builder.dataflow():
            right, left = unpacked(N, params[:2]), unpacked(32, params[2:])
            out = builder.emit_output(times(left, right))
        builder.emit_func_output(out)
    fused = fuse_once_and_again(through(LOWER)(builder.get()))
    assert not float_copies(fused) and float_copies(fused, (32, K)) == 1
    right, left = random_codes(), random_codes(n=32, seed=1)
    found = run(fused, *pack(right, FORM), *pack(left, FORM))
    right, left = (one.floats().astype("float64") for one in (right, left))
    close(found, left @ right.T)


# --- what FuseOps adds behind the product ---------------------------------------------------------


def sigmoid(y: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-y))


# what follows y = x @ matrix.T: in Relax, and in NumPy
EPILOGUES = {
    "bias": (lambda y, b, r: OP.add(y, b), lambda y, b, r: y + b),
    "silu": (lambda y, b, r: OP.nn.silu(y), lambda y, b, r: y * sigmoid(y)),
    "residual": (lambda y, b, r: OP.add(r, y), lambda y, b, r: r + y),
    "gate": (
        lambda y, b, r: OP.multiply(OP.nn.silu(y), r),
        lambda y, b, r: y * sigmoid(y) * r,
    ),
    "bias, gelu and residual": (
        lambda y, b, r: OP.add(OP.nn.gelu_tanh(OP.add(y, b)), r),
        lambda y, b, r: gelu(y + b) + r,
    ),
}


def gelu(y: np.ndarray) -> np.ndarray:
    return y * (0.5 + 0.5 * np.tanh((2 / np.pi) ** 0.5 * (y + 0.044715 * y**3)))


@pytest.mark.parametrize("scheduled", [False, True], ids=["as it is", "scheduled"])
@pytest.mark.parametrize("name", EPILOGUES)
def test_epilogues_follow_in_the_same_kernel(name, scheduled):
    epilogue, exact = EPILOGUES[name]

    def step(builder, matrix, x, bias, residual, **_):
        return [epilogue(times(x, matrix), bias, residual)]

    mod = through([*FUSE, *BEHIND])(function(step))
    (only,) = kernels_of(mod)
    if scheduled:
        mod = ScheduleCodedProducts(QUICK_HERE, exact=True)(mod)
        assert "tirx.is_scheduled" in mod[only].attrs
    inputs = Inputs()
    (found,) = inputs.run(mod)
    close(found, exact(inputs.x @ inputs.matrix.T, inputs.bias, inputs.residual))


def test_the_kernels_of_the_layers_are_all_scheduled():
    """Nothing between the layers and the schedule makes a kernel that the schedule does not know."""
    net = Net(*(CodedMatrix(FORM, n, K) for n in (N, 32, 16)))
    mod, _ = exported(net, numbers=nn.spec.Tensor(["s"], "int32"))
    mod = ScheduleCodedProducts(QUICK_HERE)(through([*LOWER, *FUSE, *BEHIND])(mod))
    products = [name for name in kernels_of(mod) if "NT_matmul" in name]
    assert len(products) == 3
    assert all("tirx.is_scheduled" in mod[name].attrs for name in products)
