"""Reports about other compilers, tried on this one: the program of each is ours. The reference is NumPy in float64."""

import numpy as np
import pytest
import tvm

from chapters.checking.programs import arguments, kernels
from chapters.kit.cases.guard_zones import QUICK_HERE
from chapters.kit.cases.relax_text import relax_module
from chapters.kit.gpu.targets import CUDA
from tests.support.injected_faults import runs_here
from tests.support.kernel_by_kernel import run_on_gpu
from tests.support.kernels import after_phases, compile_main, run_main

RANDOM = np.random.default_rng(19)


def nan_found(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Where the logarithm of a number is not one, the other number, or the number itself, takes its place."""
    with np.errstate(invalid="ignore"):
        a, b = (np.where(array > 0, np.log(array), y) for array in (x, y))
    return a + b  # random numbers: no two logarithms are equal


SQUARE = "x: (7, 7), w: (7, 7), b: (7,)"
EXPERTS = 'w: (5, 24, 32), chosen: (7, "int64"), x: (7, 32, 1)'
CHOSEN = 'out = R.exp(R.matmul(R.take(w, chosen, axis=0, mode="wrap"), x))'
# report: (parameters, statements, what they compute); a symbolic size is 0
REPORTS = {
    "apache/tvm 20194, FuseTIR fails at elements of nested tuples": (
        "x: (4, 6), y: (4, 6)", "t = ((R.exp(x), y), (y, x)); u = t[0]; out = u[0]", lambda x, y: np.exp(x),
    ),
    "apache/tvm 20197, a pass takes vectors for matrices": (
        "x: (16,), y: (16,)", "out = R.tanh(R.matmul(x, R.permute_dims(y)))", lambda x, y: np.tanh(x @ y),
    ),
    "apache/tvm 19578, a sum of no terms is what was in memory": (
        'x: (4, "n")', "y = R.exp(R.sum(x, axis=[1]))", lambda x: np.ones(4),
    ),
    "apache/tvm 19922, a kernel of no elements": (
        "x: (0, 4), w: (8, 4)", "y = R.matmul(x, R.permute_dims(w))", lambda x, w: x @ w.T,
    ),
    "apache/tvm 20190, memory is reused while match_cast's result needs it": (
        SQUARE,
        'a = R.match_cast(R.matmul(x, w), R.Tensor((7, 7), "float32")); '
        "c = R.matmul(x, R.permute_dims(w)); out = R.add(R.matmul(a, w), R.matmul(c, w))",
        lambda x, w, b: (x @ w + x @ w.T) @ w,
    ),
    "microsoft/onnxruntime 32228, a transpose that moves nothing is fused": (
        SQUARE, "out = R.add(R.matmul(x, R.permute_dims(w, axes=[0, 1])), b)", lambda x, w, b: x @ w + b,
    ),
    "openxla/xla 46897, a bias of the rows is added to the columns": (
        SQUARE, "out = R.add(R.matmul(x, R.permute_dims(w)), R.expand_dims(b, axis=[1]))",
        lambda x, w, b: x @ w.T + b[:, None],
    ),
    "openxla/xla 46110, a factor behind the bias scales the product only": (
        SQUARE, "out = R.multiply(R.const(0.25), R.add(R.matmul(x, R.permute_dims(w)), b))",
        lambda x, w, b: (x @ w.T + b) / 4,
    ),
    "microsoft/onnxruntime 25855, a factor of each row becomes a norm's weight": (
        SQUARE, "n = R.nn.rms_norm(R.add(x, w), b, axes=[-1])",
        "out = R.multiply(n, R.expand_dims(b, axis=[1]))",
        lambda x, w, b: b * b[:, None] * (x + w) / np.sqrt(((x + w) ** 2).mean(1, keepdims=True) + 1e-5),
    ),
    "pytorch/pytorch 180956, pooled, then 1617 terms summed": (
        "x: (3, 33, 7, 7)", "y = R.nn.adaptive_avg_pool2d(x, [7, 7])",
        "out = R.sum(R.reshape(y, (3, 1617)), axis=[1])", lambda x: x.sum((1, 2, 3)),
    ),
    "NVlabs/cuda-oxide 123, NaN is found by comparing a number with itself": (
        "x: (4, 6), y: (4, 6)", "n = R.log(x)", "a = R.where(R.not_equal(n, n), y, n)",
        "m = R.log(y)", "b = R.where(R.equal(m, m), m, y)",
        "out = R.where(R.not_equal(n, m), R.add(a, b), R.multiply(b, b))", lambda x, y: nan_found(x, y),
    ),
    "experts in a batch: the product copies a matrix for each choice": (
        EXPERTS, CHOSEN, lambda w, chosen, x: np.exp(w[chosen] @ x),
    ),
}  # fmt: skip


def module(parameters: str, *statements: str) -> tvm.IRModule:
    lines = "; ".join(statements).replace("; ", "\n    ")
    return relax_module(f"def main({parameters}):\n    {lines}")


@pytest.mark.parametrize("report", REPORTS)
def test_a_report(report):
    *text, expected = REPORTS[report]
    mod = module(*text)
    # indices count from the end too; `arguments` draws none that are negative
    arrays = [
        RANDOM.integers(-5, 5, a.shape).astype(a.dtype) if a.dtype.kind == "i" else a
        for a in arguments(mod["main"], sizes=(0,))
    ]
    poison = [np.full(99, np.nan, "float32")]  # in the memory that is used next
    run_main(module("x: (99,)", "y = R.add(x, x)"), *poison, pipeline="default")
    exact = expected(*[a.astype("float64") if a.dtype == "float32" else a for a in arrays])
    np.testing.assert_allclose(run_main(mod, *arrays), exact, rtol=1e-5, atol=1e-5)


def test_no_matrix_is_copied_for_a_chosen_expert():
    """Mixtral and Qwen2-MoE with batched experts ran at a fifth of torch.compile's speed."""
    mod = after_phases(module(EXPERTS, CHOSEN), QUICK_HERE, "graph and lower")
    found = kernels(mod).values()
    sizes = [int(np.prod(buffer.shape)) for func in found for buffer in func.params]
    assert max(sizes) == 5 * 24 * 32


@runs_here
def test_the_largest_of_negative_bytes_on_a_gpu():
    """pytorch/pytorch 191499: it is 0, with which vectors begin."""
    x = RANDOM.integers(-100, -1, (3, 37)).astype("int8")
    mod = module('x: (3, 37, "int8")', "out = R.max(x, axis=[1])")
    np.testing.assert_array_equal(run_main(mod, x), x.max(1))
    np.testing.assert_array_equal(run_on_gpu(mod, x, target=CUDA), x.max(1))


BRANCH = """
def main(x: (3,), b: R.Tensor((), "bool")):
    if b:
        c = R.const(C)
    else:
        c = R.exp(x)
    return c
"""
INNER = """
@private
def inner(x: (3,)):
    out = R.const(C)

def main(x: (3,)):
    out = cls.inner(x)
"""
RETURNED = {  # what main returns
    "a constant": "def main(x: (3,)):\n    out = R.const(C)",
    "what is folded to one": "def main(x: (3,)):\n    out = R.exp(R.const(C))",
    "one in tuples": "def main(x: (3,)):\n    c = R.const(C)\n    out = (x, (c, R.exp(x)))",
    "one of a branch": BRANCH,
    "one of another function": INNER,
}


@pytest.mark.parametrize("program", RETURNED.values(), ids=list(RETURNED))
def test_a_caller_may_overwrite_a_returned_constant(program):
    """After pytorch/TensorRT 4466, where an engine's output shares memory with a weight."""
    mod = relax_module(program, C=np.ones(3, "float32"))
    main = compile_main(mod)
    given = [np.zeros(3, "float32"), np.array(True)][: len(mod["main"].params)]

    def results() -> list[tvm.runtime.Tensor]:
        found, left = [], [main(*given)]
        while left:
            one = left.pop()
            if isinstance(one, tvm.runtime.Tensor):
                found.append(one)
            else:
                left += list(one)
        return found

    before = [one.numpy() for one in results()]
    for one in results():
        one.copyfrom(np.full(3, 7, "float32"))
    for again, expected in zip(results(), before, strict=True):
        np.testing.assert_array_equal(again.numpy(), expected)
