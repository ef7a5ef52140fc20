"""The compiled decoder as a whole: its tokens, its kernels for two targets, and its GPU code executed without a GPU."""

from __future__ import annotations

import dataclasses
import os

import numpy as np
import pytest
import tvm
from tvm import relax, te, tirx
from tvm.s_tir import dlight as dl
from tvm.script import tirx as T
from tvm.target import Target

from chapters.ch09_the_compiler.check_queries import has_loop, uses_tensor_cores
from chapters.kit.cases.guard_zones import QUICK, QUICK_HERE, run_compiled
from chapters.kit.cases.relax_text import relax_module
from chapters.kit.decoder import llama_reference
from chapters.kit.decoder.llama import decoder
from chapters.kit.decoder.llama_config import CONFIGS, LlamaConfig
from chapters.kit.decoder.llama_generator import Generator, random_weights
from chapters.kit.emulator.cuda_on_cpu import CudaOnCpu, missing
from chapters.kit.gpu.launches import HostProgram
from chapters.kit.gpu.targets import DLIGHT_CUDA as CUDA
from chapters.kit.ir.tensor_ir import nodes
from chapters.kit.schedules.apply_cpu_fallback import ApplyCPUFallback, schedule_any
from chapters.kit.schedules.gemv_within_bounds import GEMVWithinBounds
from chapters.kit.schedules.reduction_once import ReductionOnce, repeats_reduction
from chapters.kit.schedules.run_small_kernels_serially import RunSmallKernelsSerially
from solutions.ch09_the_compiler.pipeline import fusion_pipeline
from tests.support.compile_and_run import after_phases, draw, run_main
from tests.support.kernel_by_kernel import KernelByKernel
from tests.support.orders import every_order

PROMPT = [3, 1, 4, 1, 5]
N = tirx.Var("n", "int64")


def facts_of(config: LlamaConfig, window: int) -> dict:
    """What the caller of the pipeline knows of a decoder."""
    return {
        "variable_bounds": {"seq_len": window, "context_window": window},
        "metadata": {"vocab_size": config.vocab_size},
    }


def run_kernel(func: tirx.PrimFunc, *arrays: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """What `func`, compiled for llvm, makes of `arrays`: its last buffer, in float32, of `shape`."""
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    return run_compiled(mod, [*arrays, np.full(shape, np.nan, "float32")])[-1]


def relative_error(logits: np.ndarray, exact: np.ndarray) -> float:
    """The largest error, relative to the largest logit."""
    return float(np.abs(logits - exact).max() / np.abs(exact).max())


def test_sixty_four_tokens_are_those_of_float64():
    """In float16; the check of exercise 9.5 asks it in float32."""
    found, tokens, logits = sixty_four_tokens("float16", QUICK_HERE)
    assert relative_error(found.logits, logits) < 5e-3
    assert (found.tokens == tokens).all()


def sixty_four_tokens(dtype: str, target: Target):
    """What `tiny` generates on `target`, and the tokens and logits that NumPy computes in float64."""
    config, weights = CONFIGS["tiny"], random_weights("tiny", dtype)
    pipeline = fusion_pipeline(target, **facts_of(config, 80))
    settings = {"target": target, "relax_pipeline": pipeline, "context_window": 80}
    found = Generator(config, dtype, weights=weights, **settings).generate(PROMPT, 64)
    return found, *llama_reference.generate(config, weights, PROMPT, 64)


def test_batches_of_any_size():
    config, weights = CONFIGS["tiny"], random_weights("tiny")
    facts = facts_of(config, 32)
    facts["variable_bounds"]["batch_size"] = 4
    settings = {"relax_pipeline": fusion_pipeline(QUICK, **facts), "context_window": 32}
    generator = Generator(config, target=QUICK, functions=Generator.BATCHED, **settings)
    for prompts in ([PROMPT], [PROMPT, [2, 7], [1, 8, 2, 8]]):
        found = generator.generate_batch(prompts, 6)
        for row, prompt in enumerate(prompts):
            tokens, logits = llama_reference.generate(config, weights, prompt, 6)
            assert relative_error(found.logits[row], logits) < 1e-5
            assert (found.tokens[row] == tokens).all()


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


@pytest.mark.skipif(bool(missing()), reason=missing())
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
    found, tokens, logits = sixty_four_tokens("float16", Target.from_device(tvm.cuda(0)))
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


@pytest.mark.skipif(bool(missing()), reason=missing())
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


@T.prim_func
def without_blocks(x: T.Buffer((T.int64(4),), "float32"), y: T.Buffer((T.int64(4),), "float32")):
    for i in T.parallel(4):
        y[i] = x[i]


def elementwise_kernel(rows: int | tirx.Var) -> tirx.PrimFunc:
    """Two elementwise blocks over (rows, 8)."""
    x = te.placeholder((rows, 8), "float32", "x")
    y = te.compute((rows, 8), lambda i, j: x[i, j] + 1.0, name="y")
    return te.create_prim_func([x, te.compute((rows, 8), lambda i, j: y[i, j] * 2.0, name="z")])


def test_cpu_fallback_inlines_and_parallelizes():
    result = ApplyCPUFallback()(
        tvm.IRModule({"main": elementwise_kernel(4), "other": without_blocks})
    )
    main = result["main"]
    assert has_loop(main, tirx.ForKind.PARALLEL) and not main.body.block.alloc_buffers
    assert "tirx.is_scheduled" in main.attrs
    other = result["other"]
    assert other.same_as(without_blocks) or "tirx.is_scheduled" not in other.attrs
    (x,) = draw((4, 8))
    np.testing.assert_allclose(run_kernel(main, x, shape=x.shape), (x + 1) * 2, rtol=1e-6)


def norm_kernel(rows: int | tirx.Var) -> tirx.PrimFunc:
    """An RMSNorm of (1, rows, 24) as TVM lowers it."""
    text = "def main(x: (1, rows, 24), w: (24,)):\n    out = R.nn.rms_norm(x, w, axes=[-1])"
    return relax.transform.LegalizeOps()(relax_module(text, rows=rows))["rms_norm"]


@pytest.mark.parametrize("rows", [1, 7, N])
def test_a_norm_is_computed_once(rows):
    func = ReductionOnce().apply(norm_kernel(rows), Target("llvm"), False).mod["main"]
    assert not repeats_reduction(func)
    many = rows if isinstance(rows, int) else 3
    x, w = draw((1, many, 24), (24,))
    exact = x.astype("float64")
    exact = exact / np.sqrt((exact**2).mean(-1, keepdims=True) + 1e-5) * w
    np.testing.assert_allclose(run_kernel(func, x, w, shape=x.shape), exact, rtol=1e-5)


def product_kernel(order: str, rows: int, n: int, k: int, dtype: str = "float32") -> tirx.PrimFunc:
    """(x, w, out): products whose w is stored as `order` says, "kn" or "nk", or the largest of them, "max"."""
    x = te.placeholder((rows, k), dtype, "x")
    w = te.placeholder((n, k) if order == "nk" else (k, n), dtype, "w")
    at = te.reduce_axis((0, k), "at")
    how = te.max if order == "max" else te.sum

    def element(i, j):
        return how(x[i, at] * (w[j, at] if order == "nk" else w[at, j]), axis=at)

    return te.create_prim_func([x, w, te.compute((rows, n), element, name="out")])


@pytest.mark.parametrize("order", ["kn", "nk", "max"])
@pytest.mark.parametrize(
    ("rows", "n", "k"), [(1, 16, 5), (3, 48, 7), (2, 7, 9), (1, 1, 4), (5, 40, 1)]
)
def test_neighbours_are_added_up_side_by_side(order, rows, n, k):
    func = schedule_any(product_kernel(order, rows, n, k))
    assert has_loop(func, tirx.ForKind.VECTORIZED) is (order != "nk" and n > 1)
    x, w = draw((rows, k), (n, k) if order == "nk" else (k, n), seed=n)
    products = x.astype("float64")[:, :, None] * (w.T if order == "nk" else w)[None]
    expected = products.max(1) if order == "max" else products.sum(1)
    out = run_kernel(func, x, w, shape=(rows, n))
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5)


