"""Attention over a cache, for a GPU: the CUDA text, executed thread by thread on this CPU, against NumPy in float64.

The threads run forwards and backwards, and the executor reports every access outside an array, every race and every
read of shared memory that no thread has written. The cache and the results start as NaN.
"""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import tirx
from tvm.target import Target

from chapters.ch11_a_real_model.passes import phases
from chapters.kit.chat.attention_on_gpu import THREADS, append_kernel, attention_kernel
from chapters.kit.chat.cache_layout import rope_table
from chapters.kit.chat.compiled import cache_dtype, with_shared_tensors
from chapters.kit.chat.model import chat_decoder
from chapters.kit.chat.weights import Weights, read_config
from chapters.kit.decoder.llama_config import LlamaConfig
from chapters.kit.emulator.cuda_on_cpu import CudaOnCpu
from chapters.kit.gpu.launches import HostProgram
from chapters.kit.gpu.targets import DLIGHT_CUDA, WEBGPU
from chapters.kit.measure.kernel_by_kernel import KernelByKernel
from chapters.kit.quantized.dot_products import lanes_of
from tests.kit.test_chat_attention import HALF, LAYER, WHOLE, Reference, close, config, random_qkv
from tests.support.planted_faults import runs_here

pytestmark = runs_here

WINDOW = 304  # more than one tile of tokens, and the last tile is not full
CONFIGS = {
    "group of 1, head of 16": config(2, 1, 16, WINDOW),
    "group of 3, head of 64": config(1, 3, 64, WINDOW),
    "group of 2, head of 80": config(2, 2, 80, WINDOW),
    "more pairs than threads": config(5, 1, 128, WINDOW),
}
# tokens in the cache; WINDOW: as many as leave room for the new ones
STARTS = 0, 15, 16, 31, 250, WINDOW


class Kernels:
    """Both kernels for one token and for several, in CUDA C, executed on the CPU."""

    def __init__(self, config: LlamaConfig, dtype: str = WHOLE, target: Target = DLIGHT_CUDA):
        self.config, self.dtype = config, dtype
        lengths = {"one": 1, "several": tirx.Var("s", "int64")}
        self.programs = {
            (make, kind): HostProgram(make(config, s, dtype), target)
            for make in (append_kernel, attention_kernel)
            for kind, s in lengths.items()
        }
        self.rope = rope_table(config)

    def step(self, qkv: np.ndarray, cache: np.ndarray, start: int, backwards: bool) -> np.ndarray:
        """(1, s, qkv_heads, d) -> (1, s, heads * d). The new tokens are added to the cache."""
        s, c, engine = qkv.shape[1], self.config, CudaOnCpu(backwards)
        kind = "one" if s == 1 else "several"
        out = np.full((1, s, c.num_attention_heads * c.head_dim), np.nan, "float32")
        inputs = [qkv.reshape(1, s, -1), self.rope, np.array([start], "int32")]
        launches = self.programs[append_kernel, kind].run(engine, [cache, *inputs, LAYER])
        appended = cache.tobytes()
        launches += self.programs[attention_kernel, kind].run(engine, [cache, *inputs, LAYER, out])
        assert cache.tobytes() == appended
        assert len(launches) == 2 and all(np.prod(one.block) <= THREADS for one in launches)
        return out


@pytest.fixture(scope="module")
def kernels():
    """Gives the kernels of a configuration; each is compiled once."""
    made: dict = {}

    def of(name: str, dtype: str = WHOLE) -> Kernels:
        if (name, dtype) not in made:
            made[name, dtype] = Kernels(CONFIGS[name], dtype)
        return made[name, dtype]

    return of


def begun(held: Kernels, start: int) -> tuple[Reference, np.ndarray]:
    """A conversation of `start` random tokens, and the cache that holds them."""
    reference = Reference(held.config, held.dtype)
    if start:
        reference.step(random_qkv(held.config, start, start))
    return reference, reference.cache().astype(held.dtype)


@pytest.mark.parametrize(("s", "backwards"), [(1, False), (1, True), (3, True), (17, False)])
@pytest.mark.parametrize("name", CONFIGS)
def test_the_next_tokens_of_a_conversation(name, s, backwards, kernels):
    held = kernels(name)
    for start in STARTS:
        start = min(start, WINDOW - s)
        (reference, cache), qkv = begun(held, start), random_qkv(held.config, s, s)
        close(held.step(qkv, cache, start, backwards), reference.step(qkv))
        close(cache, reference.cache())


def test_a_cache_of_float16(kernels):
    held = kernels("group of 3, head of 64", HALF)
    (reference, cache), qkv = begun(held, 270), random_qkv(held.config, 3, 3)
    close(held.step(qkv, cache, 270, False), reference.step(qkv), HALF)
    close(cache, reference.cache(), HALF)


