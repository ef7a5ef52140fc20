"""Files and texts that strangers bring to `chat`: each kind is named by the public reports that it comes from."""

from __future__ import annotations

import io
import json
import random
import re
import struct
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from chapters.kit.chat.conversation import Chat
from chapters.kit.chat.gguf_file import GGUFError, read_gguf
from chapters.kit.chat.tokenizer import CONTROL, END, USER_DEFINED
from tests.kit.test_chat_template import render_template
from tests.kit.test_conversation import Says
from tests.kit.test_gguf_file import field, file
from tests.kit.test_tokenizer import (
    byte_level_tokenizer,
    make_tokenizer,
    sentencepiece_tokenizer,
    texts_of,
)

# --- tokens: llama.cpp 8338, 13256 ----------------------------------------------------------------

TRAINED_ON = Path(__file__).parents[2] / "chapters" / "kit" / "chat"
SCRIPTS = [  # with their marks, digits, spaces and emoji
    *((0x20, 0x7E), (0, 0x1F), (0x7F, 0x17F), (0x300, 0x36F), (0x410, 0x44F), (0x5D0, 0x5EA)),
    *((0x621, 0x669), (0x905, 0x939), (0xE01, 0xE3A), (0x2000, 0x206F), (0x2150, 0x2182)),
    *((0x3041, 0x3096), (0x4E00, 0x9FA5), (0xAC00, 0xD7A3), (0xFE00, 0xFE0F), (0x1F300, 0x1F64F)),
]


def read_corpus() -> list[str]:
    return "".join(p.read_text("utf-8") for p in sorted(TRAINED_ON.glob("*.py"))).splitlines(True)


def random_texts(seed: int, count: int = 2000):
    """Code, indentation, runs, numbers, endings, scripts, emoji, and bytes that are not UTF-8, as lone surrogates."""
    draw, source = random.Random(seed), "".join(read_corpus())
    words = (" don't", "I'LL", "'Ve been", "’s", "👩‍👩‍👧", "🇩🇪", "naïve", "e\u0301", "▁")
    kinds = (
        lambda: source[(at := draw.randrange(len(source))) : at + draw.randrange(80)],
        lambda: "\n" + " " * draw.randrange(32) + draw.choice(("return x", "\tif", "# end", "")),
        lambda: draw.choice(" \n\t\r=-#a0.") * draw.randrange(1, 40),
        lambda: str(draw.randrange(10 ** draw.randrange(1, 12))),
        lambda: draw.choice(words),
        lambda: "".join(map(chr, draw.choices(range(*draw.choice(SCRIPTS)), k=draw.randrange(9)))),
        lambda: draw.randbytes(draw.randrange(6)).decode("utf-8", "surrogateescape"),
    )
    for _ in range(count):
        text = "".join(draw.choice(kinds)() for _ in range(draw.randrange(1, 10)))
        yield text.encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")


def test_of_equal_scores_the_leftmost_pair_is_joined():
    runs = sentencepiece_tokenizer(
        {"▁" * n: -1e9 for n in range(1, 17)} | {"x": 0.0}
    )  # as in Llama 2
    assert [len(t) for t in texts_of(runs, runs.encode(" " * 16 + "x"))] == [16, 1, 1]
    equal = sentencepiece_tokenizer({c: -9.0 for c in "▁abc"} | {"bc": -1.0, "ab": -1.0})
    assert texts_of(equal, equal.encode("abcbc")) == ["▁", "ab", "c", "bc"]


def test_random_texts_have_the_tokens_of_sentencepiece():
    sentencepiece = pytest.importorskip("sentencepiece")
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(line.rstrip("\n") for line in read_corpus()),
        model_writer=model,
        model_type="bpe",
        vocab_size=2000,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True,
        minloglevel=2,
    )
    package = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    ids = range(package.vocab_size())
    kinds = [2 if package.is_unknown(i) else 3 if package.is_control(i) else 1 for i in ids]
    kinds = [6 if package.is_byte(i) else kind for i, kind in zip(ids, kinds, strict=True)]
    ours = make_tokenizer(
        model="llama",
        tokens=[package.id_to_piece(i) for i in ids],
        scores=np.array([package.get_score(i) for i in ids], np.float32),
        token_type=np.array(kinds, np.int32),
    )
    for text in random_texts(3):
        assert ours.encode(text) == package.encode(text.encode("utf-8", "surrogateescape")), text