def test_rows_are_not_found_again_by_dividing_by_a_symbolic_extent():
    x = te.placeholder((6, N, 8), "float32", "x")
    func = te.create_prim_func([x, te.compute((6, N, 8), lambda i, j, k: x[i, j, k] + 1.0, "y")])
    loops = nodes(schedule_any(func).body, tirx.For)
    parallel = [int(loop.extent) for loop in loops if loop.kind == tirx.ForKind.PARALLEL]
    assert parallel == [6]


FEW = [(4, {}, False), (N, {"n": 64}, False)]
MANY = [(1 << 20, {}, True), (N, {}, True), (N, {"n": 1 << 20}, True)]


@pytest.mark.parametrize(("rows", "bounds", "threads"), FEW + MANY)
def test_small_kernels_lose_their_threads(rows, bounds, threads):
    mod = ApplyCPUFallback()(
        tvm.IRModule({"main": elementwise_kernel(rows), "other": without_blocks})
    )
    result = RunSmallKernelsSerially(bounds)(mod)
    assert has_loop(result["main"], tirx.ForKind.PARALLEL) is threads
    decides = "a kernel without blocks decides for itself"
    assert has_loop(result["other"], tirx.ForKind.PARALLEL), decides
    assert has_loop(mod["main"], tirx.ForKind.PARALLEL), "the module given has changed"


@pytest.mark.parametrize("bounds", [{}, {"n": 8}])
def test_sorts_and_scans_compile(bounds):
    """TVM makes them one block around code that no schedule can see into, and does not call it "root"."""
    mod = relax_module("""
@bare
def main(x: ("n", 6)):
    sums, ordered, places = R.cumsum(x, -1), R.sort(x, -1), R.argsort(x, -1)
    return sums, ordered, places
""")
    pipeline = fusion_pipeline(QUICK, variable_bounds=bounds)
    (given,) = draw((5, 6))
    sums, ordered, places = run_main(mod, given, target=QUICK, pipeline=pipeline)
    np.testing.assert_allclose(sums, np.cumsum(given, -1), rtol=1e-5)
    assert (ordered == np.sort(given, -1)).all()
    assert (places == np.argsort(given, -1)).all()
