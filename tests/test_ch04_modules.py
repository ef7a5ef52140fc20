"""FuseAddRMSNorm on modules made to break it: each stays well-formed, settles in one run, and keeps its numbers.

Written by hand where the random modules of `test_ch04_property.py` do not reach: types looser than they could be,
sums that are weights, writes in place, branches, closures, epsilons that are hardly numbers, rows of any length.
"""

from __future__ import annotations

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T
from tvm.target import Target

from solutions.ch04_add_rms_norm.fuse_add_norm import FuseAddRMSNorm
from tests.checks.add_norm import (
    RELATIVE,
    draw,
    inputs,
    kernels,
    module,
    operators,
    pair,
    plain,
    reference,
    run,
    tensor,
)
from tests.checks.gpu import CUDA

LLVM = Target("llvm")
QUICK = Target({"kind": "llvm", "opt-level": 0})
SHAPE = (3, 1, 64)
SHAPES = {"x1": SHAPE, "x2": SHAPE, "weight": (64,)}
add, norm = relax.op.add, relax.op.nn.rms_norm


def _fused(mod: tvm.IRModule, target: Target = LLVM) -> tvm.IRModule:
    """`mod` after the pass, which must leave it unchanged, give a well-formed module, and find nothing in that."""
    before = mod.clone()
    fused = FuseAddRMSNorm(target)(mod)
    assert tvm_ffi.structural_equal(mod, before)
    relax.analysis.well_formed(fused)
    assert tvm_ffi.structural_equal(FuseAddRMSNorm(target)(fused), fused)
    return fused


def _keeps_its_numbers(mod: tvm.IRModule, arrays: list[np.ndarray], fires: bool = True) -> None:
    _fused(mod, CUDA)
    fused = _fused(mod)
    assert (len(kernels(fused)) > len(kernels(mod))) == fires
    for yours, exact in zip(
        run(fused, arrays, target=QUICK), run(mod, arrays, target=QUICK), strict=True
    ):
        np.testing.assert_allclose(yours, exact, rtol=1e-5, atol=1e-5)


def _arguments() -> list[np.ndarray]:
    return inputs(SHAPE, "float32")


# --- one function, built -----------------------------------------------------------------------------


def _of_constants(b, x1, x2, w):
    constant, weight = (
        relax.const(draw(SHAPE, "float32", 7)),
        relax.const(draw((64,), "float32", 8)),
    )
    total = b.emit(add(x1, constant))
    return [b.emit(norm(total, weight, axes=[-1])), total, x2, w]


def _by_another_name(b, x1, x2, w):
    total = b.emit(add(x1, x2))
    weight, alias = b.emit(w), b.emit(total)
    return [b.emit(norm(total, weight, axes=[-1])), alias]


def _out_of_a_tuple(b, x1, x2, w):
    total = b.emit(add(x1, x2))
    again = b.emit(relax.TupleGetItem(b.emit(relax.Tuple([x1, total])), 1))
    return [b.emit(norm(again, w, axes=[-1])), b.emit(norm(total, w, axes=[-1], epsilon=0.5))]


def _equal_pairs(b, x1, x2, w):
    total = b.emit(add(x1, x2))
    first, second = b.emit(norm(total, w, axes=[-1])), b.emit(norm(total, w, axes=[-1]))
    both = b.emit(add(first, second))
    return [first, second, total, both, b.emit(norm(both, w, axes=[-1]))]


def _crossed_sums(b, x1, x2, w):
    one, two = b.emit(add(x1, x2)), b.emit(add(x2, x1))
    three = b.emit(add(one, two))
    norms = [b.emit(norm(total, w, axes=[-1])) for total in (two, one, three)]
    return [*norms, one, two, three]


def _sum_with_itself(b, x1, x2, w):
    first, normed = pair(b, x1, x2, w)
    twice = b.emit(add(first, first))
    return [b.emit(norm(twice, w, axes=[-1])), b.emit(norm(normed, w, axes=[-1])), first]


@pytest.mark.parametrize("dataflow", [True, False], ids=["dataflow", "bindings"])
@pytest.mark.parametrize(
    "build",
    [
        _of_constants,
        _by_another_name,
        _out_of_a_tuple,
        _equal_pairs,
        _crossed_sums,
        _sum_with_itself,
    ],
)
def test_one_function(build, dataflow):
    _keeps_its_numbers(module(build, SHAPES, "float32", dataflow=dataflow), _arguments())


def _weight_is_a_sum(b, x1, x2, w):
    scale = b.emit(add(w, w))
    normed = b.emit(norm(scale, w, axes=[-1]))
    total = b.emit(add(x1, x2))
    return [
        b.emit(norm(total, normed, axes=[-1])),
        b.emit(norm(b.emit(add(total, x1)), scale, axes=[-1])),
    ]


