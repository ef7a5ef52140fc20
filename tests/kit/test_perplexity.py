"""The perplexity of models whose probabilities are known, and what was measured with the real one."""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from chapters.ch11_a_real_model.perplexity import (
    DEFAULT,
    FLOATS,
    KINDS,
    REFERENCE,
    VARIANTS,
    bytes_of,
    convert_file,
    make_verifier,
    matrix_kind,
)
from chapters.kit.bench.results import load
from chapters.kit.chat.gguf_file import read_gguf
from chapters.kit.chat.losses import READING, loss, losses, perplexity
from chapters.kit.quantized.weight_blocks import read_floats
from tests.kit.llama_in_numpy import logits_of
from tests.kit.real_model import real_model_path


class Known:
    """After token t, the next token is t + 1 with probability 1/2, and each of the other three with 1/6."""

    def __init__(self):
        self.pieces = []

    def __call__(self, tokens):
        self.pieces.append(list(tokens))
        logits = np.zeros((len(tokens), 4), "float32")
        logits[np.arange(len(tokens)), (np.array(tokens) + 1) % 4] = math.log(3)
        return logits


def test_perplexity_of_known_probabilities():
    """Two tokens of probability 1/2 and one of 1/6: the cube root of 2 * 2 * 6."""
    assert perplexity(Known(), [0, 1, 2, 2]) == pytest.approx(24 ** (1 / 3), rel=1e-7)


def test_a_uniform_model_wavers_between_all_tokens():
    def uniform(tokens):
        return np.full((len(tokens), 50), -1e4, "float32")

    assert perplexity(uniform, range(40), 8) == pytest.approx(50, rel=1e-12)


def test_windows_begin_anew_and_leave_out_their_first_token():
    model, tokens = Known(), [0, 1, 2, 3, 1, 2, 3, 0, 3]
    found = losses(model, tokens, 4)
    assert model.pieces == [[0, 1, 2, 3], [1, 2, 3, 0]]  # a single token has nothing to score
    np.testing.assert_allclose(found, [math.log(2)] * 6, rtol=1e-7)
    found = losses(model, [0, 1, 2, 0, 3], 3)
    np.testing.assert_allclose(np.exp(found), [2, 2, 6], rtol=1e-6)


def test_a_loss_is_finite_for_large_logits():
    logits = np.array([1e4, 0, -1e4], "float32")
    assert [loss(logits, token) for token in range(3)] == [0, 1e4, 2e4]


@pytest.mark.parametrize("tokens, window", [([1], 4), ([], 4), ([1, 2, 3], 1)])
def test_a_text_without_a_scored_token_is_refused(tokens, window):
    with pytest.raises(ValueError, match="can be scored"):
        losses(Known(), tokens, window)


# --- variants of the real model -------------------------------------------------------------------


@pytest.fixture(scope="module")
def file():
    """The real model's first layer, its embedding and its last norm."""
    whole = read_gguf(real_model_path())
    kept = {
        n: info for n, info in whole.tensors.items() if not n.startswith("blk.") or "blk.0." in n
    }
    return replace(whole, tensors=kept)


def _floats(file, name):
    return read_floats(file.tensors[name].type, file.raw(name))


def test_floats_are_the_numbers_of_the_file(file):
    floats = convert_file(file, FLOATS)
    for name in file.tensors:
        assert floats.tensors[name].type == "F32"
        np.testing.assert_array_equal(_floats(floats, name), _floats(file, name), strict=True)


@pytest.mark.parametrize("kind", ["attn_v", "token_embd"])
def test_a_variant_changes_its_kind_and_no_other(file, kind):
    gguf = pytest.importorskip("gguf")
    variant = convert_file(file, {kind: "Q4_0"})
    for name, info in file.tensors.items():
        if matrix_kind(name) == kind:
            rows = _floats(file, name)
            expected = gguf.quants.quantize(rows, gguf.GGMLQuantizationType.Q4_0)
            assert variant.tensors[name].type == "Q4_0"
            assert bytes_of(variant, kind) == rows.size // 32 * 18
        else:
            expected = file.raw(name)
            assert variant.tensors[name].type == info.type
        assert variant.tensors[name].shape == info.shape
        np.testing.assert_array_equal(variant.raw(name), expected, strict=True)


def test_a_matrix_that_has_its_type_keeps_its_bytes(file):
    same = convert_file(file, {"token_embd": "Q8_0", "attn_q": "Q4_1"})
    for name in file.tensors:
        np.testing.assert_array_equal(same.raw(name), file.raw(name), strict=True)


def test_an_unknown_kind_is_refused(file):
    with pytest.raises(ValueError, match="no matrix of the kind attn_x"):
        convert_file(file, {"attn_x": "F32"})


def test_the_reference_equals_numpy(tmp_path):
    """The losses of 39 tokens, from float32 and from NumPy in float64, by a small model."""
    from tests.kit.test_chat_model import LLAMAS, VOCAB  # which skips without gguf

    small = read_gguf(LLAMAS["Q4_K and Q6_K"].save(tmp_path / "model.gguf"))
    tokens = np.random.default_rng(0).integers(0, VOCAB, 40).tolist()

    found = losses(make_verifier(convert_file(small, FLOATS), True, 48), tokens, 48)
    expected = losses(partial(logits_of, small.path), tokens, 48)
    assert len(found) == 39
    np.testing.assert_allclose(found, expected, atol=1e-3)
    assert found.mean() == pytest.approx(expected.mean(), rel=1e-5)


# --- what was measured ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def measured():
    results = load("ch11_perplexity")
    return results["measured"] if results else pytest.skip("the results file is not there")


def test_the_results_are_of_this_text_and_this_model(measured):
    assert measured["text_sha256"] == hashlib.sha256(READING.read_bytes()).hexdigest()
    model = hashlib.sha256(real_model_path().read_bytes()).hexdigest()
    assert measured["model_sha256"] == model
    assert list(measured["variants"]) == list(VARIANTS)
    assert list(measured["alone"]) == list(KINDS)
    windows = -(-measured["tokens"] // measured["window"])
    assert measured["scored"] == measured["tokens"] - windows


def test_losses_are_logarithms_of_perplexities(measured):
    reference = measured["variants"][REFERENCE]["perplexity"]
    for group in ("variants", "alone"):
        for one in measured[group].values():
            ratio = math.log(one["perplexity"] / reference)
            assert one["loss"] == pytest.approx(ratio, abs=5e-6)  # six digits of each


def test_what_a_chat_does_costs_half_a_percent_at_most(measured):
    perplexities = {name: one["perplexity"] for name, one in measured["variants"].items()}
    assert perplexities[DEFAULT] == pytest.approx(perplexities[REFERENCE], rel=5e-3)
    assert perplexities["file, x in float32"] == pytest.approx(perplexities[REFERENCE], rel=1e-5)
