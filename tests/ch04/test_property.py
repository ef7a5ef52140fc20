"""FuseAddRMSNorm on random modules: always well-formed, never raising, and the numbers of NumPy in float64.

A module is drawn from ranks, leading dimensions, hidden sizes, dtypes, epsilons, users of the sums before and after
their norms, blocks and functions; `chapters/checking/relax_modules.py` computes each operator's result beside it.
"""

from __future__ import annotations

import math
from random import Random

import numpy as np
import pytest
import tvm
from hypothesis import note
from hypothesis import strategies as st
from tvm import relax
from tvm.script import tirx as T
from tvm.target import Target

from chapters.ch04_add_rms_norm.check_cases import RELATIVE, draw_inputs, launch, reference
from chapters.checking import expect
from chapters.checking.draws import CHOICES
from chapters.checking.programs import kernels
from chapters.checking.relax_modules import EPSILONS, Module, Value, Writer, write_module
from chapters.kit.cases.example_programs import unfused_add_norm
from chapters.kit.cpu import add_norm_on_cpu
from chapters.kit.gpu.targets import CUDA
from solutions.ch04_add_rms_norm import fuse_add_norm
from solutions.ch04_add_rms_norm.fuse_add_norm import FuseAddRMSNorm, kernel_key
from tests.ch04.test_modules import settle
from tests.support.injected_faults import runs_here
from tests.support.kernels import try_draws

PARTS = range(5)  # each with choices of its own, so that they can run side by side
NUMBER = 5  # of draws in a part


class Pairs(Writer):
    """Emits sums and norms, and uses of sums before and after their norms."""

    OPERATORS = "norm norm norm used_pair used_pair sum sum tanh alias"

    def sum(self) -> Value:
        a = self.pick()
        b = self.pick(a)
        return self.emit(relax.op.add(a.var, b.var), a.exact + b.exact, a)

    def used_pair(self) -> None:
        """A sum and its norm, with a use of the sum between them."""
        total = self.sum()
        self.emit(relax.op.tanh(total.var), np.tanh(total.exact), total)
        self.norm_of(total)

    def tanh(self) -> None:
        a = self.pick()
        self.emit(relax.op.tanh(a.var), np.tanh(a.exact), a)


def draw_functions(choices: Random) -> tuple[tvm.IRModule, dict[str, Module]]:
    """A module of one to three functions, and each by its name as a module of its own."""
    parts = {
        f"f{i}": write_module(choices, Pairs, (8, 1, 7, 32, 33, 96, 100, 256))
        for i in range(choices.randint(1, 3))
    }
    functions = {
        name: relax.utils.copy_with_new_vars(part.mod["main"]).with_attr("global_symbol", name)
        for name, part in parts.items()
    }
    return tvm.IRModule(functions), parts


@pytest.fixture(autouse=True)
def _streams_early(monkeypatch):
    """Let a kernel on the CPU take its three ways at sizes a test can afford."""
    monkeypatch.setattr(add_norm_on_cpu, "ALONE_BYTES", 1 << 9)
    monkeypatch.setattr(add_norm_on_cpu, "STREAM_BYTES", 1 << 12)


def assert_close(yours: np.ndarray, exact: np.ndarray, dtype: str, what: str) -> None:
    assert yours.shape == exact.shape and str(yours.dtype) == str(exact.dtype), what
    scale = max(1.0, float(np.abs(exact.astype("float64")).max(initial=0.0)))
    error = np.abs(yours.astype("float64") - exact.astype("float64")).max(initial=0.0)
    assert error <= 4 * RELATIVE[dtype] * scale, f"{what}: off by {error}"


@pytest.mark.parametrize("part", PARTS)
def test_a_random_module_keeps_its_numbers(part):
    def check(choices: Random) -> None:
        mod, parts = draw_functions(choices)
        note(mod.script())
        settle(mod, CUDA)
        fused = settle(mod, Target("llvm"))
        vm = expect.machine(fused)
        for name, made in parts.items():
            results = expect.call(vm, name, made.arguments)
            for number, (yours, exact) in enumerate(zip(results, made.results, strict=True)):
                assert_close(yours, exact, str(exact.dtype), f"result {number} of {name}")

    try_draws(check, CHOICES, number=NUMBER, part=part)


@T.prim_func(private=True)
def stand_in():
    T.evaluate(0)


def test_the_draw_covers_what_it_is_for(monkeypatch):
    """Fused pairs, kept norms, several kernels in one module: all of them happen among the parts.

    Kernels are only counted here, so one that does nothing stands for each. Building them would take minutes.
    """

    def build(pair, _target):
        return stand_in.with_attr("key", str(kernel_key(pair)))

    monkeypatch.setattr(fuse_add_norm, "build_kernel", build)
    mods: list[tvm.IRModule] = []
    for part in PARTS:
        note_module = lambda choices: mods.append(draw_functions(choices)[0])  # noqa: E731
        try_draws(note_module, CHOICES, number=NUMBER, part=part)
    fused = [FuseAddRMSNorm(CUDA)(mod) for mod in mods]
    counts = [len(kernels(mod)) for mod in fused]
    assert counts.count(0) < len(mods) / 3 and sum(count > 1 for count in counts) > 5
    assert sum("nn.rms_norm" in mod.script() for mod in fused) > 5


CASES = (
    st.lists(st.sampled_from((1, 2, 3)), max_size=3),
    st.sampled_from((8, 1, 33, 100, 257, 1000, 2048)),
    st.sampled_from(("float32", "float16", "bfloat16")),
    st.sampled_from(EPSILONS),
)


@runs_here
@pytest.mark.parametrize("part", PARTS[:3])
def test_a_random_kernel_gives_the_right_numbers_on_cuda(part):
    def check(leading: list[int], hidden: int, dtype: str, epsilon: float) -> None:
        symbolic = [f"n{i}" if n > 1 else 1 for i, n in enumerate(leading)]
        fused = FuseAddRMSNorm(CUDA)(unfused_add_norm((*symbolic, hidden), dtype, epsilon))
        (kernel,) = kernels(fused).values()
        arrays = draw_inputs((*leading, hidden), dtype)
        exact, total = reference(*arrays, epsilon)
        for backwards in (False, True):
            norm, got, launches = launch(kernel, arrays, CUDA, backwards)
            assert_close(norm, exact.astype(norm.dtype), dtype, "norm")
            assert (got == total).all() and len(launches) == 1
            assert launches[0].grid[0] * launches[0].block[1] >= math.prod(leading)

    try_draws(check, *CASES, number=NUMBER, part=part)
