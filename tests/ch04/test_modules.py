"""FuseAddRMSNorm on modules made to break it: each stays well-formed, settles in one run, and keeps its numbers.

Written by hand where the random modules of `test_property.py` and the checks do not reach: types looser than they could
be, sums that are weights, writes in place, closures, epsilons that are hardly numbers, rows of any length.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.target import Target

from chapters.ch04_add_rms_norm.check_cases import (
    RELATIVE,
    draw,
    inputs,
    module,
    reference,
    run,
)
from chapters.checking import expect
from chapters.checking.programs import kernels, operators
from chapters.kit.cases.add_norm import unfused
from chapters.kit.cases.relax_text import kernel, relax_module
from chapters.kit.gpu.targets import CUDA
from solutions.ch04_add_rms_norm import fuse_add_norm
from solutions.ch04_add_rms_norm.fuse_add_norm import FuseAddRMSNorm, build_kernel, kernel_key

LLVM = Target("llvm")
SHAPE = (3, 1, 64)
SHAPES = {"x1": SHAPE, "x2": SHAPE, "weight": (64,)}
BUILT: dict[tuple, tirx.PrimFunc | None] = {}
add, norm = relax.op.add, relax.op.nn.rms_norm


@pytest.fixture(autouse=True)
def _equal_kernels_are_built_once(monkeypatch):
    """Most pairs here have one shape; parsing their kernels anew would take most of the time of these tests."""

    def build(pair, target):
        key = kernel_key(pair), str(target)
        if key not in BUILT:
            BUILT[key] = build_kernel(pair, target)
        return BUILT[key]

    monkeypatch.setattr(fuse_add_norm, "build_kernel", build)


def settled(mod: tvm.IRModule, target: Target) -> tvm.IRModule:
    """`mod` after the pass, which must not change `mod`; the result is well-formed, and a second run keeps it."""
    return expect.settles(FuseAddRMSNorm(target), mod, "FuseAddRMSNorm")


def _keeps_its_numbers(mod: tvm.IRModule, *several: list[np.ndarray], fires: bool = True) -> None:
    """The pass settles on `mod`, fuses something if `fires`, and keeps the results on each list of arguments."""
    settled(mod, CUDA)
    fused = settled(mod, LLVM)
    assert (len(kernels(fused)) > len(kernels(mod))) == fires
    new, old = expect.machine(fused), expect.machine(mod)
    for arrays in several:
        _close(expect.call(new, "main", arrays), expect.call(old, "main", arrays))


def _close(results: list[np.ndarray], expected: list[np.ndarray]) -> None:
    for yours, exact in zip(results, expected, strict=True):
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


BUILDS = [_of_constants, _by_another_name, _out_of_a_tuple, _equal_pairs, _crossed_sums]


@pytest.mark.parametrize("dataflow", [True, False], ids=["dataflow", "bindings"])
@pytest.mark.parametrize("build", BUILDS)
def test_one_function(build, dataflow):
    _keeps_its_numbers(module(build, SHAPES, "float32", dataflow=dataflow), _arguments())


def _weight_is_a_sum(b, x1, x2, w):
    scale = b.emit(add(w, w))
    normed = b.emit(norm(scale, w, axes=[-1]))
    total = b.emit(add(x1, x2))
    last = b.emit(norm(b.emit(add(total, x1)), scale, axes=[-1]))
    return [b.emit(norm(total, normed, axes=[-1])), last]


def _weight_is_a_sum_normed_later(b, x1, x2, w):
    total, scale = b.emit(add(x1, x2)), b.emit(add(w, w))
    normed = b.emit(norm(total, scale, axes=[-1]))
    return [normed, b.emit(norm(scale, w, axes=[-1]))]


@pytest.mark.parametrize("build", [_weight_is_a_sum, _weight_is_a_sum_normed_later])
def test_a_weight_that_is_a_sum(build):
    """One run settles it. TVM itself cannot compile the norm of a row without leading dimensions, so NumPy compares."""
    fused = settled(module(build, SHAPES, "float32"), LLVM)
    assert "nn.rms_norm" not in operators(fused)
    x1, x2, w = _arguments()
    of_scale = reference(w, w, w, 1e-5)[0]
    if build is _weight_is_a_sum:
        last = reference(x1 + x2, x1, w + w, 1e-5)[0]
        expected = [reference(x1, x2, of_scale.astype("float32"), 1e-5)[0], last]
    else:
        expected = [reference(x1, x2, w + w, 1e-5)[0], of_scale]
    _close(run(fused, [x1, x2, w]), expected)


@pytest.mark.parametrize("loose", ["norm", "total"])
def test_a_type_looser_than_it_could_be(loose):
    """The annotated type of a variable may lack the shape that the operator would give. Nothing raises."""
    b, n = relax.BlockBuilder(), tirx.Var("n", "int64")
    tensor, row = relax.TensorType((n, 1, 64), "float32"), relax.TensorType((64,), "float32")
    x1, x2, w = relax.Var("x1", tensor), relax.Var("x2", tensor), relax.Var("weight", row)
    rank_only = relax.TensorType(dtype="float32", ndim=3)

    def bind(name, ty, value):
        var = relax.Var(name, ty)
        b.emit_normalized(relax.VarBinding(var, b.normalize(value)))
        return var

    with b.function("main", [x1, x2, w]):
        total = bind("total", rank_only if loose == "total" else tensor, add(x1, x2))
        # the norm of a total without a shape has no shape either
        normed = bind("norm", rank_only, norm(total, w, axes=[-1]))
        b.emit_func_output(relax.Tuple([normed, total]))
    _keeps_its_numbers(b.get(), _arguments(), fires=loose == "norm")


@pytest.mark.parametrize("epsilon", [0.0, 1e-45, 1e38, float("inf"), float("nan"), -0.5])
def test_epsilons_that_are_hardly_numbers(epsilon):
    mod = unfused(SHAPE, "float32", epsilon)
    zeros = [np.zeros(SHAPE, "float32")] * 2 + [np.ones(64, "float32")]
    _keeps_its_numbers(mod, _arguments(), zeros)


def test_an_epsilon_beyond_float32_is_left_alone():
    mod = unfused(SHAPE, "float32", 1e300)
    assert FuseAddRMSNorm(LLVM)(mod).same_as(mod) and FuseAddRMSNorm(CUDA)(mod).same_as(mod)


# --- rows --------------------------------------------------------------------------------------------


LENGTHS = [(h, "float32") for h in (1, 2, 15, 16, 17, 31, 32, 33, 63, 65, 5000, 100003)]
LENGTHS += [(h, dtype) for h in (1, 17, 32, 63, 100003) for dtype in ("float16", "bfloat16")]


@pytest.mark.parametrize(("hidden", "dtype"), LENGTHS)
def test_rows_of_any_length(hidden, dtype):
    assert _error(inputs((3, hidden), dtype)) < RELATIVE[dtype]


def _error(arrays: list[np.ndarray]) -> float:
    """The largest error of the norm of `arrays`, with a symbolic number of rows, relative to its largest element."""
    mod = unfused(("n", arrays[0].shape[-1]), str(arrays[0].dtype))
    normed, total = run(settled(mod, LLVM), arrays)
    exact, rounded = reference(*arrays, 1e-5)
    assert (total == rounded).all()
    return float(np.abs(normed.astype("float64") - exact).max() / np.abs(exact).max())


@pytest.mark.parametrize("rows", [1, 9])
def test_rows_longer_than_a_stack(rows):
    """Four megabytes per row; the results of nine rows are stored around the cache."""
    assert _error(inputs((rows, 1 << 20), "float32")) < 5e-5


@pytest.mark.parametrize("shape", [("n", 64), ("n", "m", 64), (1, "n", 64)])
def test_no_rows_when_it_runs(shape):
    sizes = [0 if isinstance(extent, str) else extent for extent in shape]
    arrays = [np.zeros(sizes, "float32"), np.zeros(sizes, "float32"), np.ones(64, "float32")]
    for result in run(settled(unfused(shape, "float32"), LLVM), arrays):
        assert result.shape == tuple(sizes)


def test_what_else_no_kernel_serves():
    """float64, and tensors on another device than the target's."""
    assert FuseAddRMSNorm(LLVM)(mod := unfused(SHAPE, "float64")).same_as(mod)
    x, w = (f'R.Tensor({shape}, "float32", "cuda:0")' for shape in (SHAPE, (64,)))
    mod = relax_module(f"""
I.module_global_infos({{"vdevice": [I.vdevice("cuda", 0, "global")]}})

@bare
def main(x1: {x}, x2: {x}, weight: {w}):
    out = R.nn.rms_norm(R.add(x1, x2), weight, axes=[-1], epsilon=1e-5)
    return out
""")
    assert FuseAddRMSNorm(LLVM)(mod).same_as(mod)
    assert kernels(FuseAddRMSNorm(CUDA)(mod))


