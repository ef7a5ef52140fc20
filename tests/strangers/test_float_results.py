"""Fused kernels round where the program rounds, and have one operation per operator.

After apache/tvm issues 19503 and 11373: fused, `x + 12582912 - 12582912` was x, and `y - y` was 0 for an infinite y.
And after chains of silu, which uses a value twice: fused, they doubled with each operator.
"""

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.s_tir import SBlock
from tvm.target import Target

from chapters.checking.programs import kernels
from chapters.kit.gpu.targets import DLIGHT_CUDA
from chapters.kit.ir.tensor_ir import nodes
from chapters.kit.schedules.merge_elementwise import MOST
from solutions.ch07_when_fusion_is_sound.soundness import fuse_epilogue
from tests.support.injected_faults import runs_here
from tests.support.kernel_by_kernel import run_on_gpu
from tests.support.kernels import after_phases, run_main

ROUNDS = {"float32": 1.5 * 2**23, "float64": 1.5 * 2**52}
LARGEST = {"float32": 3e38, "float64": 1e308}
LLVM = Target("llvm")  # without FMA, so that every difference is one of the program's operations
R = relax.op


class Program:
    """Builds one Relax function: each call of a method of relax.op becomes a binding."""

    def __init__(self, formula, shapes, dtype):
        self.dtype, self.builder = dtype, relax.BlockBuilder()
        arguments = [relax.Var(f"x{at}", relax.TensorType(s, dtype)) for at, s in enumerate(shapes)]
        with self.builder.function("main", arguments):
            with self.builder.dataflow():
                result = self.builder.emit_output(formula(self, *arguments))
            self.builder.emit_func_output(result)
        self.mod = self.builder.get()

    def __getattr__(self, name):
        operator = getattr(R, name)
        return lambda *args, **kw: self.builder.emit(operator(*map(self._tensor, args), **kw))

    def _tensor(self, value):
        return relax.const(value, self.dtype) if isinstance(value, float) else value


def up_and_down(p, x, times=1.0):
    """Rounds to integers: the sum has no bit left for less than 1."""
    by = times * ROUNDS[p.dtype]
    return p.subtract(p.add(x, by), by)


def down_and_up(p, x):
    by = ROUNDS[p.dtype]
    return p.add(p.subtract(x, by), by)


def half_lost(p, x):
    return p.subtract(p.add(p.add(x, 2048.0), 0.5), 2048.0)


def error_of_sum(p, a, b):
    total = p.add(a, b)
    rounded = p.subtract(total, a)
    return p.add(p.subtract(a, p.subtract(total, rounded)), p.subtract(b, rounded))


def infinite(p, x):
    y = p.multiply(p.multiply(x, LARGEST[p.dtype]), LARGEST[p.dtype])
    return p.subtract(y, y)


def is_nan(p, x):
    y = p.multiply(infinite(p, x), x)
    return p.astype(p.not_equal(y, y), p.dtype)


def product(p, x, w):
    return p.matmul(x, p.permute_dims(w))


ELEMENTWISE = [(up_and_down, 1), (down_and_up, 1), (error_of_sum, 2), (infinite, 1)]


def draw_arrays(shapes, dtype, all_bits=False):
    """Arrays; unless `all_bits`, of a few bits each, so that the order of a sum of products does not matter."""
    rng = np.random.default_rng(1)
    if all_bits:
        return [rng.standard_normal(shape).astype(dtype) for shape in shapes]
    return [(rng.integers(-64, 64, shape) / 32).astype(dtype) for shape in shapes]


def fused_and_unfused(mod, arrays):
    return [run_main(mod, *arrays, target=LLVM, pipeline=one) for one in (None, "default_build")]


def assert_fused_is_unfused(formula, shapes, dtype="float32", all_bits=False):
    mod, arrays = Program(formula, shapes, dtype).mod, draw_arrays(shapes, dtype, all_bits)
    np.testing.assert_array_equal(*fused_and_unfused(mod, arrays))


@pytest.mark.parametrize(("formula", "count"), ELEMENTWISE)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_elementwise(formula, count, dtype):
    assert_fused_is_unfused(formula, [(6, 32)] * count, dtype, all_bits=True)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_nan_is_not_equal_to_itself(dtype):
    """TVM's default pipeline says that it is."""
    mod, arrays = (
        Program(is_nan, [(6, 32)], dtype).mod,
        draw_arrays([(6, 32)], dtype, all_bits=True),
    )
    found = run_main(mod, *arrays, target=LLVM)
    np.testing.assert_array_equal(found, np.ones((6, 32), dtype))


def test_float16_loses_what_it_cannot_hold():
    assert_fused_is_unfused(half_lost, [(6, 32)], "float16")
    assert_fused_is_unfused(error_of_sum, [(6, 32)] * 2, "float16", all_bits=True)


@pytest.mark.parametrize("rows", [1, 7, 16])
def test_behind_a_product(rows):
    shapes = [(rows, 64), (33, 64)]
    assert_fused_is_unfused(lambda p, x, w: up_and_down(p, product(p, x, w)), shapes)
    assert_fused_is_unfused(lambda p, x, w: infinite(p, product(p, x, w)), shapes)
    assert_fused_is_unfused(lambda p, x, w: error_of_sum(p, product(p, x, w), 3.1), shapes)


