"""Attention over a cache: right numbers in each step of a conversation, and no write outside its own slots.

The reference is NumPy in float64. The cache and the results start as NaN. For a GPU, the CUDA text is executed thread
by thread on this CPU, forwards and backwards, and each access outside an array and each race is reported.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import tvm
from tvm import tirx
from tvm.target import Target

from chapters.ch11_a_real_model.passes import phases
from chapters.kit.cases.guard_zones import GuardedArray
from chapters.kit.chat import attention, attention_on_gpu
from chapters.kit.chat.cache_layout import LANES, cache_shape, rope_table
from chapters.kit.chat.chat_decoder import chat_decoder
from chapters.kit.chat.compile_decoder import add_share_tensors, cache_dtype
from chapters.kit.chat.weights import Weights, read_config
from chapters.kit.cpu.vectorize_transcendentals import expand_functions
from chapters.kit.decoder import llama_reference
from chapters.kit.decoder.llama_config import LlamaConfig
from chapters.kit.emulator.cuda_on_cpu import CudaOnCpu
from chapters.kit.gpu.launches import HostProgram
from chapters.kit.gpu.targets import DLIGHT_CUDA, WEBGPU
from chapters.kit.ir.tensor_ir import nodes
from chapters.kit.quantized.dot_products import lanes_of
from tests.support.injected_faults import runs_here
from tests.support.kernel_by_kernel import KernelByKernel
from tests.support.kernels import compile_kernels, run_passes

LAYERS, LAYER = 3, 1  # the conversation is held in the layer in the middle


def config(kv_heads: int, group_size: int, head_dim: int, window: int) -> LlamaConfig:
    return LlamaConfig(
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=LAYERS,
        num_attention_heads=kv_heads * group_size,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=32,
        context_window_size=window,
        rope_theta=500.0,  # small, so that slow pairs rotate within a short window too
    )


MIXED = [1, 1, 5, 1, 90, 1, 12, 1]  # 112 tokens: the window is then full
CONVERSATIONS = {  # configuration, tokens of each step
    "group of 1, head of 16": (config(3, 1, 16, 112), MIXED),
    "group of 3, head of 64": (config(2, 3, 64, 112), MIXED),
    "group of 4, head of 80": (config(2, 4, 80, 112), MIXED),
    "group of 4, head of 64": (config(1, 4, 64, 48), [17, 1, 13, 16, 1]),
    "all at once": (config(1, 3, 16, 16), [16]),
    "one by one": (config(2, 1, 16, 16), [1] * 16),
    "a group that fills all registers": (config(2, 13, 16, 32), [1, 30, 1]),
    "heads of 20": (config(2, 1, 20, 32), [2, 1, 7, 16, 6]),
}
WHOLE, HALF = "float32", "float16"  # dtypes of the cache
CASES = [(name, False, WHOLE) for name in CONVERSATIONS]
CASES += [("group of 4, head of 80", False, HALF), ("heads of 20", False, HALF)]
CASES += [("group of 3, head of 64", True, WHOLE)]  # with exp as a polynomial
# of the largest number: float32's sums, or one bit of a key that is rounded the other way than in float64
ALLOWED = {WHOLE: 1e-5, HALF: 2.0**-10}
WINDOW = 304  # on a GPU: more than one tile of tokens, and the last tile is not full
ON_GPU = {
    "group of 1, head of 16": config(2, 1, 16, WINDOW),
    "group of 3, head of 64": config(1, 3, 64, WINDOW),
    "group of 2, head of 80": config(2, 2, 80, WINDOW),
    "more pairs than threads": config(5, 1, 128, WINDOW),
}
# tokens in the cache; WINDOW: as many as leave room for the new ones
STARTS = 0, 15, 16, 31, 250, WINDOW
LENGTHS = {"one": 1, "several": tirx.Var("s", "int64")}  # of new tokens, and the kernels for them


# --- the reference --------------------------------------------------------------------------------


class RoundedCache(llama_reference.Cache):
    """Keys and values in float64, rounded to `dtype`."""

    def __init__(self, config: LlamaConfig, dtype: str):
        super().__init__(config)
        self.dtype = dtype

    def append(self, layer_id: int, keys: np.ndarray, values: np.ndarray) -> None:
        if self.dtype != WHOLE:
            keys, values = (one.astype(self.dtype).astype("float64") for one in (keys, values))
        super().append(layer_id, keys, values)


class Reference:
    """The keys and values of a conversation, rounded to the cache's dtype, and attention over them."""

    def __init__(self, config: LlamaConfig, dtype: str = WHOLE):
        self.config, self.held = config, RoundedCache(config, dtype)

    def step(self, qkv: np.ndarray) -> np.ndarray:
        """(1, s, qkv_heads, d) -> (1, s, heads * d). The new tokens are added."""
        return llama_reference.attend(self.config, qkv[0].astype("float64"), self.held, LAYER)[None]

    def cache(self) -> np.ndarray:
        """What the cache must hold: NaN in other layers and in slots without a token."""
        c, d = self.config, self.config.head_dim
        cache = np.full(cache_shape(c), np.nan)
        held = zip(self.held.keys[LAYER], self.held.values[LAYER], strict=True)
        for at, (key, value) in zip(range(c.context_window_size), held, strict=False):
            for head in range(c.num_key_value_heads):
                keys, values = cache[at // LANES, LAYER, :, head]
                keys.reshape(d, LANES)[:, at % LANES] = key[head]
                values.reshape(LANES, d)[at % LANES] = value[head]
        return cache


# --- the kernels ----------------------------------------------------------------------------------


class OnCPU:
    """The compiled kernels for one token and for several."""

    makers = attention.append_kernel, attention.attention_kernel

    def __init__(self, config: LlamaConfig, dtype: str = WHOLE, polynomial: bool = False):
        kernels = self.make_kernels(config, dtype)
        if polynomial:
            kernels = {name: expand_functions(func) for name, func in kernels.items()}
            exp = tvm.ir.Op.get("tirx.exp")
            calls = [one for func in kernels.values() for one in nodes(func, tvm.ir.Call)]
            assert not any(one.op.same_as(exp) for one in calls)
        self.compiled = compile_kernels(kernels)

    def make_kernels(self, config: LlamaConfig, dtype: str) -> dict[str, tirx.PrimFunc]:
        self.config, self.dtype, self.rope = config, dtype, rope_table(config)
        return {
            f"{name}_{length}": make(config, s, dtype)
            for name, make in zip(("append", "attend"), self.makers, strict=True)
            for length, s in LENGTHS.items()
        }

    def step(self, qkv: np.ndarray, held: np.ndarray, start: int, backwards=False) -> np.ndarray:
        """(1, s, qkv_heads, d) -> (1, s, heads * d). The new tokens are added to the cache `held`, nothing else is."""
        s, c = qkv.shape[1], self.config
        kind = "one" if s == 1 else "several"
        out = np.full((1, s, c.num_attention_heads * c.head_dim), np.nan, "float32")
        inputs = [qkv.reshape(1, s, -1), self.rope, np.array([start], "int32")]
        before = [one.tobytes() for one in inputs]
        self.call(f"append_{kind}", [held, *inputs, LAYER], backwards)
        appended = held.tobytes()
        self.call(f"attend_{kind}", [held, *inputs, LAYER, out], backwards)
        assert held.tobytes() == appended
        assert [one.tobytes() for one in inputs] == before
        return out

    def call(self, name: str, arguments: list, _backwards: bool) -> None:
        """Call a kernel on `arguments`, whose arrays change in place."""
        arrays = [one for one in arguments if isinstance(one, np.ndarray)]
        guarded = [*map(GuardedArray, arrays)]
        tensors = iter(one.tensor for one in guarded)
        self.compiled[name](
            *(next(tensors) if isinstance(one, np.ndarray) else one for one in arguments)
        )
        for array, one in zip(arrays, guarded, strict=True):
            assert one.intact()
            array[...] = one.array


class OnGPU(OnCPU):
    """The kernels for one token and for several, in CUDA C, executed on the CPU."""

    makers = partial(attention.append_kernel, on_gpu=True), attention_on_gpu.attention_kernel

    def __init__(self, config: LlamaConfig, dtype: str = WHOLE, target: Target = DLIGHT_CUDA):
        kernels = self.make_kernels(config, dtype)
        self.programs = {name: HostProgram(func, target) for name, func in kernels.items()}

    def call(self, name: str, arguments: list, backwards: bool) -> None:
        (launch,) = self.programs[name].run(CudaOnCpu(backwards), arguments)
        assert np.prod(launch.block) <= attention_on_gpu.THREADS


each_place = pytest.mark.parametrize("place", [OnCPU, pytest.param(OnGPU, marks=runs_here)])


@pytest.fixture(scope="module")
def kernels():
    """Gives OnCPU or OnGPU of a configuration; each is compiled once."""
    made: dict = {}

    def of(place: type, name: str, *how):
        key = place, name, how
        if key not in made:
            configs = (
                ON_GPU if place is OnGPU else {n: one for n, (one, _) in CONVERSATIONS.items()}
            )
            made[key] = place(configs[name], *how)
        return made[key]

    return of


def random_qkv(config: LlamaConfig, s: int, seed: int) -> np.ndarray:
    shape = (1, s, config.qkv_heads, config.head_dim)
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def assert_close(found: np.ndarray, exact: np.ndarray, dtype: str = WHOLE) -> None:
    np.testing.assert_allclose(found, exact, rtol=0, atol=ALLOWED[dtype] * np.nanmax(np.abs(exact)))


def begin_conversation(held: OnCPU | OnGPU, start: int) -> tuple[Reference, np.ndarray]:
    """A conversation of `start` random tokens, and the cache that holds them."""
    reference = Reference(held.config, held.dtype)
    if start:
        reference.step(random_qkv(held.config, start, start))
    return reference, reference.cache().astype(held.dtype)


@pytest.mark.parametrize(("name", "polynomial", "dtype"), CASES)
def test_each_step_of_a_conversation(name, polynomial, dtype, kernels):
    config, steps = CONVERSATIONS[name]
    held, length = kernels(OnCPU, name, dtype, polynomial), 0
    reference, cache = begin_conversation(held, 0)
    for seed, s in enumerate(steps):
        qkv = random_qkv(config, s, seed)
        assert_close(held.step(qkv, cache, length), reference.step(qkv), dtype)
        assert_close(cache, reference.cache(), dtype)
        length += s
    assert length == config.context_window_size
    assert not np.isnan(cache[:, LAYER]).any()
    assert np.isnan(np.delete(cache, LAYER, axis=1)).all()


@runs_here
@pytest.mark.parametrize(("s", "backwards"), [(1, False), (1, True), (3, True), (17, False)])
@pytest.mark.parametrize("name", ON_GPU)
def test_the_next_tokens_of_a_conversation_on_a_gpu(name, s, backwards, kernels):
    held = kernels(OnGPU, name)
    for start in STARTS:
        start = min(start, WINDOW - s)
        (reference, cache), qkv = begin_conversation(held, start), random_qkv(held.config, s, s)
        assert_close(held.step(qkv, cache, start, backwards), reference.step(qkv))
        assert_close(cache, reference.cache())


@runs_here
def test_a_cache_of_float16_and_a_long_conversation_on_a_gpu(kernels):
    for held, start, s in (
        (kernels(OnGPU, "group of 3, head of 64", HALF), 270, 3),
        (OnGPU(config(1, 2, 64, 2048)), 2047, 1),
    ):
        (reference, cache), qkv = begin_conversation(held, start), random_qkv(held.config, s, s)
        assert_close(held.step(qkv, cache, start), reference.step(qkv), held.dtype)
        assert_close(cache, reference.cache(), held.dtype)


@each_place
@pytest.mark.parametrize(("beyond", "s"), [(-2, 5), (-1, 2), (0, 1), (0, 3), (12, 2)])
def test_a_token_beyond_the_window_is_dropped(place, beyond, s, kernels):
    """Tokens that still fit are kept, and have right results."""
    held = kernels(place, "group of 4, head of 64" if place is OnCPU else "group of 1, head of 16")
    window = held.config.context_window_size
    reference, cache = begin_conversation(held, min(window, window + beyond))
    qkv, fit = random_qkv(held.config, s, 2), max(0, -beyond)
    found = held.step(qkv, cache, window + beyond)
    if fit:
        assert_close(found[:, :fit], reference.step(qkv[:, :fit]))
    assert_close(cache, reference.cache())


@each_place
def test_what_stands_behind_the_conversation_is_not_read(place, kernels):
    """The slots of an earlier, longer conversation: the results are those of an empty cache, to the last bit."""
    held = kernels(place, "group of 4, head of 80" if place is OnCPU else "group of 2, head of 80")
    found = []
    for value in (np.nan, np.inf, 1e30):
        _, cache = begin_conversation(held, 14)
        cache[np.isnan(cache)] = value
        steps = (14, 3), (17, 1)
        found.append([held.step(random_qkv(held.config, s, s), cache, at) for at, s in steps])
    for others in found[1:]:
        for one, other in zip(found[0], others, strict=True):
            np.testing.assert_array_equal(one, other)


@each_place
@pytest.mark.parametrize("size", [2.0**-10, 32.0, 2.0**13])
def test_scores_of_any_size(place, size, kernels):
    """Large scores are taken relative to the largest one, so that no exponential overflows."""
    held = kernels(place, "group of 3, head of 64", *([WHOLE, True] if place is OnCPU else []))
    c, reference, start = held.config, Reference(held.config), 20 if place is OnCPU else 290
    shape = 1, start + 2, c.qkv_heads, c.head_dim
    qkv = np.random.default_rng(0).choice(np.float32([-1, 1]), shape)
    qkv[:, :, : c.num_attention_heads + c.num_key_value_heads] *= np.float32(size)
    reference.step(qkv[:, :start])
    cache = reference.cache().astype("float32")
    for at, s in ((start, 1), (start + 1, 1)):
        new = qkv[:, at : at + s]
        found, exact = held.step(new, cache, at), reference.step(new)
        assert np.abs(found).max() <= 1 + 1e-5  # a mean of values that are 1 and -1, and no NaN
        if size <= 32:  # beyond, float32 cannot tell which of two nearly equal scores is larger
            np.testing.assert_allclose(found, exact, rtol=0, atol=1e-6 * max(10, size**2))


def test_the_table_of_rotations():
    """Position p rotates pair i by p * theta ** (-2 i / d), divided by the pair's factor."""
    c = config(1, 1, 16, 64)
    factors = np.linspace(1, 8, 8)
    for given, divisor in ((None, np.ones(8)), (factors, factors), (np.full(8, 4.0), 4.0)):
        table = rope_table(c, given)
        assert table.shape == (64, 2, 8) and table.dtype == np.float32
        rates = c.rope_theta ** (-2.0 * np.arange(8) / 16) / divisor
        turns = np.exp(1j * np.arange(64)[:, None] * rates)
        np.testing.assert_allclose(table[:, 0], turns.real, rtol=0, atol=1e-7)
        np.testing.assert_allclose(table[:, 1], turns.imag, rtol=0, atol=1e-7)


@pytest.mark.parametrize("kind", ["metal", "opencl", "webgpu"])
def test_other_gpus_have_text_too(kind):
    """Without an instruction of a warp, and in 16 KB of shared memory."""
    target = WEBGPU if kind == "webgpu" else Target({"kind": kind, "max_num_threads": 256})
    held = OnGPU(ON_GPU["group of 3, head of 64"], WHOLE, target)
    assert all(len(program.kernels) == 1 for program in held.programs.values())


@runs_here
def test_logits_of_a_decoder_for_a_gpu(tmp_path):
    """A prefill and a decode step: every kernel is the generated CUDA, executed thread by thread."""
    from chapters.kit.chat.gguf_file import read_gguf
    from tests.kit.llama_in_numpy import Reference as WholeModel
    from tests.kit.test_chat_model import LLAMAS, WINDOW

    llama = LLAMAS["Q4_1, and Q8_0 shared"]
    file = read_gguf(llama.save(tmp_path / "model.gguf"))
    weights = Weights(file, read_config(file), lanes_of(DLIGHT_CUDA))
    mod, names = chat_decoder(weights, cache_dtype=cache_dtype(DLIGHT_CUDA, False), on_gpu=True)
    passes = add_share_tensors(phases(DLIGHT_CUDA, variable_bounds={"seq_len": WINDOW}))
    at = [str(one.info.name) for one in passes].index("RewriteDataflowReshape")
    mod = run_passes(passes[:at], mod, DLIGHT_CUDA)
    arrays = dict(weights.arrays())
    packed = tuple(arrays[name] for name in names)
    run, reference = KernelByKernel(mod, DLIGHT_CUDA, CudaOnCpu()), WholeModel(file.path)
    *_, cache, _ = mod["decode"].params
    cache = np.full([int(n) for n in cache.ty.shape], np.nan, "float32")
    length = 0
    for tokens in ([3, 1, 4, 1, 5], [9]):
        name = "decode" if len(tokens) == 1 else "prefill"
        ids, position = np.array(tokens, "int32"), np.array([length], "int32")
        logits, cache = run.run(name, ids, position, cache, packed)
        exact = reference.feed(tokens)[-1]
        np.testing.assert_allclose(
            logits.reshape(-1), exact, rtol=0, atol=1e-4 * np.abs(exact).max()
        )
        length += len(tokens)
