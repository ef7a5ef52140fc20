"""The decoder the course compiles, by chapter 9's pipeline, is the decoder it claims to be.

Its tokens and logits agree with an independent NumPy reference, and its cache keeps its promises. The pages of
chapters 3 and 4 count the transposes and add-norm pairs that the passes rewrite.
"""

import ast
import math
from pathlib import Path

import numpy as np
import pytest
import tvm

from chapters.kit.cases.guard_zones import QUICK_HERE
from chapters.kit.decoder import llama, llama_config
from chapters.kit.decoder import llama_reference as reference
from chapters.kit.decoder.llama_generator import Generator, random_weights
from solutions.ch09_the_compiler.pipeline import fusion_pipeline
from tests.support.kernels import relative_error

CONFIG = llama_config.CONFIGS["tiny"]
LAYERS = CONFIG.num_hidden_layers
STEPS = 25  # one token from prefill, 24 from decode
WINDOW = 80

# Chosen among random prompts so that the two best logits of every step are far apart (see
# test_greedy_tokens_are_decided_by_a_margin); lengths differ so that batching must pad.
PROMPTS = [
    [448, 133, 24, 73, 146, 489],
    [177, 479, 336],
    [351, 15, 476, 154, 191, 336, 305, 77, 393, 335, 407],
]

# Rounding noise of a logit, in units of eps(dtype) * LOGIT_STD. Each logit goes through three
# layers whose sums have up to 352 terms, accumulated in the dtype; measured over six seeds and
# three prompts the largest error is 21 units for float32 and 10 for float16 (its attention and
# head accumulate in float32). Three times that is allowed. A wrong mask, head or position moves
# logits by LOGIT_STD itself, a million and a thousand units. A wrong rms_norm_eps or rotary base
# moves them by less than float16 can show (a third of its tolerance, as no fault at all does):
# float32 is the leg that catches those, at 4 and 24 times its tolerance.
LOGIT_STD = 4
ROUNDING_UNITS = {"float32": 64, "float16": 32}
TOLERANCE = {d: n * float(np.finfo(d).eps) * LOGIT_STD for d, n in ROUNDING_UNITS.items()}


@pytest.fixture(scope="module", params=llama_config.DTYPES)
def dtype(request):
    return request.param


@pytest.fixture(scope="module")
def weights(dtype):
    return random_weights(CONFIG, dtype, seed=0)


@pytest.fixture(scope="module")
def generator(dtype, weights):
    bounds = {"seq_len": WINDOW, "context_window": WINDOW, "batch_size": len(PROMPTS) + 1}
    facts = {"variable_bounds": bounds, "metadata": {"vocab_size": CONFIG.vocab_size}}
    pipeline = fusion_pipeline(QUICK_HERE, **facts)
    settings = {"functions": llama.FUNCTIONS, "target": QUICK_HERE, "relax_pipeline": pipeline}
    settings["context_window"] = WINDOW
    # kernels that compare their arguments take longer to compile than to run
    with tvm.transform.PassContext(config={"tirx.disable_assert": True}):
        return Generator(CONFIG, dtype, weights=weights, **settings)


@pytest.fixture(scope="module")
def batch(generator):
    """What `generator` makes of all prompts at once."""
    return generator.generate_batch(PROMPTS, STEPS)


@pytest.fixture(scope="module")
def expected(weights):
    """The reference's (tokens, logits) for each prompt."""
    return [reference.generate(CONFIG, weights, prompt, STEPS) for prompt in PROMPTS]


# --- the same numbers -----------------------------------------------------------------------------


def test_greedy_tokens_are_decided_by_a_margin(expected, dtype):
    """If this fails the prompts are badly chosen: both logits may move by the tolerance."""
    for _, logits in expected:
        best = np.sort(logits, axis=-1)
        assert (best[:, -1] - best[:, -2]).min() > 2 * TOLERANCE[dtype]
        assert logits.std() == pytest.approx(LOGIT_STD, rel=0.1)


def agrees(got, expected, dtype: str) -> None:
    """The generation `got` is the reference's."""
    tokens, logits = expected
    np.testing.assert_array_equal(got.tokens, tokens)
    np.testing.assert_allclose(got.logits, logits, rtol=0, atol=TOLERANCE[dtype])


