"""Text to tokens and back, with nothing but what a GGUF file says of its model's tokenizer.

Two kinds are read. "gpt2" is byte-level BPE: regular expressions split the text into words, and in each word the file's
merges join bytes to tokens. "llama" is SentencePiece BPE: there are no words, and spaces are written as ▁. Of all pairs
of neighbours that form a token, it joins the one whose token has the best score first. A character without a token
becomes one token per byte. The tokens are meant to be those of llama.cpp (src/llama-vocab.cpp, src/unicode.cpp).

Some tokens are more than text: <|im_end|> ends a turn. In a chat only the template may write such a *control token*. If
a user's message could, a pasted document could pretend to be the system or the assistant. But the template mixes both
into one text, and may trim, test or slice what it is given. So we mark the user's part before it is rendered:

    message   Say <|im_end|>                          shield() puts a mark, here ·, behind the first character
    shielded  Say <·|im_end|>                         of everything that reads like a control token
    rendered  <|im_start|>user\\nSay <·|im_end|><|im_end|>\\n
    tokens    encode_prompt() takes <|im_start|> and the unbroken <|im_end|> as control tokens, removes the mark,
              and encodes the text between them as it encodes any text

The mark is a private-use character. A message that contains this very character gets it doubled, and encode_prompt
halves it. So a shielded message, once encoded, is exactly encode(message), and a template sees ordinary text.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from chapters.kit.chat.extra import extra
from chapters.kit.chat.gguf_file import GGUF, GGUFError

UNKNOWN, CONTROL, USER_DEFINED, BYTE = 2, 3, 4, 6  # types of tokens; all others are text
MARK = "\U0010fffd"  # the last private-use character
# sum of the squares of the lengths of all tokens; a vocabulary of 256,000 tokens has 25 million
MOST_CUTS = 100_000_000
LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
MARKS = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
ENDINGS = r"'(?:[sS]|[tT]|[rR][eE]|[vV][eE]|[mM]|[lL][lL]|[dD])"
GPT2 = r"'(?:s|t|re|ve|m|ll|d)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
WORDS = {  # tokenizer.ggml.pre: each expression splits the pieces that the one before it left
    "gpt-2": [GPT2],
    "smollm": [r"\p{N}", GPT2],
    "llama-bpe": [f"{ENDINGS}|{LETTERS}|\\p{{N}}{{1,3}}|{MARKS}"],
    "qwen2": [f"{ENDINGS}|{LETTERS}|\\p{{N}}|{MARKS}"],
    "default": [r"[\p{P}$+<=>^~|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
}
END = re.compile(  # a control token that ends a turn
    r"<\|(eot_id|eom_id|im_end|end|endoftext|end_of_text)\|>|<end_of_(turn|utterance)>|<EOT>|</s>|<｜end▁of▁sentence｜>"
)


def _byte_characters() -> dict[str, int]:
    """The byte that each character of a byte-level token stands for: itself if visible, or one from U+0100 on."""
    seen = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    unseen = [byte for byte in range(256) if byte not in seen]
    return {chr(b): b for b in seen} | {chr(256 + n): b for n, b in enumerate(unseen)}


BYTES = _byte_characters()


@dataclass(frozen=True, eq=False)
class Tokenizer:
    """One model's tokenizer. Make it with `from_gguf`.

    tokens: the text of each token, as in the file. kinds: their types, one int32 per token. bos, eos: the tokens before
    and after a text, None if the file names none. end_of_turn: the tokens with which a model ends its answer. add_bos:
    whether a prompt begins with bos. pieces: whether this is SentencePiece BPE. space_prefix: whether each text gets a
    space before it, as SentencePiece does. bpe: a tokenizers.Tokenizer for text without special tokens.
    """

    tokens: list[str]
    kinds: np.ndarray
    bos: int | None
    eos: int | None
    end_of_turn: frozenset[int]
    add_bos: bool
    pieces: bool
    space_prefix: bool
    bpe: object

    @classmethod
    def from_gguf(cls, gguf: GGUF) -> Tokenizer:
        """The tokenizer of the model in `gguf`.

        Raises GGUFError if the file's tokenizer is of a kind that is not read, or contradicts itself; ValueError if the
        package tokenizers is missing.
        """
        model = gguf.field("tokenizer.ggml.model", str)
        pre = gguf.field("tokenizer.ggml.pre", str, "") or "default"
        pieces = model == "llama"  # which knows no words
        if not pieces and (model != "gpt2" or pre not in WORDS):
            raise GGUFError(
                f"The tokenizer of {gguf.path} is {model!r:.80} with {pre!r:.80}, and the course reads 'llama', and "
                f"'gpt2' with {', '.join(map(repr, WORDS))}; use a model with one of these."
            )
        tokens = gguf.field("tokenizer.ggml.tokens", list)
        # a copy, because a view would keep the whole file in memory
        kinds = _per_token(gguf, "token_type", len(tokens)).copy()
        bos, eos, *others = (_id(gguf, name, len(tokens)) for name in ("bos", "eos", "eot", "eom"))
        named = (
            id for id in np.flatnonzero(kinds == CONTROL).tolist() if END.fullmatch(tokens[id])
        )
        each = kinds.tolist()  # NumPy's numbers are slow one at a time
        if any(MARK in token for token, kind in zip(tokens, each, strict=True) if kind == CONTROL):
            raise GGUFError(
                f"{gguf.path} has a control token with the character U+{ord(MARK):X}, which the course needs to keep "
                "control tokens out of messages; choose another model."
            )
        text = {token: id for id, token in enumerate(tokens) if each[id] not in (UNKNOWN, CONTROL)}
        bpe = _sentence_pieces(gguf, text, kinds) if pieces else _byte_level(gguf, text, pre)
        return cls(
            tokens=tokens,
            kinds=kinds,
            bos=bos,
            eos=eos,
            end_of_turn=frozenset({eos, *others, *named} - {None}),
            add_bos=gguf.field("tokenizer.ggml.add_bos_token", bool, pieces or pre == "llama-bpe"),
            pieces=pieces,
            space_prefix=pieces and gguf.field("tokenizer.ggml.add_space_prefix", bool, True),
            bpe=bpe,
        )

    def encode(self, text: str) -> list[int]:
        """The tokens of a text; what reads like a control token is text too.

        As in llama.cpp, user-defined tokens such as <think> are found in any text: they stand for their text only. A
        byte for which the model has no token is dropped: SmolLM2 has none for six of the control characters.
        """
        ids = []
        for number, part in enumerate(self._defined.split(text)):
            if number % 2:
                ids.append(self._ids[part])
            elif part:
                ids += self._plain(part)
        return ids

    def encode_prompt(self, text: str) -> list[int]:
        """The tokens of a rendered chat, in which control tokens are found, and `shield`'s marks are removed.

        Begins with one bos if the model wants it, whether or not the template has written it. A control token of a
        single character is not found, because `shield` could not break it.
        """
        ids = []
        for number, part in enumerate(self._control.split(text)):
            if number % 2:
                ids.append(self._ids[part])
            else:
                ids += self.encode(re.sub(f"{MARK}({MARK}?)", r"\1", part))
        if self.add_bos and self.bos is not None and ids[:1] != [self.bos]:
            ids.insert(0, self.bos)
        return ids

    def shield(self, text: str) -> str:
        """`text`, a message, such that a template can render it and encode_prompt will find no control token in it."""
        starts = f"(?={self._control.pattern})."
        return re.sub(starts, rf"\g<0>{MARK}", text.replace(MARK, MARK * 2), flags=re.DOTALL)

    def special(self, text: str) -> int:
        """The control or user-defined token that is written `text`. Raises ValueError if there is none."""
        if text not in self._ids:
            raise ValueError(
                f"The model has no special token {text!r}; it has {', '.join(sorted(self._ids)[:20])}."
            )
        return self._ids[text]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids`, without control tokens. Bytes that are not UTF-8 become U+FFFD."""
        streamer = Streamer(self)
        return "".join(map(streamer.add, ids)) + streamer.finish()

    def piece(self, id: int) -> bytes:
        """The bytes for which one token stands; none for a control token."""
        text, kind = self.tokens[id], self.kinds[id]
        if kind in (UNKNOWN, CONTROL):
            return b""
        if kind == BYTE and (byte := re.fullmatch("<0x([0-9A-F]{2})>", text)):
            return bytes.fromhex(byte[1])
        if self.pieces:
            return text.replace("▁", " ").encode("utf-8", "surrogateescape")
        if kind == USER_DEFINED or not BYTES.keys() >= set(text):
            return text.encode("utf-8", "surrogateescape")
        return bytes(BYTES[character] for character in text)

    def _plain(self, text: str) -> list[int]:
        text = re.sub("[\ud800-\udfff]", "\ufffd", text)  # bytes of the terminal that are not UTF-8
        if self.pieces:
            text = (" " * self.space_prefix + text).replace(" ", "▁")
        found = self.bpe.encode(text, add_special_tokens=False).ids
        return [id for id in found if id < len(self.tokens)]

    @cached_property
    def _ids(self) -> dict[str, int]:
        """The special tokens, by their texts."""
        special = np.flatnonzero(np.isin(self.kinds, (UNKNOWN, CONTROL, USER_DEFINED))).tolist()
        return {self.tokens[id]: id for id in special}

    @cached_property
    def _control(self) -> re.Pattern:
        return _any_of(
            t for t, id in self._ids.items() if self.kinds[id] != USER_DEFINED and len(t) > 1
        )

    @cached_property
    def _defined(self) -> re.Pattern:
        return _any_of(t for t, id in self._ids.items() if self.kinds[id] == USER_DEFINED and t)


