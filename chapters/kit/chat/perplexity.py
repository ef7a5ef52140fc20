"""How well a chat model predicts a text, for several ways of storing its weights and of multiplying by them.

Each variant is made from the file's own weights, which have 4 bits already. So the losses here say what is lost on top
of the file, and not what the file lost when it was made.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from chapters.kit.chat.compile_decoder import compile_decoder
from chapters.kit.chat.decoder_cache import Decoder
from chapters.kit.chat.gguf_file import BLOCKS, GGUF, read_gguf
from chapters.kit.chat.losses import READING, WINDOW, losses
from chapters.kit.chat.optional_packages import extra
from chapters.kit.chat.run_decoder import ChatModel
from chapters.kit.chat.tokenizer import Tokenizer
from chapters.kit.chat.weights import Weights, read_config
from chapters.kit.machine import llvm_host
from chapters.kit.quantized.dot_products import dot_products, lanes_of

KINDS = (  # of matrices: how the names of their tensors end, without ".weight"
    "attn_q",
    "attn_k",
    "attn_v",
    "attn_output",
    "ffn_gate",
    "ffn_up",
    "ffn_down",
    "token_embd",  # the embedding; in a model without "output" also the head
)
FLOATS = dict.fromkeys(KINDS, "F32")
Types = Mapping[str, str]  # kind of matrix -> type of GGUF file


# --- a model that gives all logits -----------------------------------------------------------------


class Reader(ChatModel):
    """A compiled decoder with the functions of READS, which gives the logits after all tokens and not only the last.

    Its products take x as in a chat: in 8 bits, or in float32 if the decoder was compiled with `exact`; its cache too.
    """

    def all_logits(self, tokens: Sequence[int]) -> np.ndarray:
        """The logits after each of `tokens`, a new conversation: float32 (len(tokens), vocab_size)."""
        return self._run("batch_verify", tokens, 0)[0]


READS = ("batch_verify",)


class Readers:
    """Compiles a Reader for a file; files whose matrices have the same types share what was compiled.

    phases: chapter 11's function of this name.
    """

    def __init__(self, phases: Callable, window: int = WINDOW):
        self.phases, self.window, self.target = phases, window, llvm_host()["target"]
        self.dots = dot_products(self.target)  # None: products always take x in float32
        self._compiled: dict[tuple, Decoder] = {}

    def reader(self, file: GGUF, exact: bool) -> Reader:
        """exact: products take x in float32."""
        weights = Weights(file, read_config(file, self.window), lanes_of(self.target))
        key = exact, repr([weights.specs(layer) for layer in weights.matrices])
        if key not in self._compiled:
            self._compiled[key] = compile_decoder(weights, self.target, self.phases, exact, READS)
        return Reader(self._compiled[key], weights)


# --- the weights in other types -------------------------------------------------------------------


def matrix_kind(name: str) -> str:
    """The kind of a tensor: "attn_q" for "blk.0.attn_q.weight"."""
    return name.removesuffix(".weight").rpartition(".")[2]


def convert_file(file: GGUF, types: Types) -> GGUF:
    """`file` with each matrix of a kind in `types` in that type, all in memory; the other tensors stay as they are.

    types: kind -> type, among those that `gguf.quantize` knows. A matrix that has its type already keeps its bytes.
    Raises ValueError for a kind that no tensor has, or if the package gguf is missing.
    """
    if missing := set(types) - {matrix_kind(name) for name in file.tensors}:
        raise ValueError(f"{file.path} has no matrix of the kind {', '.join(sorted(missing))}.")
    tensors, at = {}, 0
    for name, info in file.tensors.items():
        kind = types.get(matrix_kind(name), info.type)
        elements, size = BLOCKS[kind]
        nbytes = math.prod(info.shape) // elements * size
        tensors[name] = replace(info, type=kind, offset=at, nbytes=nbytes)
        at += nbytes
    data = np.empty(at, "uint8")
    for name, info in tensors.items():
        raw = _convert_rows(file.raw(name), file.tensors[name].type, info.type)
        data[info.offset : info.offset + info.nbytes] = raw.reshape(-1)
    return replace(file, tensors=tensors, data=data)


def _convert_rows(raw: np.ndarray, old: str, new: str) -> np.ndarray:
    """Rows of the type `old`, uint8 (n, bytes per row), in the type `new`."""
    if old == new:
        return raw
    gguf = extra("gguf", "bench")
    types = gguf.GGMLQuantizationType
    return gguf.quantize(gguf.dequantize(raw, types[old]), types[new]).view("uint8")


def bytes_of(file: GGUF, kind: str) -> int:
    """The bytes of all matrices of a kind, which is what a step reads of them: each matrix once.

    The embedding is counted once, as the head. That a step also reads one row of it, to embed its token, is left out.
    """
    return sum(info.nbytes for name, info in file.tensors.items() if matrix_kind(name) == kind)


# --- all variants ---------------------------------------------------------------------------------

REFERENCE = "float32"
DEFAULT = "file, x in 8 bits"  # what a chat does
Q4_0, Q8_0 = dict.fromkeys(KINDS, "Q4_0"), dict.fromkeys(KINDS, "Q8_0")
VARIANTS: dict[str, tuple[Types, bool]] = {  # name -> the types that differ from the file's, exact
    REFERENCE: (FLOATS, True),
    "file, x in float32": ({}, True),
    DEFAULT: ({}, False),
    "Q8_0, x in float32": (Q8_0, True),
    "Q8_0, x in 8 bits": (Q8_0, False),
    "Q4_0 and the file's embedding, x in 8 bits": (
        {kind: "Q4_0" for kind in KINDS if kind != "token_embd"},
        False,
    ),
    "Q4_0, x in float32": (Q4_0, True),
    "Q4_0, x in 8 bits": (Q4_0, False),
}


def measure(
    path: Path, phases: Callable, say: Callable[[str], None], reading: Path = READING
) -> dict:
    """The perplexity of the model at `path` for all variants, as a dictionary for a results file.

    phases: chapter 11's function of this name. say: is told which variant is next. The entries:

    - text, text_sha256, model, model_sha256, tokens, scored, window: what was read;
    - int8: whether this processor has instructions for x in 8 bits. Without them, both ways of multiplying are one;
    - variants: name -> what VARIANTS says;
    - alone: kind -> Q4_0 for the matrices of this kind, the file's numbers for all others;
    - kept: kind -> Q8_0 for the matrices of this kind, Q4_0 for all others.

    `alone` and `kept` multiply in float32 by float32 matrices that hold the rounded numbers, so only the weights
    differ. Each entry has `perplexity`; `loss`, the logarithm of the perplexity over that of float32; `error`, the
    standard error of `loss`, as if tokens were independent; `types` per kind; and `bytes`, which a step reads of all
    matrices stored in these types. An entry of `alone` also has `bytes_of_kind`: of its matrices alone, in the file,
    in Q4_0 and in Q8_0.
    """
    file, text = read_gguf(path), reading.read_bytes()
    tokens = Tokenizer.from_gguf(file).encode(text.decode("utf-8"))
    compare = _Comparison(file, tokens, Readers(phases), say)
    variants = {name: compare.variant(name, *how) for name, how in VARIANTS.items()}
    alone, kept = {}, {}
    for kind in KINDS:
        types = {kind: "Q4_0"}
        alone[kind] = compare.weights(f"{kind} alone in Q4_0", types)
        alone[kind]["bytes_of_kind"] = {
            "file": bytes_of(file, kind),
            **{one: bytes_of(convert_file(file, {kind: one}), kind) for one in ("Q4_0", "Q8_0")},
        }
        types = {**Q4_0, kind: "Q8_0"}
        kept[kind] = compare.weights(f"{kind} in Q8_0, all others in Q4_0", types)
    return {
        "text": reading.name,
        "text_sha256": hashlib.sha256(text).hexdigest(),
        "model": path.name,
        "model_sha256": hashlib.sha256(file.data).hexdigest(),
        "tokens": len(tokens),
        "scored": len(compare.reference),
        "window": WINDOW,
        "int8": compare.readers.dots is not None,
        "variants": variants,
        "alone": alone,
        "kept": kept,
    }


class _Comparison:
    """Measures one variant of `file` after the other, and compares each with the file's numbers in float32."""

    def __init__(self, file: GGUF, tokens: Sequence[int], readers: Readers, say: Callable):
        self.file, self.tokens, self.readers, self.say = file, tokens, readers, say
        self.reference = self._measure_losses(REFERENCE, convert_file(file, FLOATS), True)

    def _measure_losses(self, name: str, stored: GGUF, exact: bool) -> np.ndarray:
        self.say(name)
        return losses(self.readers.reader(stored, exact), self.tokens)

    def variant(self, name: str, types: Types, exact: bool) -> dict:
        """The entry for the file with `types`, multiplied as a chat would do it."""
        stored = convert_file(self.file, types)
        if name == REFERENCE:
            return self._describe_losses(stored, self.reference)
        return self._describe_losses(stored, self._measure_losses(name, stored, exact))

    def weights(self, name: str, types: Types) -> dict:
        """The entry for the file with `types`, multiplied in float32 by matrices of float32."""
        stored = convert_file(self.file, types)
        return self._describe_losses(
            stored, self._measure_losses(name, convert_file(stored, FLOATS), True)
        )

    def _describe_losses(self, stored: GGUF, found: np.ndarray) -> dict:
        types = {matrix_kind(name): info.type for name, info in stored.tensors.items()}
        more = found - self.reference
        return {
            "types": {kind: types[kind] for kind in KINDS},
            "bytes": sum(bytes_of(stored, kind) for kind in KINDS),
            "perplexity": _round_digits(math.exp(found.mean())),
            "loss": _round_digits(more.mean()),
            "error": _round_digits(more.std() / math.sqrt(len(more))),
        }


def _round_digits(value: float) -> float:
    """`value` with six significant digits."""
    return float(f"{value:.6g}")
