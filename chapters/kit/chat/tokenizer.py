"""Text to tokens and back, with nothing but what a GGUF file says of its model's tokenizer.

Two kinds are read. "gpt2" is byte-level BPE: regular expressions split the text into words, and in each word the file's
merges join bytes to tokens. "llama" is SentencePiece BPE: there are no words, and spaces are written as ▁. Of all pairs
of neighbours that form a token, it joins the one whose token has the best score first, and of equal ones the leftmost.
A character without a token becomes one token per byte. The tokens are meant to be those of llama.cpp
(src/llama-vocab.cpp, src/unicode.cpp).

Some tokens are more than text: <|im_end|> ends a turn. In a chat only the template may write such a *control token*. If
a user's message could, a pasted document could pretend to be the system or the assistant. Files often give such a token
the type of a word, so `_find_control_tokens` goes by its text too. The template mixes both parts into one text, and may
trim, test or slice what it is given. So we mark the user's part before it is rendered:

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
import heapq
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise

import numpy as np

from chapters.kit.chat.gguf_file import GGUF, GGUFError
from chapters.kit.chat.optional_packages import extra

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6  # types of tokens; UNUSED is 5
MARK = "\U0010fffd"  # the last private-use character
# in the tokens of SentencePiece; a vocabulary of 256,000 has 2 million
MOST_CHARACTERS = 10_000_000
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
# texts of tokens that end an answer, whatever their type; llama.cpp has these and some of vocabularies not read here
END = (
    "<|eot_id|> <|eom_id|> <|im_end|> <|end|> <|endoftext|> <|end_of_text|> <end_of_turn> <end_of_utterance> </s> "
    "<eos> <EOT> _<EOT> [EOT] [EOS] [e~[ <｜end▁of▁sentence｜> <|fim_pad|> <fim-pad> <fim_pad> <PAD> [PAD] "
    "<|fim_repo|> <|repo_name|> <fim-repo> <REPO> <reponame> <|file_sep|>"
)
# what reads like a control token, and what does if the template has it
MARKER = re.compile(r"<[|｜].*\w.*[|｜]>|<(start|end)_of_\w+>")
TAG = re.compile(r"<{1,2}[^\s<>]+>{1,2}|\[/?[A-Z_]+\]")


def _map_characters_to_bytes() -> dict[str, int]:
    """The byte that each character of a byte-level token stands for: itself if visible, or one from U+0100 on."""
    seen = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    unseen = [byte for byte in range(256) if byte not in seen]
    return {chr(b): b for b in seen} | {chr(256 + n): b for n, b in enumerate(unseen)}


BYTES = _map_characters_to_bytes()


@dataclass(frozen=True, eq=False)
class Tokenizer:
    """One model's tokenizer. Make it with `from_gguf`.

    tokens: the text of each token, as in the file. kinds: their types, one int32 per token; CONTROL for every one that
    reads so. control: the tokens that only a template may write: those, and tags that it has, such as <think>. bos,
    eos: the tokens before and after a text, or None. end_of_turn: the tokens with which a model ends its answer.
    add_bos: whether a prompt begins with bos. pieces: SentencePiece BPE, or None. space_prefix: whether each text gets
    a space before it, as SentencePiece does. bpe: a tokenizers.Tokenizer for text without special tokens, or None.
    """

    tokens: list[str]
    kinds: np.ndarray
    control: frozenset[int]
    bos: int | None
    eos: int | None
    end_of_turn: frozenset[int]
    add_bos: bool
    pieces: SentencePieces | None
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
        given = _read_per_token(gguf, "token_type", len(tokens))
        kinds = given.copy()  # a view would keep the whole file in memory
        default = {"bos": 1, "eos": 2} if pieces else {}  # where SentencePiece puts <s> and </s>
        bos, eos, *others = (
            _read_id(gguf, name, tokens, default.get(name)) for name in ("bos", "eos", "eot", "eom")
        )
        ids = {token: id for id, token in enumerate(tokens)}
        ends = {eos, *others, *map(ids.get, END.split())} - {None}
        template = gguf.field("tokenizer.chat_template", str, "")
        control = _find_control_tokens(tokens, kinds, ends | {bos} - {None}, template)
        if any(MARK in tokens[id] for id in control):
            raise GGUFError(
                f"{gguf.path} has a control token with the character U+{ord(MARK):X}, which the course needs to keep "
                "control tokens out of messages; choose another model."
            )
        text = {token: id for token, id in ids.items() if id not in control}
        merges = [] if pieces else gguf.field("tokenizer.ggml.merges", list)
        words = (tokens[id] for id in control if given[id] == NORMAL)  # such as Qwen 2's </s>
        if cuts := {f"{word[:at]} {word[at:]}" for word in words for at in range(1, len(word))}:
            merges = [merge for merge in merges if merge not in cuts]
        return cls(
            tokens=tokens,
            kinds=kinds,
            control=control,
            bos=bos,
            eos=eos,
            end_of_turn=frozenset(ends),
            add_bos=gguf.field("tokenizer.ggml.add_bos_token", bool, pieces or pre == "llama-bpe"),
            pieces=SentencePieces(gguf, text, kinds) if pieces else None,
            space_prefix=pieces and gguf.field("tokenizer.ggml.add_space_prefix", bool, True),
            bpe=None if pieces else _build_byte_level(gguf, text, merges, pre),
        )

    def encode(self, text: str) -> list[int]:
        """The tokens of a text; what reads like a control token is text too.

        As in llama.cpp, user-defined tokens are found in any text, because they stand for their text only; unless the
        template writes them. A byte for which the model has no token is dropped: SmolLM2 has none for six of the
        control characters.
        """
        ids = []
        for number, part in enumerate(self._defined.split(text)):
            if number % 2:
                ids.append(self._ids[part])
            elif part:
                ids += self._encode_plain(part)
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

    def _encode_plain(self, text: str) -> list[int]:
        text = re.sub("[\ud800-\udfff]", "\ufffd", text)  # bytes of the terminal that are not UTF-8
        if self.pieces:
            return self.pieces.encode((" " * self.space_prefix + text).replace(" ", "▁"))
        found = self.bpe.encode(text, add_special_tokens=False).ids
        return [id for id in found if id < len(self.tokens)]

    @cached_property
    def _ids(self) -> dict[str, int]:
        """The special tokens, by their texts."""
        special = np.flatnonzero(np.isin(self.kinds, (UNKNOWN, CONTROL, USER_DEFINED))).tolist()
        return {self.tokens[id]: id for id in special}

    @cached_property
    def _control(self) -> re.Pattern:
        return _match_any(t for t, id in self._ids.items() if id in self.control and len(t) > 1)

    @cached_property
    def _defined(self) -> re.Pattern:
        return _match_any(t for t, id in self._ids.items() if id not in self.control and t)


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


def _find_control_tokens(
    tokens: list[str], kinds: np.ndarray, named: set[int], template: str
) -> frozenset[int]:
    """The tokens that only the template may write, by their types, their texts and the `template`.

    named: those that begin or end a text or an answer. Changes `kinds`: what reads like a control token becomes
    CONTROL; what is only a tag in the template, such as <think>, USER_DEFINED: it is shown where the model writes it.
    """
    control = set(np.flatnonzero(np.isin(kinds, (UNKNOWN, CONTROL))).tolist())
    likely = {id for id, token in enumerate(tokens) if token[:1] in "<["} | named
    likely |= set(np.flatnonzero(kinds == USER_DEFINED).tolist())
    for id in likely - control:
        token, kind = tokens[id], kinds[id]
        reads = id in named or MARKER.fullmatch(token)
        tag = token.strip() if kind == USER_DEFINED else kind != BYTE and TAG.fullmatch(token)
        if len(token) > 1 and (reads or (tag and token in template)):
            control.add(id)
            kinds[id] = CONTROL if reads else USER_DEFINED
    return frozenset(control)


def _build_byte_level(gguf: GGUF, text: dict[str, int], merges: list[str], pre: str) -> object:
    """A tokenizers.Tokenizer for the tokens `text` and the file's merges.

    A byte without a token gets one beyond the others, which `Tokenizer` drops: the package would drop it before it
    merges, and so merge its neighbours, which llama.cpp does not.
    """
    beyond = len(gguf.field("tokenizer.ggml.tokens", list))
    vocabulary = {byte: beyond + number for number, byte in enumerate(BYTES)} | text
    tokenizers = extra("tokenizers")
    pairs = [tuple(merge.split(" ")) for merge in merges]
    try:
        bpe = tokenizers.models.BPE(vocabulary, pairs, ignore_merges=pre == "llama-bpe")
        found = tokenizers.Tokenizer(bpe)
    except Exception as error:  # the package raises nothing narrower
        raise GGUFError(
            f"The tokenizer of {gguf.path} contradicts itself ({str(error)[:200]!r}); convert the model again."
        ) from error
    ways = tokenizers.pre_tokenizers
    splits = [ways.Split(tokenizers.Regex(word), "isolated") for word in WORDS[pre]]
    as_bytes = ways.ByteLevel(add_prefix_space=False, use_regex=False)
    found.pre_tokenizer = ways.Sequence([*splits, as_bytes])
    return found


class SentencePieces:
    """Joins neighbours that form one of the tokens `text`, best score first, and the leftmost of equal ones.

    The package tokenizers cannot do it: in its list of merges no two are equal. Raises GGUFError if the file has not
    one score per token, or its tokens are too long.
    """

    def __init__(self, gguf: GGUF, text: dict[str, int], kinds: np.ndarray):
        scores, each = _read_per_token(gguf, "scores", len(kinds)).tolist(), kinds.tolist()
        places = {score: n for n, score in enumerate(sorted({*scores}, reverse=True))}
        self._ids = text
        self._ranks = {t: places[scores[id]] << 32 for t, id in text.items() if each[id] != BYTE}
        if sum(map(len, self._ranks)) > MOST_CHARACTERS:
            raise GGUFError(
                f"The tokens of {gguf.path} are too long: the longest has {max(map(len, text)):,} characters; choose "
                "another model."
            )
        # text splits where no token reaches across, and most of what lies between recurs
        self._neighbours = {pair for token in self._ranks for pair in pairwise(token)}
        self._word = lru_cache(maxsize=1 << 14)(self._join)

    def encode(self, text: str) -> list[int]:
        """The tokens of a text in which spaces are written as ▁."""
        ids, begin = [], 0
        for at, pair in enumerate(pairwise(text), 1):
            if pair not in self._neighbours:
                ids += self._word(text[begin:at])
                begin = at
        return ids + self._word(text[begin:])

    def _join(self, word: str) -> list[int]:
        ranks, end = self._ranks, len(word)
        parts, before, after = [*word], [*range(-1, end)], [*range(1, end + 1)]
        # each is a rank, and in its low bits where the left one of the two begins
        pairs = [ranks[a + b] + n for n, (a, b) in enumerate(pairwise(word)) if a + b in ranks]
        heapq.heapify(pairs)
        while pairs:
            pair = heapq.heappop(pairs)
            left = pair & 0xFFFFFFFF
            right = after[left]
            if not parts[left] or right == end:
                continue
            joined = parts[left] + parts[right]
            if ranks.get(joined) != pair - left:  # one of the two has been joined since
                continue
            parts[left], parts[right], after[left] = joined, "", after[right]
            before[after[left]] = left
            for at in (before[left], left):
                if at >= 0 and after[at] < end:
                    rank = ranks.get(parts[at] + parts[after[at]])
                    if rank is not None:
                        heapq.heappush(pairs, rank + at)
        ids = []
        for part in filter(None, parts):
            alone = [part] if part in ranks else [f"<0x{b:02X}>" for b in part.encode()]
            ids += [self._ids[piece] for piece in alone if piece in self._ids]
        return ids


def _read_per_token(gguf: GGUF, name: str, tokens: int) -> np.ndarray:
    """The field with one number per token."""
    values = gguf.field(f"tokenizer.ggml.{name}", np.ndarray)
    if len(values) != tokens:
        raise GGUFError(
            f"In {gguf.path}, tokenizer.ggml.{name} has {len(values)} numbers for {tokens} tokens; convert the "
            "model again."
        )
    return values


def _read_id(gguf: GGUF, name: str, tokens: list[str], default: int | None) -> int | None:
    """The token that the file names `name`; else `default` if that reads like one, else None."""
    id = gguf.field(f"tokenizer.ggml.{name}_token_id", int, None)
    if id is None:
        there = default is not None and default < len(tokens)
        return default if there and tokens[default] in ("<s>", "</s>") else None
    if not 0 <= id < len(tokens):
        raise GGUFError(
            f"In {gguf.path}, {name} is token {id} of {len(tokens)}; convert the model again."
        )
    return id


def _match_any(texts: Iterable[str]) -> re.Pattern:
    """Finds one of `texts`, the longest first, as a group."""
    longest_first = sorted(map(re.escape, texts), key=len, reverse=True)
    return re.compile(f"({'|'.join(longest_first) or '(?!)'})")