def test_a_long_conversation():
    held = Kernels(config(1, 2, 64, 2048))
    (reference, cache), qkv = begun(held, 2047), random_qkv(held.config, 1, 1)
    close(held.step(qkv, cache, 2047, False), reference.step(qkv))


@pytest.mark.parametrize(("before", "s"), [(WINDOW - 2, 4), (WINDOW, 1), (WINDOW + 20, 3)])
def test_a_token_beyond_the_window_is_dropped(before, s, kernels):
    """Tokens that still fit are kept, and have right results."""
    held = kernels("group of 1, head of 16")
    (reference, cache), qkv = begun(held, min(before, WINDOW)), random_qkv(held.config, s, 2)
    found, fit = held.step(qkv, cache, before, False), max(0, WINDOW - before)
    if fit:
        close(found[:, :fit], reference.step(qkv[:, :fit]))
    close(cache, reference.cache())


def test_what_stands_behind_the_conversation_is_not_read(kernels):
    """The slots of an earlier, longer conversation: the results are those of an empty cache, to the last bit."""
    held = kernels("group of 2, head of 80")
    qkv, found = random_qkv(held.config, 3, 3), []
    for value in (np.nan, np.inf, 1e30):
        _, cache = begun(held, 14)
        cache[np.isnan(cache)] = value
        found.append(held.step(qkv, cache, 14, False))
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


@pytest.mark.parametrize("size", [2.0**-10, 32.0, 2.0**13])
def test_scores_of_any_size(size, kernels):
    """Large scores are taken relative to the largest one, so that no exponential overflows."""
    held, random = kernels("group of 3, head of 64"), np.random.default_rng(0)
    c = held.config
    qkv = random.choice(np.float32([-1, 1]), (1, 291, c.qkv_heads, c.head_dim))
    qkv[:, :, : c.num_attention_heads + c.num_key_value_heads] *= np.float32(size)
    reference = Reference(c)
    reference.step(qkv[:, :290])
    found = held.step(qkv[:, 290:], reference.cache().astype("float32"), 290, False)
    assert np.abs(found).max() <= 1 + 1e-5  # a mean of values that are 1 and -1, and no NaN
    if size <= 32:  # beyond, float32 cannot tell which of two nearly equal scores is larger
        exact = reference.step(qkv[:, 290:])
        np.testing.assert_allclose(found, exact, rtol=0, atol=1e-6 * max(10, size**2))


@pytest.mark.parametrize("kind", ["metal", "opencl", "webgpu"])
def test_other_gpus_have_text_too(kind):
    """Without an instruction of a warp, and in 16 KB of shared memory."""
    target = WEBGPU if kind == "webgpu" else Target({"kind": kind, "max_num_threads": 256})
    held = Kernels(CONFIGS["group of 3, head of 64"], WHOLE, target)
    assert all(len(program.kernels) == 1 for program in held.programs.values())


def test_logits_of_a_decoder_for_a_gpu(tmp_path):
    """A prefill and decode steps: every kernel is the generated CUDA, executed thread by thread."""
    from chapters.kit.chat.gguf_file import read_gguf
    from tests.kit.llama_in_numpy import Reference as WholeModel
    from tests.kit.test_chat_model import LLAMAS, WINDOW

    llama = LLAMAS["Q4_1, and Q8_0 shared"]
    file = read_gguf(llama.save(tmp_path / "model.gguf"))
    weights = Weights(file, read_config(file), lanes_of(DLIGHT_CUDA))
    mod, names = chat_decoder(weights, cache_dtype=cache_dtype(DLIGHT_CUDA, False), on_gpu=True)
    passes = with_shared_tensors(phases(DLIGHT_CUDA, variable_bounds={"seq_len": WINDOW}))
    at = [str(one.info.name) for one in passes].index("RewriteDataflowReshape")
    with DLIGHT_CUDA:
        mod = tvm.transform.Sequential(passes[:at])(mod)
    arrays = dict(weights.arrays())
    packed = tuple(arrays[name] for name in names)
    run, reference = KernelByKernel(mod, DLIGHT_CUDA, CudaOnCpu()), WholeModel(file.path)
    *_, cache, _ = mod["decode"].params
    cache = np.full([int(n) for n in cache.ty.shape], np.nan, "float32")
    length = 0
    for tokens in ([3, 1, 4, 1, 5], [9], [2]):
        name = "decode" if len(tokens) == 1 else "prefill"
        ids, position = np.array(tokens, "int32"), np.array([length], "int32")
        logits, cache = run.run(name, ids, position, cache, packed)
        exact = reference.feed(tokens)[-1]
        np.testing.assert_allclose(
            logits.reshape(-1), exact, rtol=0, atol=1e-4 * np.abs(exact).max()
        )
        length += len(tokens)
