"""The compiled decoder as a whole: its kernels for two targets, and its GPU code executed without a GPU.

tests/kit/test_llama.py compares its tokens on a CPU.
"""

from __future__ import annotations

import dataclasses
import os

import numpy as np
import pytest
import tvm
from tvm import te, tirx
from tvm.s_tir import dlight as dl
from tvm.target import Target

from chapters.ch09_the_compiler.check_queries import uses_tensor_cores
from chapters.kit.cases.guard_zones import QUICK
from chapters.kit.decoder import llama_reference
from chapters.kit.decoder.llama import decoder
from chapters.kit.decoder.llama_config import CONFIGS, LlamaConfig
from chapters.kit.decoder.llama_generator import Generator, random_weights
from chapters.kit.emulator.cuda_on_cpu import CudaOnCpu
from chapters.kit.gpu.launches import HostProgram
from chapters.kit.gpu.targets import DLIGHT_CUDA as CUDA
from chapters.kit.schedules.gemv_within_bounds import GEMVWithinBounds
from solutions.ch09_the_compiler.pipeline import fusion_pipeline
from tests.support.injected_faults import every_order, runs_here
from tests.support.kernel_by_kernel import KernelByKernel
from tests.support.kernels import after_phases, draw, relative_error

PROMPT = [3, 1, 4, 1, 5]
N = tirx.Var("n", "int64")


def facts_of(config: LlamaConfig, window: int) -> dict:
    """What the caller of the pipeline knows of a decoder."""
    return {
        "variable_bounds": {"seq_len": window, "context_window": window},
        "metadata": {"vocab_size": config.vocab_size},
    }


# with its true shapes; each further layer would only repeat the third
LLAMA3 = dataclasses.replace(CONFIGS["llama3-8b"], num_hidden_layers=3)


@pytest.mark.parametrize(
    ("target", "dtype"), [(QUICK, "float32"), (CUDA, "float16")], ids=["llvm", "cuda"]
)
def test_llama3_compiles(target, dtype):
    mod, _ = decoder(LLAMA3, dtype, ("prefill", "decode", "batch_decode"))
    pipeline = fusion_pipeline(target, **facts_of(LLAMA3, 8192))
    executable = tvm.compile(mod, target, relax_pipeline=pipeline)
    if target is CUDA:
        text = executable.mod.imports[0].imports[0].inspect_source()
        assert text.count('extern "C" __global__') >= 20
        assert "mma.sync" in text and "__shfl_xor_sync" in text  # of many rows, of a few
    else:
        assert "decode" in executable.as_text()


@runs_here
def test_gpu_code_of_the_decoder_gives_the_tokens_of_float64():
    """A prefill and a decode step in float16: each kernel is the generated CUDA, run in many orders of its threads.

    FUSION_GPU_TOKENS: how many tokens, in one order; 64 take some minutes.
    """
    steps = int(os.environ.get("FUSION_GPU_TOKENS", "2"))
    prompt = np.asarray((PROMPT * 2)[:9], "int32")  # more rows than the kernels for few rows take
    window = len(prompt) + steps
    config = LlamaConfig(64, 96, 1, 4, 2, 16, 72, window)
    mod, parameters = decoder(config, "float16", ["embed", "prefill", "decode"])
    weights = random_weights(config, "float16")
    packed = tuple(weights[name] for name, _, _ in parameters)
    engine = CudaOnCpu() if "FUSION_GPU_TOKENS" in os.environ else every_order
    run = KernelByKernel(after_phases(mod, CUDA, **facts_of(config, window)), CUDA, engine)
    cache = np.full((1, 2, 1, window, 2, 16), np.nan, "float16")
    x = run.run("embed", prompt, packed)
    logits, cache = run.run("prefill", x[None], np.zeros(1, "int32"), cache, packed)
    found = [logits[0, 0]]
    for step in range(steps - 1):
        x = run.run("embed", np.asarray([found[-1].argmax()], "int32"), packed)
        position = np.asarray([len(prompt) + step], "int32")
        logits, cache = run.run("decode", x[None], position, cache, packed)
        found.append(logits[0, 0])
    tokens, exact = llama_reference.generate(config, weights, prompt, steps)
    assert relative_error(np.stack(found), exact) < 5e-3
    assert np.argmax(found, axis=-1).tolist() == tokens.tolist()
    # the head has 72 columns, which no tile divides, and the products of a decode step have one row
    assert sum(uses_tensor_cores(run.mod[name]) for name in run.programs) == 4


@pytest.mark.skipif(not tvm.cuda(0).exist, reason="there is no CUDA device")
def test_tokens_on_a_gpu_are_those_of_float64():
    target, config = Target.from_device(tvm.cuda(0)), CONFIGS["tiny"]
    pipeline = fusion_pipeline(target, **facts_of(config, 80))
    settings = {"target": target, "relax_pipeline": pipeline, "context_window": 80}
    weights = random_weights("tiny", "float16")
    found = Generator(config, "float16", weights=weights, **settings).generate(PROMPT, 64)
    tokens, logits = llama_reference.generate(config, weights, PROMPT, 64)
    # later logits follow the tokens
    same = int(np.argmin(np.append(found.tokens == tokens, False)))
    assert same >= 8
    assert relative_error(found.logits[:same], logits[:same]) < 1e-2


def head_module(rows: int) -> tvm.IRModule:
    """A matrix of `rows` rows times one vector."""
    w, x = te.placeholder((rows, 64), "float32", "w"), te.placeholder((1, 64), "float32", "x")
    k = te.reduce_axis((0, 64), name="k")
    out = te.compute((1, rows), lambda i, j: te.sum(x[i, k] * w[j, k], axis=k), name="out")
    return tvm.IRModule({"main": te.create_prim_func([w, x, out])})


@runs_here
@pytest.mark.parametrize("rows", [64, 72])
def test_gemv_within_bounds_is_right(rows):
    with CUDA:
        mod = dl.ApplyDefaultSchedule(GEMVWithinBounds(), dl.gpu.Reduction())(head_module(rows))
    w, x = draw((rows, 64), (1, 64))
    out = np.full((1, rows), np.nan, "float32")
    HostProgram(mod["main"], CUDA).run(CudaOnCpu(), [w, x, out])
    assert np.abs(out - x.astype("float64") @ w.T).max() < 1e-4


def test_gemv_within_bounds_takes_what_fills_its_blocks():
    with CUDA:
        assert GEMVWithinBounds().apply(head_module(64)["main"], CUDA, False) is not None
        assert GEMVWithinBounds().apply(head_module(72)["main"], CUDA, False) is None


def test_kernel_by_kernel_wants_kernels():
    mod, parameters = decoder("tiny", "float16", ["embed"])
    weights = random_weights("tiny", "float16")
    run = KernelByKernel(mod, CUDA, CudaOnCpu())
    with pytest.raises(ValueError, match="no call of a kernel"):
        run.run("embed", np.zeros(3, "int32"), tuple(weights[name] for name, _, _ in parameters))