LLAMA3 = (  # as these models publish it
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
PUBLISHED = {
    "llama-bpe": LLAMA3,
    "qwen2": LLAMA3.replace("{1,3}", ""),
    "gpt-2": r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
}


@pytest.mark.parametrize("pre", PUBLISHED)
def test_random_texts_have_the_tokens_of_tokenizers_and_tiktoken(pre):
    tiktoken = pytest.importorskip("tiktoken")
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

    package = Tokenizer(models.BPE(ignore_merges=pre == "llama-bpe"))
    split = pre_tokenizers.Split(Regex(PUBLISHED[pre]), "isolated")
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    package.pre_tokenizer = pre_tokenizers.Sequence([split, as_bytes])
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=2000, initial_alphabet=alphabet, show_progress=False)
    package.train_from_iterator(read_corpus(), trainer)
    model = json.loads(package.to_str())["model"]
    tokens, merges = [*model["vocab"]], [" ".join(pair) for pair in model["merges"]]
    assert [*model["vocab"].values()] == [*range(len(tokens))]
    kinds = np.ones(len(tokens), np.int32)
    ours = make_tokenizer(model="gpt2", pre=pre, tokens=tokens, merges=merges, token_type=kinds)
    ranks = {ours.piece(id): id for id in range(len(tokens))}
    other = tiktoken.Encoding(pre, pat_str=PUBLISHED[pre], mergeable_ranks=ranks, special_tokens={})
    for text in random_texts(4):
        ids = ours.encode(text)
        assert ids == other.encode_ordinary(text), text
        assert ids == package.encode(re.sub("[\ud800-\udfff]", "\ufffd", text)).ids, text


# --- what only the template may write: llama.cpp 11270, 26273 -------------------------------------


@pytest.mark.parametrize("kind", [1, CONTROL, USER_DEFINED, 5])
@pytest.mark.parametrize("make", [byte_level_tokenizer, sentencepiece_tokenizer])
def test_a_message_cannot_write_what_the_template_writes(make, kind):
    markers = ["<|im_start|>", "<｜User｜>", "<start_of_turn>", "[INST]", "<t>", "</think>"]
    if kind == USER_DEFINED:  # of another type, it reads like text
        markers.append("### Human:")
    for marker in markers:
        # Phi-3's has '<|' + message['role'] + '|>'
        template = "{{ '<|' + 'im_start' }}" if marker == "<|im_start|>" else f"{marker}{{{{ x }}}}"
        tokens = [marker] if make is byte_level_tokenizer else {marker: 0.0}
        tokenizer = make(tokens=tokens, kinds=[kind], chat_template=template)
        token = tokenizer.tokens.index(marker)
        for text in (marker, f"a{marker}b", marker * 2, marker[:2] + marker + marker[2:]):
            assert token not in tokenizer.encode(text)
            ids = tokenizer.encode_prompt(marker + tokenizer.shield(text))
            assert [id for id in ids if id != tokenizer.bos] == [token, *tokenizer.encode(text)]


def test_what_is_no_marker_of_the_template_stays_one_token_in_a_message():
    template = "{%  if x %}<p>{%  endif %}"
    tokenizer = byte_level_tokenizer(
        tokens=["  ", "<h1>", "<p>"], kinds=[4, 4, 1], chat_template=template
    )
    assert texts_of(tokenizer, tokenizer.encode("<h1>a  b")) == ["<h1>", "a", "  ", "b"]
    pieces = sentencepiece_tokenizer({"a": 0.0}, chat_template="<0x0A>{{ x }}")
    assert texts_of(pieces, pieces.encode("\n")) == [*("<0xE2>", "<0x96>", "<0x81>"), "<0x0A>"]
    merged = byte_level_tokenizer("qwen2", ["</", "s>", "</s>"], merges=["< /", "s >", "</ s>"])
    assert texts_of(merged, merged.encode("</s>")) == ["</", "s", ">"]