class Streamer:
    """Text from tokens that come one by one. A character whose bytes are in several tokens appears with the last."""

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._strip = tokenizer.space_prefix  # the space that the tokenizer put before the text

    def add(self, id: int) -> str:
        """The text that is complete with token `id`, and was not before; "" while a character is incomplete."""
        piece = self.tokenizer.piece(id)
        if self._strip and piece:
            piece, self._strip = piece.removeprefix(b" "), False
        return self._utf8.decode(piece)

    def finish(self) -> str:
        """U+FFFD for a character that stayed incomplete, or ""."""
        return self._utf8.decode(b"", final=True)


def _byte_level(gguf: GGUF, text: dict[str, int], pre: str) -> object:
    """A tokenizers.Tokenizer for the tokens `text` and the file's merges.

    A byte without a token gets one beyond the others, which `Tokenizer` drops: the package would drop it before it
    merges, and so merge its neighbours, which llama.cpp does not.
    """
    merges = [tuple(merge.split(" ")) for merge in gguf.field("tokenizer.ggml.merges", list)]
    beyond = len(gguf.field("tokenizer.ggml.tokens", list))
    vocabulary = {byte: beyond + number for number, byte in enumerate(BYTES)} | text
    found = _bpe(gguf, vocabulary, merges, ignore_merges=pre == "llama-bpe")
    tokenizers = extra("tokenizers")
    ways = tokenizers.pre_tokenizers
    splits = [ways.Split(tokenizers.Regex(word), "isolated") for word in WORDS[pre]]
    as_bytes = ways.ByteLevel(add_prefix_space=False, use_regex=False)
    found.pre_tokenizer = ways.Sequence([*splits, as_bytes])
    return found