def _weight_is_a_sum_normed_later(b, x1, x2, w):
    total, scale = b.emit(add(x1, x2)), b.emit(add(w, w))
    normed = b.emit(norm(total, scale, axes=[-1]))
    return [normed, b.emit(norm(scale, w, axes=[-1]))]


@pytest.mark.parametrize("build", [_weight_is_a_sum, _weight_is_a_sum_normed_later])
def test_a_weight_that_is_a_sum(build):
    """One run settles it. TVM itself cannot compile the norm of a row without leading dimensions, so NumPy compares."""
    mod = module(build, SHAPES, "float32")
    fused = _fused(mod)
    assert "nn.rms_norm" not in operators(fused)
    x1, x2, w = _arguments()
    results = run(fused, [x1, x2, w], target=QUICK)
    if build is _weight_is_a_sum:
        normed, _ = reference(w, w, w, 1e-5)
        total = x1 + x2
        expected = [
            reference(x1, x2, normed.astype("float32"), 1e-5)[0],
            reference(total, x1, w + w, 1e-5)[0],
        ]
    else:
        expected = [reference(x1, x2, w + w, 1e-5)[0], reference(w, w, w, 1e-5)[0]]
    for yours, exact in zip(results, expected, strict=True):
        np.testing.assert_allclose(yours, exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("loose", ["norm", "total"])
def test_a_type_looser_than_it_could_be(loose):
    """A variable may say less of its tensor than the operator would: no shape. Nothing raises."""
    b, n = relax.BlockBuilder(), tirx.Var("n", "int64")
    x1, x2 = (relax.Var(name, tensor((n, 1, 64), "float32")) for name in ("x1", "x2"))
    w = relax.Var("weight", tensor((64,), "float32"))
    rank_only = relax.TensorType(dtype="float32", ndim=3)

    def bind(name, value):
        var = relax.Var(name, rank_only if name == loose else tensor((n, 1, 64), "float32"))
        if name == "norm":
            var = relax.Var(name, rank_only)  # of a total without a shape no more is known
        b.emit_normalized(relax.VarBinding(var, b.normalize(value)))
        return var

    with b.function("main", [x1, x2, w]):
        total = bind("total", add(x1, x2))
        b.emit_func_output(relax.Tuple([bind("norm", norm(total, w, axes=[-1])), total]))
    _keeps_its_numbers(b.get(), _arguments(), fires=loose == "norm")


@pytest.mark.parametrize("epsilon", [0.0, 1e-45, 1e38, float("inf"), float("nan"), -0.5])
def test_epsilons_that_are_hardly_numbers(epsilon):
    mod = plain(SHAPE, "float32", epsilon)
    _keeps_its_numbers(mod, _arguments())
    zeros = [np.zeros(SHAPE, "float32")] * 2 + [np.ones(64, "float32")]
    _keeps_its_numbers(mod, zeros)


def test_an_epsilon_beyond_float32_is_left_alone():
    mod = plain(SHAPE, "float32", 1e300)
    assert FuseAddRMSNorm(LLVM)(mod).same_as(mod) and FuseAddRMSNorm(CUDA)(mod).same_as(mod)


# --- rows --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("hidden", [1, 2, 15, 16, 17, 31, 32, 33, 63, 65, 5000, 100003])
def test_rows_of_any_length(hidden, dtype):
    arrays = inputs((3, hidden), dtype)
    normed, total = run(_fused(plain(("n", hidden), dtype)), arrays, target=QUICK)
    exact, rounded = reference(*arrays, 1e-5)
    assert (total == rounded).all()
    error = np.abs(normed.astype("float64") - exact) / np.abs(exact).max()
    assert error.max() < RELATIVE[dtype]


@pytest.mark.parametrize("rows", [1, 9])
def test_rows_longer_than_a_stack(rows):
    """A megabyte a row; nine of them are stored around the cache."""
    arrays = inputs((rows, 1 << 20), "float32")
    normed, total = run(_fused(plain(("n", 1 << 20), "float32")), arrays, target=QUICK)
    exact, rounded = reference(*arrays, 1e-5)
    assert (total == rounded).all()
    assert np.abs(normed - exact).max() < 5e-5 * np.abs(exact).max()


@pytest.mark.parametrize("shape", [("n", 64), ("n", "m", 64), (1, "n", 64)])
def test_no_rows_when_it_runs(shape):
    sizes = [0 if isinstance(extent, str) else extent for extent in shape]
    arrays = [np.zeros(sizes, "float32"), np.zeros(sizes, "float32"), np.ones(64, "float32")]
    for result in run(_fused(plain(shape, "float32")), arrays, target=QUICK):
        assert result.shape == tuple(sizes)


def test_what_else_no_kernel_serves():
    """float64, and tensors on another device than the target's."""
    assert FuseAddRMSNorm(LLVM)(mod := plain(SHAPE, "float64")).same_as(mod)
    b = relax.BlockBuilder()
    there = I.vdevice("cuda", 0, "global")
    params = [
        relax.Var(name, relax.TensorType(shape, "float32", vdevice=there))
        for name, shape in SHAPES.items()
    ]
    with b.function("main", params):
        total = b.emit(add(params[0], params[1]))
        b.emit_func_output(b.emit(norm(total, params[2], axes=[-1])))
    mod = b.get()
    assert FuseAddRMSNorm(LLVM)(mod).same_as(mod)
    assert kernels(FuseAddRMSNorm(CUDA)(mod))


def test_modules_without_a_pair_come_back_as_they_are():
    empty = tvm.IRModule({})
    assert FuseAddRMSNorm(LLVM)(empty).same_as(empty)
    assert FuseAddRMSNorm(LLVM)(InPlace)["twice"].same_as(InPlace["twice"])


# --- modules, written --------------------------------------------------------------------------------


@I.ir_module
class Nested:
    """Norms before, in and after a branch."""

    @R.function
    def main(
        x1: R.Tensor((3, 1, 64), "float32"),
        x2: R.Tensor((3, 1, 64), "float32"),
        w: R.Tensor((64,), "float32"),
        choose: R.Tensor((), "bool"),
    ):
        total = R.add(x1, x2)
        if choose:
            grown = R.exp(total)
            inner = R.add(grown, total)
            chosen = R.nn.rms_norm(inner, w, axes=[-1], epsilon=0.5)
        else:
            inner2 = R.add(total, total)
            chosen = R.nn.rms_norm(inner2, w, axes=[-1], epsilon=0.25)
        normed = R.nn.rms_norm(total, w, axes=[-1], epsilon=1e-5)
        both = R.add(normed, chosen)
        last = R.nn.rms_norm(both, w, axes=[-1], epsilon=1e-5)
        return (normed, chosen, last, both, total)


def test_norms_before_in_and_after_a_branch():
    assert len(kernels(_fused(Nested))) == 3  # one for each epsilon
    # the first branch only: for the second TVM plans memory that the first was to allocate, fused or not
    _keeps_its_numbers(Nested, [*_arguments(), np.array(True)])


@I.ir_module
class Helper:
    """The sum is handed to another function before it is normalised; that function has a pair too."""

    @R.function(private=True)
    def helper(total: R.Tensor((3, 1, 64), "float32"), w: R.Tensor((64,), "float32")) -> R.Tensor(
        (3, 1, 64), "float32"
    ):
        with R.dataflow():
            twice = R.add(total, total)
            normed = R.nn.rms_norm(twice, w, axes=[-1], epsilon=1e-5)
            R.output(normed)
        return normed

    @R.function
    def main(
        x1: R.Tensor((3, 1, 64), "float32"),
        x2: R.Tensor((3, 1, 64), "float32"),
        w: R.Tensor((64,), "float32"),
    ):
        cls = Helper
        with R.dataflow():
            total = R.add(x1, x2)
            helped = cls.helper(total, w)
            normed = R.nn.rms_norm(total, w, axes=[-1], epsilon=1e-5)
            R.output(normed, helped, total)
        return (normed, helped, total)


def test_a_function_called_between():
    _keeps_its_numbers(Helper, _arguments())


@I.ir_module
class Closure:
    """A function inside the function reads the sum."""

    @R.function
    def main(
        x1: R.Tensor((3, 1, 64), "float32"),
        x2: R.Tensor((3, 1, 64), "float32"),
        w: R.Tensor((64,), "float32"),
    ):
        total = R.add(x1, x2)

        @R.function
        def inner(y: R.Tensor((3, 1, 64), "float32")) -> R.Tensor((3, 1, 64), "float32"):
            both = R.add(y, total)
            normed = R.nn.rms_norm(both, w, axes=[-1], epsilon=1e-5)
            return normed

        of_inner = inner(x2)
        after = R.nn.rms_norm(total, w, axes=[-1], epsilon=0.5)
        return (of_inner, after, total)


def test_a_closure_that_reads_the_sum():
    lifted = relax.transform.LambdaLift()
    fused = _fused(Closure)
    assert kernels(fused)
    yours, exact = (run(lifted(m), _arguments(), target=QUICK) for m in (fused, Closure))
    for a, b in zip(yours, exact, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@I.ir_module
class KnownLater:
    """Parameters of unknown shape, known after a match_cast; and a sum cast before it is normalised."""

    @R.function
    def main(
        x1: R.Tensor(dtype="float32", ndim=3),
        x2: R.Tensor(dtype="float32", ndim=3),
        w: R.Tensor((64,), "float32"),
    ):
        n, m = T.int64(), T.int64()
        a = R.match_cast(x1, R.Tensor((n, 1, 64), "float32"))
        b = R.match_cast(x2, R.Tensor((n, 1, 64), "float32"))
        total = R.add(a, b)
        cast = R.match_cast(total, R.Tensor((m, 1, 64), "float32"))
        normed = R.nn.rms_norm(total, w, axes=[-1], epsilon=1e-5)
        twice = R.add(cast, cast)
        again = R.nn.rms_norm(twice, w, axes=[-1], epsilon=1e-5)
        return (normed, again, total)


def test_shapes_known_after_a_match_cast():
    assert len(kernels(_fused(KnownLater))) == 1 and operators(_fused(KnownLater)) == ["kernel"] * 2
    _keeps_its_numbers(KnownLater, _arguments())


@I.ir_module
class Arithmetic:
    """2 * n rows, written in two ways."""

    @R.function
    def main(
        x1: R.Tensor(("n", 2, 64), "float32"),
        x2: R.Tensor(("n", 2, 64), "float32"),
        w: R.Tensor((64,), "float32"),
    ):
        n = T.int64()
        with R.dataflow():
            a = R.reshape(x1, R.shape([n * 2, 64]))
            b = R.reshape(x2, R.shape([2 * n, 64]))
            total = R.add(a, b)
            normed = R.nn.rms_norm(total, w, axes=[-1], epsilon=1e-5)
            R.output(normed, total)
        return (normed, total)


def test_rows_that_are_an_expression():
    _keeps_its_numbers(Arithmetic, inputs((3, 2, 64), "float32"))


@I.ir_module
class InPlace:
    """x1 is overwritten after the first norm; the second sum itself before its norm."""

    @T.prim_func(private=True, s_tir=True)
    def twice(a: T.Buffer((3, 1, 64), "float32")):
        for i, j, k in T.grid(3, 1, 64):
            with T.sblock("twice"):
                vi, vj, vk = T.axis.remap("SSS", [i, j, k])
                a[vi, vj, vk] = a[vi, vj, vk] * T.float32(2)

    @R.function
    def main(
        x1: R.Tensor((3, 1, 64), "float32"),
        x2: R.Tensor((3, 1, 64), "float32"),
        w: R.Tensor((64,), "float32"),
    ):
        cls = InPlace
        total = R.add(x1, x2)
        normed = R.nn.rms_norm(total, w, axes=[-1], epsilon=1e-5)
        doubled = R.call_tir_inplace(
            cls.twice, (x1,), inplace_indices=[0], out_ty=R.Tensor((3, 1, 64), "float32")
        )
        second = R.add(doubled, x2)
        grown = R.call_tir_inplace(
            cls.twice, (second,), inplace_indices=[0], out_ty=R.Tensor((3, 1, 64), "float32")
        )
        last = R.nn.rms_norm(second, w, axes=[-1], epsilon=1e-5)
        return (normed, total, last, grown)


def test_writes_in_place_around_a_pair():
    assert (
        operators(_fused(InPlace)).count("nn.rms_norm") == 1
    )  # the sum of the second changes before its norm
    _keeps_its_numbers(InPlace, _arguments())


@I.ir_module
class OfTuples:
    """Arguments that are elements of tuples."""

    @R.function
    def main(
        x: R.Tuple(R.Tensor((3, 1, 64), "float32"), R.Tensor((3, 1, 64), "float32")),
        w: R.Tuple(R.Tensor((64,), "float32")),
    ):
        with R.dataflow():
            total = R.add(x[0], x[1])
            normed = R.nn.rms_norm(total, w[0], axes=[-1], epsilon=1e-5)
            R.output(normed, total)
        return (normed, total)


def test_arguments_out_of_tuples():
    assert kernels(_fused(OfTuples)) and "nn.rms_norm" not in operators(_fused(OfTuples, CUDA))


@I.ir_module
class ManyBlocks:
    """Sums that leave one dataflow block to be normalised in a later one, once or twice."""

    @R.function
    def main(
        x1: R.Tensor((3, 1, 64), "float32"),
        x2: R.Tensor((3, 1, 64), "float32"),
        w: R.Tensor((64,), "float32"),
    ):
        with R.dataflow():
            total = R.add(x1, x2)
            R.output(total)
        with R.dataflow():
            normed = R.nn.rms_norm(total, w, axes=[-1], epsilon=1e-5)
            R.output(normed)
        with R.dataflow():
            second = R.add(normed, total)
            grown = R.exp(second)
            R.output(second, grown)
        negative = R.negative(second)
        with R.dataflow():
            one = R.nn.rms_norm(second, w, axes=[-1], epsilon=1e-5)
            two = R.nn.rms_norm(second, w, axes=[-1], epsilon=1e-6)
            R.output(one, two)
        return (normed, one, two, negative, grown)


def test_sums_that_leave_their_blocks():
    _keeps_its_numbers(ManyBlocks, _arguments())