def test_before_and_behind_a_batched_product():
    shapes = [(3, 16, 64), (3, 64, 32)]
    assert_fused_is_unfused(lambda p, x, y: up_and_down(p, p.matmul(x, y)), shapes)
    assert_fused_is_unfused(lambda p, x, y: p.matmul(up_and_down(p, x), y), shapes)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("times", [1.0, 2.0])
def test_before_and_behind_a_sum(axis, times):
    shapes = [(8, 64)]
    assert_fused_is_unfused(lambda p, x: p.sum(up_and_down(p, x, times), axis=[axis]), shapes)
    assert_fused_is_unfused(lambda p, x: up_and_down(p, p.sum(x, axis=[axis]), times), shapes)


def test_two_addends_of_a_sum_do_not_meet_in_its_init():
    args = [tvm.te.placeholder((4, 8), "float32", "x")]
    k = tvm.te.reduce_axis((0, 8), "k")
    total = tvm.te.compute((4,), lambda i: tvm.te.sum(args[0][i, k], axis=k), "total")
    up = tvm.te.compute((4,), lambda i: total[i] + tirx.const(12582912, "float32"), "up")
    down = tvm.te.compute((4,), lambda i: up[i] - tirx.const(12582912, "float32"), "down")
    sch = tvm.s_tir.Schedule(tvm.te.create_prim_func([*args, down]))
    assert fuse_epilogue(sch, "total", "up").how == "init"
    assert fuse_epilogue(sch, "total", "down").how == "last step"


# --- GPU code -------------------------------------------------------------------------------------


@runs_here
def test_gpu_code():
    (x,) = draw_arrays([(6, 32)], "float32")
    a, b = draw_arrays([(16, 64), (32, 64)], "float32")
    with np.errstate(invalid="ignore", over="ignore"):
        y = x * np.float32(3e38) * np.float32(3e38)
        nan = y - y
    for formula, arrays, expected in (
        (up_and_down, [x], np.rint(x)),
        (infinite, [x], nan),
        (lambda p, x, w: up_and_down(p, product(p, x, w)), [a, b], np.rint(a @ b.T)),
    ):
        mod = Program(formula, [one.shape for one in arrays], "float32").mod
        np.testing.assert_array_equal(run_on_gpu(mod, *arrays), expected)


# --- chains ---------------------------------------------------------------------------------------


def chain(step, times):
    def formula(p, x):
        y = x
        for _ in range(times):
            y = step(p, x, y)
        return y

    return formula


def neuron(p, x, mem):
    mem = p.add(p.multiply(mem, 0.875), x)
    return p.subtract(mem, p.astype(p.greater(mem, 1.0), p.dtype))


def silu(p, _x, y):
    return p.multiply(y, p.sigmoid(y))


def cell(p, x, h):
    z = p.sigmoid(p.add(x, h))
    return p.add(p.multiply(z, h), p.multiply(p.subtract(1.0, z), p.tanh(p.subtract(x, h))))


def neighbours(p, _x, y):
    turned = p.concat([p.strided_slice(y, [1], [16], [32]), p.strided_slice(y, [1], [0], [16])], 1)
    return p.add(p.multiply(y, 0.5), p.multiply(turned, 0.25))


def lower_chain(step, times, target):
    return after_phases(Program(chain(step, times), [(6, 32)], "float32").mod, target)


def count_expressions(mod):
    return sum(len(nodes(func.body, tvm.ir.Expr)) for func in kernels(mod).values())


STEPS = [(silu, 100), (neuron, 25), (cell, 20), (neighbours, 20)]


# not `neighbours` on a GPU: its blocks read a value at two places, and dlight's own rules inline them
ON = [(LLVM, *one) for one in STEPS] + [(DLIGHT_CUDA, *one) for one in STEPS[:-1]]


@pytest.mark.parametrize(("target", "step", "times"), ON)
def test_kernels_grow_with_the_length_of_a_chain(target, step, times):
    one = count_expressions(lower_chain(step, 1, target))
    # one that doubles with each step ends at 8, before it takes minutes
    for length in (4, 8, times):
        assert count_expressions(lower_chain(step, length, target)) <= 4 * length * one


def test_a_long_chain_becomes_blocks_of_bounded_size():
    """Each operator that is inlined reads the block that it enters, so its size decides the time to compile."""
    mod = lower_chain(silu, 100, LLVM)
    (func,) = kernels(mod).values()
    blocks = nodes(func.body, SBlock)[:-1]  # without the root
    stores = [len(nodes(block, tirx.BufferStore)) for block in blocks]
    assert max(stores) <= MOST + 1 and len(blocks) <= 9


@pytest.mark.parametrize(("step", "times"), STEPS)
def test_a_chain_compiles_and_is_right(step, times):
    mod, arrays = (
        Program(chain(step, times), [(6, 32)], "float32").mod,
        draw_arrays([(6, 32)], "float32"),
    )
    np.testing.assert_allclose(*fused_and_unfused(mod, arrays), rtol=1e-4, atol=1e-5)
