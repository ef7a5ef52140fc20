"""Programs that this repository did not choose, for a GPU: each kernel gives the numbers that it gives on a CPU.

The generated CUDA is executed without a GPU, which also finds races and accesses out of bounds. The first programs are
those that a real GPU computed wrongly, or that were not compiled for it.
"""

import random

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import tirx
from tvm.s_tir import SBlockRealize
from tvm.sym import Analyzer

from chapters.checking.programs import kernels
from chapters.checking.relax_modules import HIDDEN, Writer, write_module
from chapters.kit.cases.guard_zones import QUICK
from chapters.kit.cases.relax_text import relax_module
from chapters.kit.emulator.cuda_on_cpu import CudaOnCpu
from chapters.kit.gpu.launches import HostProgram
from chapters.kit.gpu.targets import DLIGHT_CUDA as CUDA
from chapters.kit.ir.tensor_ir import substitute, variables_of, with_fields
from tests.support.injected_faults import runs_here
from tests.support.kernels import after_phases

pytestmark = runs_here

UPDATE = """
@T.prim_func(private=True, s_tir=True)
def twice(x: T.Buffer((3, 5), "float32")):
    for i, j in T.grid(3, 5):
        with T.sblock("twice"):
            vi, vj = T.axis.remap("SS", [i, j])
            x[vi, vj] = x[vi, vj] * T.float32(2)

def main(x: (3, 5)):
    y = R.exp(x)
    out = R.call_tir_inplace(cls.twice, (y,), 0, R.Tensor((3, 5), "float32"))
"""
HALVES = 'x: (3, 1, "float16"), w: (1, "float16")'
PROGRAMS = {
    "rows of one element": f"def main({HALVES}):\n    out = R.nn.rms_norm(x, w, axes=[-1])",
    "sums of fewer terms than a warp has lanes": "def main(x: (7, 24)):\n    out = R.sum(x, axis=[1])",
    "a product of few terms": "def main(x: (3, 5), w: (9, 5)):\n    out = R.matmul(x, R.permute_dims(w))",
    "a product in half precision of one term": (
        'def main(x: (3, 1, "float16"), w: (1, 1, "float16")):\n    out = R.matmul(x, R.permute_dims(w))'
    ),
    "an update in place": UPDATE,
    "experts in a batch": (
        'def main(w: (5, 24, 32), chosen: (7, "int64"), x: (7, 32, 1)):\n'
        '    out = R.exp(R.matmul(R.take(w, chosen, axis=0, mode="wrap"), x))'
    ),
    "no elements": "def main(x: (0, 4), w: (8, 4)):\n    y = R.matmul(x, R.permute_dims(w))",
    "a vector's softmax": 'def main(x: (33, "bfloat16")):\n    out = R.nn.softmax(R.tanh(x))',
}
DRAWN = range(24)
# of the largest number: some roundings of the dtype
TOLERANCE = {"float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}
SIZES = {"n": 3, "b": 2}


def size_of(extent: tvm.ir.Expr) -> int:
    known = {var: tirx.IntImm(var.ty.dtype, SIZES[var.name]) for var in variables_of(extent)}
    return int(Analyzer().simplify(substitute(extent, known)))


def draw_array(buffer: tirx.Buffer, rng: np.random.Generator) -> np.ndarray:
    shape, dtype = [size_of(n) for n in buffer.shape], str(buffer.dtype)
    numbers = rng.standard_normal(shape) if "float" in dtype else rng.integers(0, 2, shape)
    return numbers.astype(getattr(ml_dtypes, dtype, dtype))


def with_buffers_between_launches(func: tirx.PrimFunc) -> tuple[tirx.PrimFunc, list[tirx.Buffer]]:
    """`func` with its buffers in the GPU's memory as parameters, because no GPU is there to allocate them."""
    if not isinstance(func.body, SBlockRealize):
        return func, []
    root = func.body.block
    between = [one for one in root.alloc_buffers if one.scope() == "global"]
    own = [one for one in root.alloc_buffers if one.scope() != "global"]
    block = with_fields(root, alloc_buffers=own)
    body = SBlockRealize(func.body.iter_values, func.body.predicate, block)
    return tirx.PrimFunc([*func.params, *between], body, func.ret_type, func.attrs), between


def assert_same_numbers(name: str, plain: tirx.PrimFunc, on_gpu: tirx.PrimFunc) -> None:
    rng = np.random.default_rng(7)
    arrays = [draw_array(param, rng) for param in plain.params]
    expected = [tvm.runtime.tensor(array) for array in arrays]
    mod = tvm.IRModule({"main": plain.with_attr("global_symbol", "main")})
    tvm.compile(mod, QUICK)["main"](*expected)
    on_gpu, between = with_buffers_between_launches(on_gpu)
    poisoned = [np.full_like(draw_array(one, rng), np.nan) for one in between]
    HostProgram(on_gpu, CUDA).run(CudaOnCpu(), [*arrays, *poisoned])
    tolerance = max(TOLERANCE.get(str(array.dtype), 0) for array in arrays)
    for found, exact in zip(arrays, expected, strict=True):
        numbers = exact.numpy().astype("float64")
        near = tolerance * max(1.0, np.abs(numbers[np.isfinite(numbers)]).max(initial=0))
        np.testing.assert_allclose(
            found.astype("float64"), numbers, rtol=tolerance, atol=near, err_msg=f"{name}\n{plain}"
        )


def kernels_of(mod: tvm.IRModule) -> dict[str, tuple[tirx.PrimFunc, tirx.PrimFunc]]:
    """The kernels of `mod` whose parameters are buffers, without and with a schedule for a GPU."""
    lowered = after_phases(mod, CUDA, "graph and lower")
    on_gpu = kernels(after_phases(lowered, CUDA, "schedule"))
    return {
        name: (func, on_gpu[name])
        for name, func in kernels(lowered).items()
        if name in on_gpu
        and "tirx.is_scheduled" not in (func.attrs or {})
        and all(map(tirx.is_buffer_var, func.params))
    }


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=list(PROGRAMS))
def test_a_program(program):
    found = kernels_of(relax_module(program))
    assert found
    for name, pair in found.items():
        assert_same_numbers(name, *pair)


def test_drawn_programs():
    """One kernel per operator and dtypes, because g++ takes half a second for each."""
    seen = set()
    for seed in DRAWN:
        for name, pair in kernels_of(write_module(random.Random(seed), Writer, HIDDEN).mod).items():
            kind = name.rstrip("0123456789"), *(str(param.dtype) for param in pair[0].params)
            if kind not in seen:
                seen.add(kind)
                assert_same_numbers(f"{seed}: {name}", *pair)
    assert len(seen) > 40