def test_one_sequence_agrees_with_the_reference(generator, expected, dtype):
    for prompt, exact in zip(PROMPTS, expected, strict=True):
        agrees(generator.generate(prompt, STEPS), exact, dtype)
        assert len(set(exact[0].tolist())) > STEPS // 2, "a repeating sequence tests little"


def test_batch_of_different_lengths_agrees_with_the_reference(batch, expected, dtype):
    exact = [np.stack(rows) for rows in zip(*expected, strict=True)]
    agrees(batch, exact, dtype)


def test_a_batch_of_one_agrees_with_the_reference(generator, expected, dtype):
    exact = [rows[None] for rows in expected[0]]
    agrees(generator.generate_batch(PROMPTS[:1], STEPS), exact, dtype)


def test_sixty_four_tokens_agree_with_the_reference(generator, weights, dtype):
    prompt, most = [1, 5, 9, 33, 2], {"float32": 1e-5, "float16": 5e-3}
    found = generator.generate(prompt, 64)
    tokens, logits = reference.generate(CONFIG, weights, prompt, 64)
    assert relative_error(found.logits, logits) < most[dtype]
    np.testing.assert_array_equal(found.tokens, tokens)


def test_tvms_own_pipeline_agrees_with_the_reference():
    """Labs run it."""
    weights = random_weights(CONFIG, "float32", seed=0)
    found = Generator(CONFIG, weights=weights, target=QUICK_HERE).generate(PROMPTS[1], 8)
    agrees(found, reference.generate(CONFIG, weights, PROMPTS[1], 8), "float32")


def test_verify_gives_the_logits_of_every_token(generator, weights, dtype):
    prompts = [PROMPTS[0], PROMPTS[2][:6]]
    got, _ = generator.forward("batch_verify", prompts, [0, 0], generator.create_kv_cache(2))
    for row, prompt in enumerate(prompts):
        want = reference.verify(CONFIG, weights, prompt, reference.Cache(CONFIG))
        np.testing.assert_allclose(got[row], want, rtol=0, atol=TOLERANCE[dtype])


def test_the_head_is_a_function_of_its_own(generator, weights, dtype):
    rows = np.random.default_rng(0).standard_normal((3, CONFIG.hidden_size)).astype(dtype)
    got = generator.vm["get_logits"](generator.to_device(rows), generator.weights).numpy()
    want = reference.linear(rows.astype("float64"), weights["lm_head.weight"])
    np.testing.assert_allclose(got, want, rtol=0, atol=TOLERANCE[dtype])


def test_prefill_in_two_parts_equals_prefill_at_once(generator, dtype):
    prompt, cut = PROMPTS[2], 4
    whole, _ = generator.forward("prefill", [prompt], [0], generator.create_kv_cache())
    cache = generator.create_kv_cache()
    generator.forward("prefill", [prompt[:cut]], [0], cache)
    parts, _ = generator.forward("prefill", [prompt[cut:]], [cut], cache)
    np.testing.assert_allclose(parts, whole, rtol=0, atol=TOLERANCE[dtype])


# --- the cache ------------------------------------------------------------------------------------


def test_cache_beyond_the_sequence_is_never_read(generator, batch, monkeypatch):
    """NaN survives every sum and every product with zero, so one read of it would show."""

    def poisoned(batch_size=1):
        shape = clean(batch_size).shape
        return generator.to_device(np.full(shape, np.nan, dtype=generator.weights[0].dtype))

    clean = generator.create_kv_cache
    monkeypatch.setattr(generator, "create_kv_cache", poisoned)
    got = generator.generate_batch(PROMPTS, STEPS)
    np.testing.assert_array_equal(got.logits, batch.logits)


def test_cache_is_updated_in_place_and_only_where_the_tokens_go(generator):
    b, s, positions = 2, 3, [7, 2]
    rng = np.random.default_rng(0)
    cache = generator.create_kv_cache(b)
    before = rng.standard_normal(cache.shape).astype(cache.dtype)
    cache.copyfrom(before)
    _, returned = generator.forward("batch_verify", [[1, 2, 3], [4, 5, 6]], positions, cache)
    after = cache.numpy()
    np.testing.assert_array_equal(returned.numpy(), after)
    written = np.zeros((b, generator.context_window), dtype=bool)
    for row, position in enumerate(positions):
        written[row, position : position + s] = True
    changed = (before != after).any(axis=(0, 1, 4, 5))
    np.testing.assert_array_equal(changed, written)