def test_modules_without_a_pair_come_back_as_they_are():
    empty = tvm.IRModule({})
    assert FuseAddRMSNorm(LLVM)(empty).same_as(empty)


# --- modules, written --------------------------------------------------------------------------------


TWICE = kernel("twice(a)", SHAPE, "a[at] = a[at] * T.float32(2)")
# each headed by its name, the number of kernels that the pass makes, and what main calls afterwards
WRITTEN = f"""
## helper, 1: add nn.rms_norm
# The sum is handed to another function before it is normalized; that function has a pair too.
@private
def helper(total: (3, 1, 64), w: (64,)) -> R.Tensor((3, 1, 64), "float32"):
    twice = R.add(total, total)
    normed = R.nn.rms_norm(twice, w, axes=[-1], epsilon=1e-5)

def main(x1: (3, 1, 64), x2: (3, 1, 64), w: (64,)):
    total = R.add(x1, x2)
    helped = cls.helper(total, w)
    normed = R.nn.rms_norm(total, w, axes=[-1], epsilon=1e-5)
    return (normed, helped, total)

## closure, 1: add kernel nn.rms_norm
# A closure reads the sum.
def main(x1: (3, 1, 64), x2: (3, 1, 64), w: (64,)):
    total = R.add(x1, x2)
    @R.function
    def inner(y: R.Tensor((3, 1, 64), "float32")) -> R.Tensor((3, 1, 64), "float32"):
        both = R.add(y, total)
        normed = R.nn.rms_norm(both, w, axes=[-1], epsilon=1e-5)
        return normed
    of_inner = inner(x2)
    after = R.nn.rms_norm(total, w, axes=[-1], epsilon=0.5)
    return (of_inner, after, total)

## known_later, 1: kernel kernel
# Parameters of unknown shape, known after a match_cast; and a sum cast before it is normalized.
@bare
def main(
    x1: R.Tensor(dtype="float32", ndim=3), x2: R.Tensor(dtype="float32", ndim=3), w: (64,)
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

## in_place, 1: kernel call_tir_inplace add call_tir_inplace nn.rms_norm
# x1 is overwritten after the first norm; the second sum itself before its norm.
{TWICE}
@bare
def main(x1: (3, 1, 64), x2: (3, 1, 64), w: (64,)):
    total = R.add(x1, x2)
    normed = R.nn.rms_norm(total, w, axes=[-1], epsilon=1e-5)
    doubled = R.call_tir_inplace(cls.twice, (x1,), [0], R.Tensor((3, 1, 64), "float32"))
    second = R.add(doubled, x2)
    grown = R.call_tir_inplace(cls.twice, (second,), [0], R.Tensor((3, 1, 64), "float32"))
    last = R.nn.rms_norm(second, w, axes=[-1], epsilon=1e-5)
    return (normed, total, last, grown)

## of_tuples, 1: kernel
# Arguments out of tuples.
def main(
    x: R.Tuple(R.Tensor((3, 1, 64), "float32"), R.Tensor((3, 1, 64), "float32")),
    w: R.Tuple(R.Tensor((64,), "float32")),
):
    total = R.add(x[0], x[1])
    normed = R.nn.rms_norm(total, w[0], axes=[-1], epsilon=1e-5)
    return (normed, total)

## arithmetic, 1: reshape reshape kernel
# 2 * n rows, written in two ways.
def main(x1: ("n", 2, 64), x2: ("n", 2, 64), w: (64,)):
    a = R.reshape(x1, R.shape([n * 2, 64]))
    b = R.reshape(x2, R.shape([2 * n, 64]))
    total = R.add(a, b)
    normed = R.nn.rms_norm(total, w, axes=[-1], epsilon=1e-5)
    return (normed, total)
"""
ARGUMENTS = {  # where they are not x1, x2 and a weight
    "arithmetic": inputs((3, 2, 64), "float32"),
    "of_tuples": None,  # not run
}


def _written() -> Iterator:
    for part in WRITTEN.split("\n## ")[1:]:
        head, text = part.split("\n", 1)
        name, made, calls = re.fullmatch(r"(\w+), (\d): (.+)", head).groups()
        arrays = ARGUMENTS.get(name, _arguments())
        yield pytest.param(relax_module(text), int(made), calls.split(), arrays, id=name)


@pytest.mark.parametrize(("mod", "made", "calls", "arrays"), list(_written()))
def test_a_written_module(mod, made, calls, arrays):
    for target in (CUDA, LLVM):
        fused = settled(mod, target)
        assert operators(fused) == calls
        assert len(kernels(fused)) == made + len(kernels(mod))
        assert all(fused[name].same_as(func) for name, func in kernels(mod).items())
    if arrays:
        lifted = relax.transform.LambdaLift()
        _close(*(run(lifted(one), arrays) for one in (fused, mod)))
