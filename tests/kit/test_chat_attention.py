"""Attention over a cache: right numbers in each step of a conversation, and no write outside its own slots.

The reference is NumPy in float64. The cache and the results start as NaN.
"""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import tirx

from chapters.kit.cases.guard_zones import QUICK_HERE, Guarded
from chapters.kit.chat.attention import append_kernel, attention_kernel
from chapters.kit.chat.cache_layout import LANES, cache_shape, rope_table
from chapters.kit.cpu.vectorize_transcendentals import vectorizable
from chapters.kit.decoder import llama_reference
from chapters.kit.decoder.llama_config import LlamaConfig
from chapters.kit.ir.tensor_ir import nodes

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
BOTH = ["group of 3, head of 64", "group of 4, head of 80"]
CASES = [(name, False, WHOLE) for name in CONVERSATIONS]
CASES += [(name, False, HALF) for name in (*BOTH, "heads of 20")]
CASES += [(name, True, WHOLE) for name in BOTH]  # with exp as a polynomial
# of the largest number: float32's sums, or one bit of a key that is rounded the other way than in float64
ALLOWED = {WHOLE: 1e-5, HALF: 2.0**-10}


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


class Kernels:
    """The compiled kernels for one token and for several, with the memory of one conversation."""

    def __init__(self, config: LlamaConfig, polynomial: bool, dtype: str):
        self.config, self.dtype = config, dtype
        kernels = {
            f"{name}_{length}": make(
                config, 1 if length == "one" else tirx.Var("s", "int64"), dtype
            )
            for name, make in (("append", append_kernel), ("attend", attention_kernel))
            for length in ("one", "several")
        }
        if polynomial:
            kernels = {name: vectorizable(func) for name, func in kernels.items()}
            exp = tvm.ir.Op.get("tirx.exp")
            calls = [one for func in kernels.values() for one in nodes(func, tvm.ir.Call)]
            assert not any(one.op.same_as(exp) for one in calls)
        mod = {name: func.with_attr("global_symbol", name) for name, func in kernels.items()}
        self.compiled = tvm.compile(tvm.IRModule(mod), QUICK_HERE)
        self.rope = Guarded(rope_table(config))
        self.forget()

    def forget(self) -> None:
        """Begin a new conversation."""
        shape = cache_shape(self.config)
        self.cache = Guarded(np.full(shape, np.nan, self.dtype))
        self.length = 0

    def step(self, qkv: np.ndarray) -> np.ndarray:
        """(1, s, qkv_heads, d) -> (1, s, heads * d). No array but the cache and the result is written."""
        s, c = qkv.shape[1], self.config
        kind = "one" if s == 1 else "several"
        out = np.full((1, s, c.num_attention_heads * c.head_dim), np.nan, "float32")
        positions = np.array([self.length], "int32")
        qkv, out, positions = map(Guarded, [qkv.reshape(1, s, -1), out, positions])
        inputs = [qkv, self.rope, positions]
        before = [one.array.tobytes() for one in inputs]
        tensors = [one.tensor for one in (self.cache, *inputs)]
        self.compiled[f"append_{kind}"](*tensors, LAYER)
        appended = self.cache.array.tobytes()
        self.compiled[f"attend_{kind}"](*tensors, LAYER, out.tensor)
        assert self.cache.array.tobytes() == appended
        assert [one.array.tobytes() for one in inputs] == before
        assert all(one.intact() for one in (self.cache, *inputs, out))
        self.length += s
        return out.array


@pytest.fixture(scope="module")
def kernels():
    """Gives the kernels of a case, with an empty cache; each case is compiled once."""
    made: dict = {}

    def of(name: str, polynomial: bool = False, dtype: str = WHOLE) -> Kernels:
        key = name, polynomial, dtype
        if key not in made:
            made[key] = Kernels(CONVERSATIONS[name][0], polynomial, dtype)
        made[key].forget()
        return made[key]

    return of


def random_qkv(config: LlamaConfig, s: int, seed: int) -> np.ndarray:
    shape = (1, s, config.qkv_heads, config.head_dim)
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def close(found: np.ndarray, exact: np.ndarray, dtype: str = WHOLE) -> None:
    np.testing.assert_allclose(found, exact, rtol=0, atol=ALLOWED[dtype] * np.nanmax(np.abs(exact)))


@pytest.mark.parametrize(("name", "polynomial", "dtype"), CASES)
def test_each_step_of_a_conversation(name, polynomial, dtype, kernels):
    config, steps = CONVERSATIONS[name]
    held, reference = kernels(name, polynomial, dtype), Reference(config, dtype)
    for seed, s in enumerate(steps):
        qkv = random_qkv(config, s, seed)
        close(held.step(qkv), reference.step(qkv), dtype)
        close(held.cache.array, reference.cache(), dtype)
    assert held.length == config.context_window_size
    assert not np.isnan(held.cache.array[:, LAYER]).any()
    assert np.isnan(np.delete(held.cache.array, LAYER, axis=1)).all()


@pytest.mark.parametrize(("before", "s"), [(46, 5), (47, 2), (48, 1), (48, 3), (60, 2)])
def test_a_token_beyond_the_window_is_dropped(before, s, kernels):
    """Tokens that still fit are kept, and have right results."""
    name = "group of 4, head of 64"
    config = CONVERSATIONS[name][0]
    held, reference, window = kernels(name), Reference(config), config.context_window_size
    filled = random_qkv(config, min(before, window), 1)
    close(held.step(filled), reference.step(filled))
    held.length = before
    qkv, fit = random_qkv(config, s, 2), max(0, window - before)
    found = held.step(qkv)
    if fit:
        close(found[:, :fit], reference.step(qkv[:, :fit]))
    close(held.cache.array, reference.cache())


def test_what_stands_behind_the_conversation_is_not_read(kernels):
    """The slots of an earlier, longer conversation: the results are those of an empty cache, to the last bit."""
    config = CONVERSATIONS["group of 4, head of 80"][0]
    held = kernels("group of 4, head of 80")
    steps = [random_qkv(config, s, s) for s in (7, 1, 14, 1)]
    fresh = [held.step(qkv) for qkv in steps]
    for value in (np.inf, 1e30):
        held.forget()
        held.cache.array[...] = value
        for qkv, found in zip(steps, fresh, strict=True):
            np.testing.assert_array_equal(held.step(qkv), found)


@pytest.mark.parametrize("size", [2.0**-10, 32.0, 2.0**13])
def test_scores_of_any_size(size, kernels):
    """Large scores are taken relative to the largest one, so that no exponential overflows."""
    name = "group of 3, head of 64"
    config = CONVERSATIONS[name][0]
    held, reference = kernels(name, True), Reference(config)
    random = np.random.default_rng(0)
    keys = config.num_attention_heads + config.num_key_value_heads
    for s in (1, 20, 1):
        qkv = random.choice(np.float32([-1, 1]), (1, s, config.qkv_heads, config.head_dim))
        qkv[:, :, :keys] *= np.float32(size)
        found, exact = held.step(qkv), reference.step(qkv)
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