def test_a_token_beyond_the_cache_is_dropped(generator):
    """Called directly, past the driver's check: no foreign memory is written."""
    cache = generator.create_kv_cache()
    end = np.asarray([generator.context_window - 1], dtype="int32")
    embeds = generator.embed([[1, 2, 3]])
    generator.vm["prefill"](embeds, generator.to_device(end), cache, generator.weights)
    changed = cache.numpy().any(axis=(0, 1, 2, 4, 5))
    assert changed.nonzero()[0].tolist() == [generator.context_window - 1]


# --- kernels and sizes ----------------------------------------------------------------------------


def test_one_attention_kernel_serves_all_layers():
    module, _ = llama.decoder(functions=["decode"])
    kernels = sorted(var.name_hint for var in module.get_global_vars() if var.name_hint != "decode")
    assert kernels == ["append_to_cache", "attention_scores", "attention_values", "rotate_queries"]


def test_tiny_has_no_two_equal_dimensions():
    """So that no transposed weight and no swapped axis can pass for the right one."""
    c = CONFIG
    qkv, gate_up = c.qkv_heads * c.head_dim, 2 * c.intermediate_size
    sizes = [c.hidden_size, c.intermediate_size, gate_up, c.vocab_size, c.context_window_size, qkv]
    sizes += [c.num_attention_heads * c.head_dim, c.num_attention_heads, c.num_key_value_heads]
    sizes += [c.head_dim, c.qkv_heads, LAYERS, 2]
    assert len(set(sizes)) == len(sizes)
    assert c.hidden_size % 64 == 0


def test_llama3_8b_has_the_true_shapes():
    """8,030,261,248 parameters is the published size of the whole model of 32 layers."""
    _, weights = llama.decoder("llama3-8b", "float16", ["embed"])
    in_layer_0 = sum(math.prod(shape) for name, shape, _ in weights if ".layers.0." in name)
    elsewhere = sum(math.prod(shape) for name, shape, _ in weights if ".layers." not in name)
    assert 32 * in_layer_0 + elsewhere == 8_030_261_248


# --- bad input, and the reference itself ----------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: llama.decoder("huge"), "no configuration 'huge'.*tiny, llama3-8b"),
        (lambda: llama.decoder(dtype="int8"), "no dtype 'int8'.*float32, float16"),
        (lambda: llama.decoder(functions=["prefil"]), "no function 'prefil'.*prefill, decode"),
        (lambda: random_weights("llama3-8b"), "parameters and random_weights fills at most"),
        (lambda: llama_config.LlamaConfig(64, 96, 1, 6, 4, 16, 10, 8), "no multiple of"),
        (lambda: llama_config.LlamaConfig(64, 96, 1, 6, 3, 15, 10, 8), "make it even"),
    ],
)
def test_bad_arguments_get_one_clear_sentence(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(
    ("prompt", "steps", "message"),
    [
        ([], 1, "no tokens"),
        ([CONFIG.vocab_size], 1, "vocabulary from 0 to 499"),
        ([1] * 56, 26, "81 positions are needed and the cache has 80"),
    ],
)
def test_bad_prompts_get_one_clear_sentence(generator, prompt, steps, message):
    with pytest.raises(ValueError, match=message):
        generator.generate(prompt, steps)


def test_random_weights_depend_on_the_seed_only():
    first, again = random_weights(seed=3), random_weights(seed=3)
    other = random_weights(seed=4)
    for name, weight in first.items():
        np.testing.assert_array_equal(weight, again[name])
        assert (weight != other[name]).any()


def test_reference_is_independent_of_tvm():
    tree = ast.parse(Path(reference.__file__).read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = [getattr(n, "module", None) or alias.name for n in imports for alias in n.names]
    assert {name.split(".")[0] for name in names} == {"__future__", "collections", "numpy"}
