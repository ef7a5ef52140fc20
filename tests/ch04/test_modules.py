"""FuseAddRMSNorm where the random modules of `test_property.py` and the checks do not reach.

Types looser than they could be, sums that are weights, closures, epsilons that are hardly numbers, rows of any length.
"""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.target import Target

from chapters.ch04_add_rms_norm.check_cases import RELATIVE, draw_inputs, reference, run
from chapters.checking import expect
from chapters.checking.judge import judge_pass
from chapters.checking.programs import kernels, operators
from chapters.kit.cases.example_programs import unfused_add_norm
from chapters.kit.cases.relax_text import relax_module
from chapters.kit.gpu.targets import CUDA
from solutions.ch04_add_rms_norm import fuse_add_norm
from solutions.ch04_add_rms_norm.fuse_add_norm import FuseAddRMSNorm, build_kernel, kernel_key
from tests.support.kernels import relative_error

LLVM = Target("llvm")
SHAPE = (3, 1, 64)
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


def settle(mod: tvm.IRModule, target: Target) -> tvm.IRModule:
    """`mod` after the pass, which must not change `mod`; the result is well-formed, and a second run keeps it."""
    return judge_pass(FuseAddRMSNorm(target), mod, "FuseAddRMSNorm", "the module", runs=False)


def check_numbers(mod: tvm.IRModule, *several: list[np.ndarray]) -> None:
    """The pass settles on `mod`, fuses something, and keeps the results on each list of arguments."""
    settle(mod, CUDA)
    fused = settle(mod, LLVM)
    assert kernels(fused)
    new, old = expect.machine(fused), expect.machine(mod)
    for arrays in several:
        assert_close(expect.call(new, "main", arrays), expect.call(old, "main", arrays))


def assert_close(results: list[np.ndarray], expected: list[np.ndarray]) -> None:
    for yours, exact in zip(results, expected, strict=True):
        np.testing.assert_allclose(yours, exact, rtol=1e-5, atol=1e-5)


def draw_arguments() -> list[np.ndarray]:
    return draw_inputs(SHAPE, "float32")


def test_two_norms_of_one_sum_may_be_equal():
    equal_pairs = relax_module("""
def main(x1: (3, 1, 64), x2: (3, 1, 64), w: (64,)):
    total = R.add(x1, x2)
    first = R.nn.rms_norm(total, w, axes=[-1])
    second = R.nn.rms_norm(total, w, axes=[-1])
    both = R.add(first, second)
    last = R.nn.rms_norm(both, w, axes=[-1])
    return first, second, total, both, last
""")
    check_numbers(equal_pairs, draw_arguments())


def test_a_weight_that_is_a_sum_which_is_normed_later():
    """One run settles it. TVM itself cannot compile the norm of a row without leading dimensions, so NumPy compares."""
    mod = relax_module("""
def main(x1: (3, 1, 64), x2: (3, 1, 64), w: (64,)):
    total = R.add(x1, x2)
    scale = R.add(w, w)
    normed = R.nn.rms_norm(total, scale, axes=[-1])
    again = R.nn.rms_norm(scale, w, axes=[-1])
    return normed, again
""")
    fused = settle(mod, LLVM)
    assert "nn.rms_norm" not in operators(fused)
    x1, x2, w = draw_arguments()
    expected = [reference(x1, x2, w + w, 1e-5)[0], reference(w, w, w, 1e-5)[0]]
    assert_close(run(fused, [x1, x2, w]), expected)


def test_a_norm_whose_type_is_looser_than_it_could_be():
    """The annotated type of a variable may lack the shape that the operator would give."""
    b, n = relax.BlockBuilder(), tirx.Var("n", "int64")
    tensor, row = relax.TensorType((n, 1, 64), "float32"), relax.TensorType((64,), "float32")
    x1, x2, w = relax.Var("x1", tensor), relax.Var("x2", tensor), relax.Var("weight", row)
    normed = relax.Var("norm", relax.TensorType(dtype="float32", ndim=3))
    with b.function("main", [x1, x2, w]):
        total = b.emit(add(x1, x2))
        value = b.normalize(norm(total, w, axes=[-1]))
        b.emit_normalized(relax.VarBinding(normed, value))
        b.emit_func_output(relax.Tuple([normed, total]))
    check_numbers(b.get(), draw_arguments())


@pytest.mark.parametrize("epsilon", [0.0, 1e-45, 1e38, float("inf"), float("nan"), -0.5])
def test_epsilons_that_are_hardly_numbers(epsilon):
    mod = unfused_add_norm(SHAPE, "float32", epsilon)
    zeros = [np.zeros(SHAPE, "float32")] * 2 + [np.ones(64, "float32")]
    check_numbers(mod, draw_arguments(), zeros)


def test_an_epsilon_beyond_float32_is_left_alone():
    mod = unfused_add_norm(SHAPE, "float32", 1e300)
    assert FuseAddRMSNorm(LLVM)(mod).same_as(mod) and FuseAddRMSNorm(CUDA)(mod).same_as(mod)


# --- rows --------------------------------------------------------------------------------------------


LENGTHS = [(h, "float32") for h in (1, 2, 15, 16, 17, 31, 32, 33, 63, 65, 5000, 100003)]
LENGTHS += [(h, dtype) for h in (1, 17, 32, 63, 100003) for dtype in ("float16", "bfloat16")]


@pytest.mark.parametrize(("hidden", "dtype"), LENGTHS)
def test_rows_of_any_length(hidden, dtype):
    assert measure_error(draw_inputs((3, hidden), dtype)) < RELATIVE[dtype]


def measure_error(arrays: list[np.ndarray]) -> float:
    """The largest error of the norm of `arrays`, with a symbolic number of rows, relative to its largest element."""
    mod = unfused_add_norm(("n", arrays[0].shape[-1]), str(arrays[0].dtype))
    normed, total = run(settle(mod, LLVM), arrays)
    exact, rounded = reference(*arrays, 1e-5)
    assert (total == rounded).all()
    return relative_error(normed, exact)


@pytest.mark.parametrize("rows", [1, 9])
def test_rows_longer_than_a_stack(rows):
    """Four megabytes per row; the results of nine rows are stored around the cache."""
    assert measure_error(draw_inputs((rows, 1 << 20), "float32")) < 5e-5


@pytest.mark.parametrize("shape", [("n", 64), ("n", "m", 64), (1, "n", 64)])
def test_no_rows_when_it_runs(shape):
    sizes = [0 if isinstance(extent, str) else extent for extent in shape]
    arrays = [np.zeros(sizes, "float32"), np.zeros(sizes, "float32"), np.ones(64, "float32")]
    for result in run(settle(unfused_add_norm(shape, "float32"), LLVM), arrays):
        assert result.shape == tuple(sizes)


def test_tensors_on_another_device_are_left_alone():
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


READ_BY_A_CLOSURE = """
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
"""
# parameters of unknown shape, known after a match_cast; and a sum that is cast before it is normalized
KNOWN_LATER = """
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
"""


@pytest.mark.parametrize(
    ("text", "calls"),
    [(READ_BY_A_CLOSURE, ["add", "kernel", "nn.rms_norm"]), (KNOWN_LATER, ["kernel", "kernel"])],
    ids=["closure", "known later"],
)
def test_a_written_module(text, calls):
    mod, lifted = relax_module(text), relax.transform.LambdaLift()
    assert [operators(settle(mod, target)) for target in (CUDA, LLVM)] == [calls] * 2
    assert_close(*(run(lifted(one), draw_arguments()) for one in (settle(mod, LLVM), mod)))