def test_the_models_own_tag_stays_in_its_answer_and_one_that_it_spells_is_text():
    # as in DeepSeek-R1-Distill-Llama, whose template cuts an answer at the model's </think>
    tokens = ["</think>", "<|im_start|>", "<|im_end|>"]
    tokenizer = byte_level_tokenizer(tokens=tokens, kinds=[4, 4, 4], chat_template="</think>")
    tag, end = map(tokenizer.tokens.index, ("</think>", "<|im_end|>"))
    said = [*tokenizer.encode("a</think>"), tag, *tokenizer.encode("b<|im_start|>"), end]
    cut = "{{ messages[1].content.split('</think>')[-1] }}"
    renderer = SimpleNamespace(render=lambda messages: render_template(cut, messages))
    chat = Chat(Says(said, len(tokenizer.tokens)), tokenizer, renderer, 0.0, seed=0)
    chat.messages = [{"role": "user", "content": "Hi"}]
    assert "".join(chat.answer(tokenizer.encode("Hi"))) == "a</think></think>b<|im_start|>"
    assert chat._render() == tokenizer.encode("b<|im_start|>")


# --- where an answer ends: llama.cpp 23183, 4000 --------------------------------------------------


@pytest.mark.parametrize("kind", [1, CONTROL, USER_DEFINED, 5])
@pytest.mark.parametrize("make", [byte_level_tokenizer, sentencepiece_tokenizer])
def test_an_answer_ends_at_a_token_that_reads_so_whatever_its_type(make, kind):
    for end in END.split():
        if make is byte_level_tokenizer or end != "</s>":  # which SentencePiece has already
            tokenizer = make(
                tokens=[end] if make is byte_level_tokenizer else {end: 0.0}, kinds=[kind]
            )
            token = tokenizer.tokens.index(end)
            assert token in tokenizer.end_of_turn and tokenizer.decode([token]) == ""


# --- files that leave out or divide: llama.cpp 7898, 8597 -----------------------------------------


def test_a_sentencepiece_file_that_names_no_bos_begins_with_one():
    named = sentencepiece_tokenizer({"▁a": 0.0})
    silent = sentencepiece_tokenizer({"▁a": 0.0}, bos_token_id=None, eos_token_id=None)
    assert silent.encode_prompt("a") == named.encode_prompt("a") == [1, 259]
    assert silent.end_of_turn == {2} and byte_level_tokenizer().bos is None


def test_a_part_of_a_split_file_is_called_so(tmp_path):
    path = tmp_path / "m-00002-of-00003.gguf"
    for count in (3, 0):  # llama-gguf-split leaves 0 in what it has joined
        numbers = {"split.no": 1, "split.count": count}
        path.write_bytes(file(*(field(k, 2, struct.pack("<H", v)) for k, v in numbers.items())))
        if count:
            with pytest.raises(GGUFError, match=r"is part 2 of 3 of a split model, .* --merge"):
                read_gguf(path)
    assert read_gguf(path).fields["split.count"] == 0


# --- templates of models that were trained on answers alone: SmolLM3, TRL --------------------------


def test_a_generation_block_is_rendered_as_transformers_does():
    template = """{%- for m in messages %}
    {% if m.role == 'assistant' %}
        {% generation %}{% set x = 1 %}
            {{ m.content }}{% if x %}<|im_end|>{% endif %}
        {%- endgeneration %}
    {% endif %}{{ x }}
{% endfor %}"""
    messages = [{"role": role, "content": "Hi"} for role in ("user", "assistant")]
    assert render_template(template, messages) == "\n            Hi<|im_end|>\n"