def _sentence_pieces(gguf: GGUF, text: dict[str, int], kinds: np.ndarray) -> object:
    """A tokenizers.Tokenizer that merges every two tokens which form a third, best score first."""
    scores = _per_token(gguf, "scores", len(kinds))
    pieces = {token: id for token, id in text.items() if kinds[id] != BYTE}
    if sum(len(token) ** 2 for token in pieces) > MOST_CUTS:
        raise GGUFError(
            f"The tokens of {gguf.path} are too long: the longest has {max(map(len, pieces)):,} characters; choose "
            "another model."
        )
    merges = sorted(
        (-float(scores[id]), token[:cut], token[cut:])
        for token, id in pieces.items()
        for cut in range(1, len(token))
        if token[:cut] in pieces and token[cut:] in pieces
    )
    return _bpe(gguf, text, [(left, right) for _, left, right in merges], byte_fallback=True)


def _bpe(gguf: GGUF, vocabulary: dict[str, int], merges: list[tuple], **options) -> object:
    tokenizers = extra("tokenizers")
    try:
        return tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, merges, **options))
    except Exception as error:  # the package raises nothing narrower
        raise GGUFError(
            f"The tokenizer of {gguf.path} contradicts itself ({str(error)[:200]!r}); convert the model again."
        ) from error


def _per_token(gguf: GGUF, name: str, tokens: int) -> np.ndarray:
    """The field with one number per token."""
    values = gguf.field(f"tokenizer.ggml.{name}", np.ndarray)
    if len(values) != tokens:
        raise GGUFError(
            f"In {gguf.path}, tokenizer.ggml.{name} has {len(values)} numbers for {tokens} tokens; convert the "
            "model again."
        )
    return values


def _id(gguf: GGUF, name: str, tokens: int) -> int | None:
    """The token that the file names `name`, None if it names none."""
    id = gguf.field(f"tokenizer.ggml.{name}_token_id", int, None)
    if id is not None and not 0 <= id < tokens:
        raise GGUFError(
            f"In {gguf.path}, {name} is token {id} of {tokens}; convert the model again."
        )
    return id


def _any_of(texts: Iterable[str]) -> re.Pattern:
    """Finds one of `texts`, the longest first, as a group."""
    longest_first = sorted(map(re.escape, texts), key=len, reverse=True)
    return re.compile(f"({'|'.join(longest_first) or '(?!)'})")
