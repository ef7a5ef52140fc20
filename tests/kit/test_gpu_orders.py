"""Every GPU kernel of the course, in ten random orders of its threads: none is refused or changes the numbers."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import tirx
from tvm.tirx import IntImm, Var

from chapters.ch04_add_rms_norm.check_cases import inputs
from chapters.ch04_add_rms_norm.given import Plan, wide_kernel
from chapters.ch08_gpu_targets import thread_schedule as by_threads
from chapters.checking.gpu_kernels import arrays, exact
from chapters.checking.programs import poison
from chapters.kit.decoder.llama import decoder
from chapters.kit.decoder.llama_config import LlamaConfig
from chapters.kit.decoder.llama_generator import random_weights
from chapters.kit.gpu.call import ASYNCHRONOUS
from chapters.kit.gpu.gpu_matmul import matmul_bias
from chapters.kit.gpu.launches import HostProgram, LaunchError
from chapters.kit.gpu.mma import MmaTile, mma_matmul
from chapters.kit.gpu.targets import CUDA, DLIGHT_CUDA
from chapters.kit.gpu.wgmma import wgmma_matmul
from chapters.kit.gpu.wgmma_tile import WgmmaTile
from chapters.kit.ir.row_index import row_dimensions
from chapters.kit.pipeline.kernel_by_kernel import KernelByKernel
from chapters.kit.quantized.blocks import pack
from solutions.ch04_add_rms_norm.fuse_add_norm import row_kernel
from solutions.ch08_gpu_targets import gpu_schedules as ch8
from tests.ch09.test_compiler import as_kernels, facts_of
from tests.kit import test_coded_on_gpu as coded
from tests.support.orders import EveryOrder
from tests.support.planted_faults import run_text, runs_here

pytestmark = runs_here
TILE = ch8.ThreadTile(16, 32, 8, 2, 4, vector=2)
SIZE = (32, 64, 24)


def _layer(func: tirx.PrimFunc, size: tuple, dtype: str = "float16") -> None:
    given = arrays(*size, dtype)
    HostProgram(func, CUDA, ASYNCHRONOUS).run(EveryOrder(), given)
    assert np.abs(given[3] - exact(*given[:3])).max() < 1e-3


LAYERS = {
    "naive": (
        lambda: by_threads.naive_matmul(matmul_bias(*SIZE), ch8.ThreadTile(8, 8, 8, 1, 1)),
        SIZE,
    ),
    "shared": (lambda: by_threads.shared_matmul(matmul_bias(*SIZE), TILE), SIZE),
    "pipelined": (lambda: by_threads.pipelined_matmul(matmul_bias(*SIZE), TILE), SIZE),
    "one row": (lambda: ch8.decode_matmul(16, 256, "float16"), (1, 16, 256)),
    "tensor cores": (lambda: ch8.tensor_core_matmul(matmul_bias(64, 64, 64)), (64, 64, 64)),
    "tensor cores, copies in flight": (
        lambda: ch8.tensor_core_matmul(matmul_bias(64, 64, 96), overlap=True),
        (64, 64, 96),
    ),
    "mma.sync": (
        lambda: mma_matmul(20, 64, 160, "float16", tile=MmaTile(16, 64, 32, 16, 32, 3)),
        (20, 64, 160),
    ),
    "wgmma": (
        lambda: wgmma_matmul(70, 24, 200, "float16", "float32", WgmmaTile(64, 16, 2), 2),
        (70, 24, 200),
    ),
}


@pytest.mark.parametrize("name", list(LAYERS))
def test_linear_layers_of_chapter_8(name):
    make, size = LAYERS[name]
    _layer(make(), size)


@pytest.mark.parametrize("plan", [None, (32, 8, 1), (64, 4, 2)], ids=str)
def test_norms_of_chapter_4(plan):
    rows, length = 3, 200
    dims = row_dimensions([Var("n", "int64"), IntImm("int64", length)])
    make = (dims, length, "float16", 1e-5)
    func = wide_kernel(*make, Plan(*plan)) if plan else row_kernel(*make, 64)
    given = inputs((rows, length), "float16")
    results = [poison(given[0]), poison(given[0])]
    HostProgram(func, CUDA).run(EveryOrder(), [*given, *results])
    assert (results[1] == given[0] + given[1]).all()


@pytest.mark.parametrize("rows", [1, 5, 33])
@pytest.mark.parametrize("kind", ["Q4_1", "Q4_1, 1 lane"])
def test_products_of_chapter_11(kind, rows):
    form = coded.FORMS[kind]
    mod, names = coded.layer(form, "seq_len" if rows == 33 else rows, DLIGHT_CUDA)
    sizes = {
        "gate_up_proj.parts.0": (96, 64),
        "gate_up_proj.parts.1": (96, 64),
        "down_proj.parts.0": (64, 96),
    }
    codes = {name: coded.random_codes(form, *size) for name, size in sizes.items()}
    packed = {name: pack(one, form) for name, one in codes.items()}
    parts = "codes", "scales"
    weights = [packed[n.rpartition(".")[0]][parts.index(n.rpartition(".")[2])] for n in names]
    x = coded.normal(1, rows, 64)
    found = coded.run_layer(mod, x, weights, DLIGHT_CUDA, EveryOrder())
    coded.close(found, coded.expected(x, *codes.values()))


def test_kernels_of_chapter_9_s_pipeline():
    """Every kernel of a decoder's prefill and of one step of decoding."""
    prompt = np.asarray(
        [3, 1, 4, 1, 5, 3, 1, 4, 1], "int32"
    )  # more rows than the kernels for few rows take
    window = len(prompt) + 3  # as in a test of chapter 9, which compiles the same kernels
    config = LlamaConfig(64, 96, 1, 4, 2, 16, 72, window)
    mod, parameters = decoder(config, "float16", ["embed", "prefill", "decode"])
    weights = random_weights(config, "float16")
    packed = tuple(weights[name] for name, _, _ in parameters)
    mod = as_kernels(mod, DLIGHT_CUDA, **facts_of(config, window))
    engine = EveryOrder()
    run = KernelByKernel(mod, DLIGHT_CUDA, engine)
    cache = np.full((1, 2, 1, window, 2, 16), np.nan, "float16")
    x = run.run("embed", prompt, packed)
    _, cache = run.run("prefill", x[None], np.zeros(1, "int32"), cache, packed)
    x = run.run("embed", prompt[:1], packed)
    logits, _ = run.run("decode", x[None], np.asarray([len(prompt)], "int32"), cache, packed)
    assert np.isfinite(logits).all()
    assert len(engine.launched) > 20


def test_an_order_that_changes_the_numbers_is_reported_with_its_seed():
    body = "if (atomicAdd(&(out_ptr[1]), 1.0f) == 0) out_ptr[0] = threadIdx.x;"
    with pytest.raises(LaunchError, match=r"main_kernel gives other numbers .* of seed \d+"):
        run_text(body, 64, engine=EveryOrder(), out=np.zeros(2, "float32"))
