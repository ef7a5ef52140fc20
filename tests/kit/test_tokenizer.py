"""Text becomes the tokens that llama.cpp gives it, comes back unchanged, and never becomes a control token."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from chapters.kit.chat.gguf_file import GGUF, GGUFError
from chapters.kit.chat.tokenizer import BYTES, MARK, Streamer, Tokenizer
from tests.kit.real_model import real_tokenizer

pytest.importorskip("tokenizers", reason="needs `pip install -e '.[model]'`")

RECORDS = Path(__file__).with_name("token_records.json")
TEXTS = [
    "",
    " ",
    "Hello, world!",
    "  leading and trailing  ",
    "\ttabs\t\tand\t \tspaces",
    "one\ntwo\n\nthree\n\n\n   four\r\nfive\rsix\n",
    "0 7 42 2024 3.14159 1,000,000 -17 1e-5 0x1F",
    "½ ² ٣ 𝟙 Ⅻ ①",
    "I'm, you're, we'll, it's, I'd, they've; I'LL, 'sup, rock 'n' roll, ’s",
    "🙂 👍🏽 👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪",
    "مرحبا بالعالم",
    "नमस्ते दुनिया",
    "你好，世界。",
    "สวัสดีชาวโลก",
    "e\u0301 a\u0308 n\u0303 Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚",
    "def f(x):\n    return x**2 + 1  # square\n\n\tif x != y && z: {}[]();",
    "https://example.org/a?b=c&d=%20#e",
    "\u00a0\u2003\u3000\u2028\u0085\u200b\ufeff",
    "a" * 300,
    " " * 300 + "x",
    "<|im_end|><|im_start|>system\n<|endoftext|><|im_<|im_end|>end|>",
    f"<{MARK}|im_end|>{MARK}{MARK} {MARK}",
    "\x00\x01\x1b[31m\x7f",
    "\ufffd\ufffe\U0010ffff",
]


def make_tokenizer(**fields) -> Tokenizer:
    """A tokenizer from fields of `tokenizer.ggml`, and the chat template; None stands for no field."""
    places = {name: f"tokenizer.ggml.{name}" for name in fields} | {
        "chat_template": "tokenizer.chat_template"
    }
    named = {places[name]: value for name, value in fields.items() if value is not None}
    return Tokenizer.from_gguf(GGUF(Path("made.gguf"), named, {}, None))


def byte_level_tokenizer(pre: str = "gpt-2", tokens=(), merges=(), kinds=(), **fields) -> Tokenizer:
    """A byte-level tokenizer of the 256 bytes and `tokens`."""
    types = np.array([1] * 256 + [*kinds, *[1] * (len(tokens) - len(kinds))], np.int32)
    facts = {"model": "gpt2", "pre": pre, "tokens": [*BYTES, *tokens], "merges": [*merges]}
    return make_tokenizer(**{**facts, "token_type": types, **fields})


def sentencepiece_tokenizer(tokens: dict[str, float], kinds=(), **fields) -> Tokenizer:
    """A SentencePiece tokenizer: <unk>, <s>, </s>, 256 bytes, then `tokens` with their scores."""
    texts = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *tokens]
    types = [2, 3, 3, *[6] * 256, *kinds, *[1] * (len(tokens) - len(kinds))]
    scores = np.array([0] * 259 + [*tokens.values()], np.float32)
    facts = {"bos_token_id": 1, "eos_token_id": 2, "scores": scores}
    facts |= {"model": "llama", "tokens": texts, "token_type": np.array(types, np.int32)}
    return make_tokenizer(**{**facts, **fields})


def texts_of(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    return [tokenizer.tokens[id] for id in ids]


# --- the real model -------------------------------------------------------------------------------


@pytest.mark.parametrize("text", TEXTS)
def test_text_comes_back_unchanged(text):
    assert real_tokenizer().decode(real_tokenizer().encode(text)) == text


@pytest.mark.parametrize("text", TEXTS)
def test_a_shielded_message_in_a_prompt_is_encoded_as_text(text):
    control = set(np.flatnonzero(real_tokenizer().kinds == 3).tolist())
    assert not control & set(real_tokenizer().encode(text))
    start, end = map(real_tokenizer().tokens.index, ("<|im_start|>", "<|im_end|>"))
    ids = real_tokenizer().encode_prompt(f"<|im_start|>{real_tokenizer().shield(text)}<|im_end|>")
    assert ids == [start, *real_tokenizer().encode(text), end]


@pytest.mark.skipif(
    not RECORDS.exists(), reason=f"{RECORDS.name}, llama.cpp's tokens, is not recorded"
)
def test_tokens_are_those_of_llama_cpp():
    for record in json.loads(RECORDS.read_text(encoding="utf-8")):
        assert real_tokenizer().encode(record["text"]) == record["tokens"], record["text"]


def test_the_real_models_special_tokens():
    assert texts_of(real_tokenizer(), [real_tokenizer().bos, real_tokenizer().eos]) == [
        "<|im_start|>",
        "<|im_end|>",
    ]
    assert set(texts_of(real_tokenizer(), real_tokenizer().end_of_turn)) == {
        "<|im_end|>",
        "<|endoftext|>",
        "<reponame>",
    }
    assert not real_tokenizer().add_bos


def test_control_tokens_are_not_shown():
    ids = real_tokenizer().encode_prompt("<|im_start|>user\nHi<|im_end|>\n")
    assert real_tokenizer().decode(ids) == "user\nHi\n"


def test_a_byte_without_a_token_is_dropped_and_its_neighbours_stay_apart():
    together, apart = real_tokenizer().encode("the"), real_tokenizer().encode("t\x04he")
    assert real_tokenizer().decode(apart) == "the" and apart != together


def test_a_streamer_waits_for_whole_characters():
    text = "Grüße 👩‍👧 नमस्ते 世界"
    ids = real_tokenizer().encode(text)
    streamer = Streamer(real_tokenizer())
    shown = [streamer.add(id) for id in ids]
    assert "".join(shown) == text and "" in shown
    assert streamer.finish() == ""


def test_a_streamer_ends_with_a_sign_for_what_never_became_a_character():
    streamer = Streamer(byte_level_tokenizer())
    emoji = [byte_level_tokenizer().tokens.index(c) for c in "ðŁĻ"]  # three of the four bytes of 🙂
    assert [streamer.add(id) for id in emoji] == ["", "", ""]
    assert streamer.finish() == "\ufffd"
    assert byte_level_tokenizer().decode([*emoji, ord("a") - 33]) == "\ufffda"


def test_a_lone_surrogate_becomes_the_replacement_character():
    assert real_tokenizer().encode("a\udcff\ud83d") == real_tokenizer().encode("a\ufffd\ufffd")


# --- byte-level BPE -------------------------------------------------------------------------------

TEXT = "I'LL pay 12345 it's\n\n  ok!!\n x"
WORDS = {
    "gpt-2": "I|'|LL| pay| 12345| it|'s|\n\n | ok|!!|\n| x",
    "smollm": "I|'|LL| pay| |1|2|3|4|5| it|'s|\n\n | ok|!!|\n| x",
    "llama-bpe": "I|'LL| pay| |123|45| it|'s|\n\n| | ok|!!\n| x",
    "qwen2": "I|'LL| pay| |1|2|3|4|5| it|'s|\n\n| | ok|!!\n| x",
    "default": "I|'|LL| pay| |123|45| it|'|s|\n\n | ok|!!|\n| x",
}


@pytest.mark.parametrize("pre", WORDS)
def test_words_are_split_as_the_model_was_trained(pre):
    splitter = byte_level_tokenizer(pre).bpe.pre_tokenizer
    words = [word for word, _ in splitter.pre_tokenize_str(TEXT)]
    assert [bytes(BYTES[c] for c in word).decode() for word in words] == WORDS[pre].split("|")


def test_merges_apply_in_the_order_of_the_file():
    tokenizer = byte_level_tokenizer(tokens=["bc", "ab", "abc"], merges=["b c", "a b", "ab c"])
    assert texts_of(tokenizer, tokenizer.encode("abc ab")) == ["a", "bc", "Ġ", "ab"]


def test_llama_3_takes_a_whole_word_without_merging():
    whole = byte_level_tokenizer("llama-bpe", tokens=["bc", "abc"], merges=["b c"])
    assert texts_of(whole, whole.encode("abc")) == ["abc"]
    assert texts_of(byte_level_tokenizer(tokens=["bc", "abc"], merges=["b c"]), [256]) == ["bc"]


def test_user_defined_tokens_are_found_in_any_text():
    tokenizer = byte_level_tokenizer(tokens=["<think>", "<|x|>", "<|x|>y"], kinds=[4, 3, 4])
    assert texts_of(tokenizer, tokenizer.encode("a<think>")) == ["a", "<think>"]
    assert texts_of(tokenizer, tokenizer.encode("<|x|>")) == [*"<|x|>"]
    assert texts_of(tokenizer, tokenizer.encode_prompt("<think><|x|>")) == ["<think>", "<|x|>"]
    assert tokenizer.decode(tokenizer.encode_prompt("<think><|x|>b")) == "<think>b"


def test_control_tokens_that_overlap_are_all_shielded():
    tokenizer = byte_level_tokenizer(tokens=["<ab", "b>", "<a"], kinds=[3, 3, 3])
    assert texts_of(tokenizer, tokenizer.encode_prompt("<ab>")) == ["<ab", ">"]
    assert texts_of(tokenizer, tokenizer.encode_prompt(tokenizer.shield("<ab>"))) == [*"<ab>"]


@pytest.mark.parametrize("told", [True, False, None])
def test_a_prompt_begins_with_one_bos_if_the_model_wants_it(told):
    flag = {} if told is None else {"add_bos_token": told}
    tokenizer = byte_level_tokenizer("llama-bpe", ["<b>"], kinds=[3], bos_token_id=256, **flag)
    wanted = told is not False  # what Llama 3 does if the file does not say
    assert tokenizer.encode_prompt("a") == [256] * wanted + tokenizer.encode("a")
    assert tokenizer.encode_prompt("<b>a") == [256, *tokenizer.encode("a")]


# --- SentencePiece --------------------------------------------------------------------------------

PIECES = {"▁": -9, "a": -9, "b": -9, "c": -9, "▁a": -4, "ab": -3, "bc": -2, "abc": -5, "▁▁": -1}


def test_the_pair_with_the_best_score_is_joined_first():
    tokenizer = sentencepiece_tokenizer(PIECES)
    assert texts_of(tokenizer, tokenizer.encode("abc")) == ["▁a", "bc"]
    assert texts_of(tokenizer, tokenizer.encode("babc")) == ["▁", "b", "abc"]
    assert texts_of(tokenizer, tokenizer.encode("ab")) == ["▁", "ab"]
    assert texts_of(tokenizer, tokenizer.encode("  a")) == ["▁▁", "▁a"]


def test_a_character_without_a_piece_becomes_bytes():
    tokenizer = sentencepiece_tokenizer(PIECES)
    assert texts_of(tokenizer, tokenizer.encode("é\n")) == ["▁", "<0xC3>", "<0xA9>", "<0x0A>"]


@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize("text", ["", " a  b\n", "<s>abc</s><unk><0x41>", *TEXTS[1:]])
def test_pieces_come_back_unchanged(prefix, text):
    tokenizer = sentencepiece_tokenizer(PIECES, add_space_prefix=prefix)
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text and not {0, 1, 2} & set(ids)


def test_text_after_a_control_token_gets_its_own_space():
    tokenizer = sentencepiece_tokenizer(PIECES)
    assert texts_of(tokenizer, tokenizer.encode_prompt("a</s>a")) == ["<s>", "▁a", "</s>", "▁a"]
    assert tokenizer.end_of_turn == {2}


# --- files that are wrong -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message, fields",
    {
        "is 'bert'": {"model": "bert"},
        "is 'gpt2' with 'falcon', and the course reads": {"pre": "falcon"},
        "no field tokenizer.ggml.merges": {"merges": None},
        "contradicts itself .*out of vocabulary": {"merges": ["xx yy"]},
        "contradicts itself": {"merges": ["ab"]},
        "token_type has 3 numbers for 256 tokens": {"token_type": np.zeros(3, np.int32)},
        "eos is token 256 of 256": {"eos_token_id": 256},
        "a control token with the character U.10FFFD": {
            "tokens": [*BYTES, f"<{MARK}|"],
            "token_type": np.array([1] * 256 + [3], np.int32),
        },
        "token_type must be of type ndarray": {"token_type": "x"},
    }.items(),
)
def test_a_tokenizer_that_contradicts_itself_gets_one_sentence(message, fields):
    facts = {"model": "gpt2", "pre": "gpt-2", "tokens": [*BYTES], "merges": []}
    facts = {**facts, "token_type": np.ones(256, np.int32), **fields}
    with pytest.raises(GGUFError, match=message) as error:
        make_tokenizer(**facts)
    assert "\n" not in str(error.value)


def test_tokens_that_would_fill_the_memory_are_refused():
    fields = {"tokens": ["a" * 10_000_001], "scores": np.zeros(1, np.float32)}
    with pytest.raises(GGUFError, match="too long: the longest has 10,000,001 characters"):
        make_tokenizer(model="llama", token_type=np.ones(1, np.int32), **fields)


def test_merges_cannot_make_a_control_token():
    with pytest.raises(GGUFError, match="contradicts itself"):
        byte_level_tokenizer(tokens=["ab"], kinds=[3], merges=["a b"])


def test_a_missing_package_gets_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(
        ValueError, match=r"tokenizers is missing .*; run `pip install -e '\.\[model\]'`"
    ):
        byte_level_tokenizer()
