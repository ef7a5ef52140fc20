"""Programs are compiled once, operands hold what they were given, kernels use the physical cores."""

import gc
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import tvm

from chapters.checking import expect
from chapters.kit.bench.operands import in_numpy_memory
from chapters.kit.cases.guard_zones import compile_once, run_compiled
from chapters.kit.cases.relax_text import kernel, relax_module
from chapters.kit.cpu.aligned import ALIGNED
from chapters.kit.machine import physical_cores
from chapters.runner.course import ROOT

# --- programs -------------------------------------------------------------------------------------

KERNEL = kernel("double(x, y)", (3, 4), "y[at] = x[at] * T.float32(2)")


def calls_it(sizes: str) -> tvm.IRModule:
    call = 'R.call_tir(cls.double, (x,), out_ty=R.Tensor((3, 4), "float32"))'
    return relax_module(f"{KERNEL}\ndef main(x: {sizes}):\n    y = {call}\n")


def test_a_size_that_is_not_known_is_compared():
    given = np.ones((3, 4), "float32")
    for sizes in ("(3, 4)", '("n", 4)'):
        assert (expect.run(calls_it(sizes), "main", [given]) == 2).all()
    with pytest.raises(Exception, match=r"(?i)mismatch|expected"):
        expect.run(calls_it('("n", 4)'), "main", [np.ones((2, 4), "float32")])


def test_arguments_are_compared_where_they_are_not_those_declared():
    func = calls_it("(3, 4)")["double"].with_attr("global_symbol", "main")
    given = [np.ones((2, 4), "float32"), np.zeros((3, 4), "float32")]
    with pytest.raises(Exception, match=r"(?i)mismatch|expected"):
        run_compiled(tvm.IRModule({"main": func}), given)


def test_the_same_program_is_compiled_once_and_another_anew():
    def adds(number: float) -> tvm.IRModule:
        return relax_module(f'def main(x: (3,)):\n    y = R.add(x, R.const({number}, "float32"))\n')

    assert compile_once(adds(1.0)) is compile_once(adds(1.0))
    x = np.zeros(3, "float32")
    assert [expect.run(adds(n), "main", [x])[0] for n in (1.0, 2.0, 1.0)] == [1, 2, 1]


# --- operands -------------------------------------------------------------------------------------

DTYPES = "float32", "float16", "bfloat16", "int8", "uint8", "int32"
SHAPES = (3, 5, 7), (1,), (1200, 1000)


@pytest.fixture(scope="module")
def tensors():
    """{(dtype, shape): (tensor, the array it was given)}, after the arrays have changed and the garbage is gone."""
    found = {}
    for dtype in DTYPES:
        for shape in SHAPES:
            array = np.random.default_rng(1).integers(0, 100, shape).astype(dtype)
            found[dtype, shape] = in_numpy_memory(array), array.copy()
            array[...] = 0
    gc.collect()
    return found


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_tensor_holds_the_array(tensors, dtype, shape):
    tensor, before = tensors[dtype, shape]
    assert str(tensor.dtype) == dtype and tuple(tensor.shape) == shape
    given = tensor.numpy()
    assert (given.view("uint8") == before.view("uint8")).all()


def test_its_memory_is_aligned():
    for size in range(1, 200, 7):
        tensor = in_numpy_memory(np.zeros(size, "float32"))
        assert np.from_dlpack(tensor).ctypes.data % ALIGNED == 0


def test_an_array_that_is_not_contiguous_is_copied_in_order():
    array = np.arange(12, dtype="int32").reshape(3, 4).T
    assert (in_numpy_memory(array).numpy() == array).all()


# --- threads --------------------------------------------------------------------------------------

ASK = "import chapters.kit, tvm; print(tvm.runtime.num_threads())"


@pytest.mark.parametrize(("said", "used"), [(None, physical_cores()), ("1", 1)])
def test_threads_of_compiled_kernels(said, used):
    environment = {key: value for key, value in os.environ.items() if key != "TVM_NUM_THREADS"}
    environment |= {"TVM_NUM_THREADS": said} if said else {}
    command = [sys.executable, "-c", ASK]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(used)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="Linux only")
def test_a_process_that_may_use_one_core_has_one():
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert physical_cores() == 1
    finally:
        os.sched_setaffinity(0, allowed)


COUNT = """
import json, os, sys
from pathlib import Path
import numpy as np, tvm
from chapters.kit.chat.attention import attention_kernel
from chapters.kit.chat.cache_layout import cache_shape, rope_table
from chapters.kit.decoder.llama_config import LlamaConfig
from chapters.kit.quantized.weight_blocks import pack
from tests.kit.test_quantized_matmuls import FORMS, QUICK_HERE, schedule_kernel
from tests.support.quantized import draw_quantized, quantized_matmul

def waits():  # how often all threads but this one have gone to sleep
    tasks = [one for one in Path("/proc/self/task").iterdir() if int(one.name) != os.getpid()]
    lines = "".join((one / "status").read_text() for one in tasks).splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("voluntary"))

config = LlamaConfig(576, 1536, 1, 9, 3, 64, 500, 2048)
form, x = FORMS["Q4_1"], np.ones((1, 256), "float32")
sizes = {"small": 256, "large": 1024}
kernels = {name: schedule_kernel(quantized_matmul(form, (1,), n=n, k=256), False) for name, n in sizes.items()}
kernels["attention"] = attention_kernel(config, 1)
made = {name: func.with_attr("global_symbol", name) for name, func in kernels.items()}
built = tvm.compile(tvm.IRModule(made), QUICK_HERE)

def calls(name, *arrays):
    tensors = [one if isinstance(one, int) else tvm.runtime.tensor(one) for one in arrays]
    for _ in range(5):
        built[name](*tensors)
    before = waits()
    for _ in range(20):
        built[name](*tensors)
    return waits() - before

def product(name):
    n = sizes[name]
    return calls(name, *pack(draw_quantized(form, n, 256), form), x, np.zeros((1, n), "float32"))

def attention(position):
    arrays = np.zeros(cache_shape(config), "float32"), np.ones((1, 1, 15 * 64), "float32")
    out = np.zeros((1, 1, 9 * 64), "float32")
    return calls("attention", *arrays, rope_table(config), np.array([position], "int32"), 0, out)

product("large")  # starts the threads
found = {name: product(name) for name in sizes}
print(json.dumps({**found, "short": attention(100), "long": attention(2000)}))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts what Linux counts")
def test_no_thread_is_woken_for_little_work():
    """A thread that has nothing to do sleeps at once here, so it goes to sleep once more each time it was woken."""
    environment = {**os.environ, "TVM_NUM_THREADS": "2", "TVM_THREAD_POOL_SPIN_COUNT": "0"}
    command = [sys.executable, "-c", COUNT]
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, check=True)
    woken = json.loads(done.stdout)
    assert woken["small"] == woken["short"] == 0
    assert woken["large"] >= 10 and woken["long"] >= 10
