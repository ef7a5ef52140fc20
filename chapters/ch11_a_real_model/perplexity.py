"""Measures what storing the chat model in other types costs: `python -m chapters.ch11_a_real_model.perplexity`.

It takes some minutes and 3 GB of memory. With `--save` it writes docs/results/ch11_perplexity.json. Each variant is
made from the file's own weights, which have 4 bits already. So the losses here say what is lost on top of the file, and
not what the file lost when it was made.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from chapters.ch11_a_real_model.given import kinds_table
from chapters.ch11_a_real_model.passes import phases
from chapters.kit.bench.results import save
from chapters.kit.chat.compile_decoder import compile_decoder
from chapters.kit.chat.decoder_cache import Decoder
from chapters.kit.chat.gguf_file import BLOCKS, GGUF, read_gguf
from chapters.kit.chat.losses import READING, WINDOW, Model, losses
from chapters.kit.chat.model_cache import cached_model
from chapters.kit.chat.optional_packages import extra
from chapters.kit.chat.run_decoder import ChatModel
from chapters.kit.chat.tokenizer import Tokenizer
from chapters.kit.chat.weights import Weights, read_config
from chapters.kit.draw.table import Table
from chapters.kit.machine import llvm_host
from chapters.kit.quantized.dot_products import dot_products, lanes_of

NAME = "ch11_perplexity"
COMMAND = "python -m chapters.ch11_a_real_model.perplexity --save"
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
Types = Mapping[str, str]  # kind of matrix -> type of GGUF file
FLOATS, Q4_0, Q8_0 = (dict.fromkeys(KINDS, kind) for kind in ("F32", "Q4_0", "Q8_0"))
REFERENCE = "float32"
DEFAULT = "file, x in 8 bits"  # what a chat does
VARIANTS: dict[str, tuple[Types, bool]] = {  # name -> the types that differ from the file's, exact
    REFERENCE: (FLOATS, True),  # the first, because all others are compared with it
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


# --- a model that gives all logits -----------------------------------------------------------------


_COMPILED: dict[tuple, Decoder] = {}  # files whose matrices have the same types share a decoder


def make_verifier(file: GGUF, exact: bool, window: int = WINDOW) -> Model:
    """The model in `file`, compiled for this machine.

    Its products take x as in a chat: in 8 bits, or in float32 with `exact`; its cache too.
    """
    target = llvm_host()["target"]
    weights = Weights(file, read_config(file, window), lanes_of(target))
    key = exact, weights.config, repr([weights.specs(layer) for layer in weights.matrices])
    if key not in _COMPILED:
        _COMPILED[key] = compile_decoder(weights, target, phases, exact, ["batch_verify"])
    return ChatModel(_COMPILED[key], weights).all_logits


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


def measure(say: Callable[[str], None]) -> dict:
    """The perplexity of the default model for all variants, as a dictionary for a results file.

    say: is told which variant is next. Raises ValueError if the model is not in the cache. The entries:

    - text, text_sha256, model, model_sha256, tokens, scored, window: what was read;
    - int8: whether this processor has instructions for x in 8 bits. Without them, both ways of multiplying are one;
    - variants: name -> what VARIANTS says;
    - alone: kind -> Q4_0 for the matrices of this kind, the file's numbers for all others. All multiply in float32 by
      float32 matrices that hold the rounded numbers, so only the weights differ.

    Each entry has `perplexity`; `loss`, the logarithm of the perplexity over that of float32; `error`, the
    standard error of `loss`, as if tokens were independent; `types` per kind; and `bytes`, which a step reads of all
    matrices stored in these types. An entry of `alone` also has `bytes_of_kind`: of its matrices alone, in the file,
    in Q4_0 and in Q8_0.
    """
    path = cached_model()
    if path is None:
        raise ValueError("The chat model is not in the cache; run `python -m chapters chat` once.")
    file, text = read_gguf(path), READING.read_bytes()
    tokens = Tokenizer.from_gguf(file).encode(text.decode("utf-8"))

    found: dict[str, np.ndarray] = {}

    def measure_losses(name: str, types: Types, exact: bool, unpacked: bool = False) -> dict:
        """The entry for the file with `types`, multiplied as a chat would do it or, if `unpacked`, by float32."""
        say(name)
        stored = convert_file(file, types)
        read = convert_file(stored, FLOATS) if unpacked else stored
        found[name] = losses(make_verifier(read, exact), tokens)
        return _describe_losses(stored, found[name], found[REFERENCE])

    variants = {name: measure_losses(name, *how) for name, how in VARIANTS.items()}
    alone = {}
    for kind in KINDS:
        alone[kind] = measure_losses(f"{kind} alone in Q4_0", {kind: "Q4_0"}, True, unpacked=True)
        alone[kind]["bytes_of_kind"] = {
            "file": bytes_of(file, kind),
            **{one: bytes_of(convert_file(file, {kind: one}), kind) for one in ("Q4_0", "Q8_0")},
        }
    return {
        "text": READING.name,
        "text_sha256": hashlib.sha256(text).hexdigest(),
        "model": path.name,
        "model_sha256": hashlib.sha256(file.data).hexdigest(),
        "tokens": len(tokens),
        "scored": len(found[REFERENCE]),
        "window": WINDOW,
        "int8": dot_products(llvm_host()["target"]) is not None,
        "variants": variants,
        "alone": alone,
    }


def _describe_losses(stored: GGUF, found: np.ndarray, reference: np.ndarray) -> dict:
    """The entry of a results file for weights as `stored`, of the losses that were found and those in float32."""
    types = {matrix_kind(name): info.type for name, info in stored.tensors.items()}
    more = found - reference
    numbers = {
        "perplexity": math.exp(found.mean()),
        "loss": more.mean(),
        "error": more.std() / math.sqrt(len(more)),
    }
    return {
        "types": {kind: types[kind] for kind in KINDS},
        "bytes": sum(bytes_of(stored, kind) for kind in KINDS),
        **{name: float(f"{number:.6g}") for name, number in numbers.items()},
    }


# --- tables ---------------------------------------------------------------------------------------


def variants_table(results: dict) -> Table:
    """The perplexity of the whole model, per way of storing its weights and of multiplying."""
    rows = []
    for name, one in results["variants"].items():
        loss = f"{round(one['loss'], 4) + 0.0:+.4f} ± {one['error']:.4f}"  # + 0.0: no -0.0000
        rows.append((name, f"{one['bytes'] / 1e6:.1f}", f"{one['perplexity']:.2f}", loss))
    note = (
        f"{results['scored']:,} tokens of {results['text']} in windows of {results['window']}. The loss is the "
        "logarithm of the perplexity over that of float32, with its standard error. Where x has 8 bits, keys and "
        "values are stored in float16."
    )
    return Table(("weights", "MB per token", "perplexity", "loss"), rows, note)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--save", action="store_true", help="write the results file")
    options = parser.parse_args()
    try:
        results = measure(lambda text: print(f"  {text}", file=sys.stderr, flush=True))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"\n{variants_table(results)}\n\n{kinds_table(results['alone'])}")
    if options.save:
        print(f"\nWritten to {save(NAME, results, COMMAND)}.")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
