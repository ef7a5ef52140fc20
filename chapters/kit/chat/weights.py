"""The weights of a Llama in a GGUF file, as the arrays of the course's layers, without a float copy of quantized ones.

The names of the tensors, and the order of the rows of q and k, are those of llama.cpp's converter
(https://github.com/ggml-org/llama.cpp, convert_hf_to_gguf.py).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import psutil

from chapters.kit.chat.cache_layout import LANES, rope_table
from chapters.kit.chat.gguf_file import GGUF, GGUFError
from chapters.kit.cpu.aligned import ALIGNED, aligned_bytes
from chapters.kit.decoder.llama_config import LlamaConfig
from chapters.kit.quantized.weight_blocks import (
    BLOCKS,
    PackedLayout,
    QuantizedRows,
    pack,
    read_floats,
    read_quantized_rows,
    stack_rows,
)

# what a decoder has at most: each layer and each pair of heads is code to compile, and a file may announce any number
MOST_LAYERS, MOST_HEADS, MOST_QUERIES, MOST_ELEMENTS = 256, 512, 64, 512
EPSILON = "attention.layer_norm_rms_epsilon"
LONGEST = 2048  # tokens of context, unless more are asked for: the cache takes memory for each
KNOWN = re.compile(  # the tensors of a Llama; any other would be left out of the computation
    r"(token_embd|output_norm|output|rope_freqs"
    r"|blk\.(?P<layer>0|[1-9]\d*)\.(attn_(norm|q|k|v|output)|ffn_(norm|gate|up|down)))\.weight"
)


@dataclass(frozen=True)
class Spec:
    """How a matrix of the model is stored: n rows of k weights in a form, or in float32 if `form` is None.

    A form stores rows of 0 behind the last one, up to a multiple of its lanes.
    """

    form: PackedLayout | None
    n: int
    k: int

    @property
    def arrays(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """{name of an array: (shape, dtype)}."""
        if self.form is None:
            return {"weight": ((self.n, self.k), "float32")}
        shapes = self.form.shapes(self.form.whole_panels(self.n), self.k)
        return dict(zip(("codes", "scales"), shapes, strict=True))

    @property
    def nbytes(self) -> int:
        return sum(math.prod(s) * np.dtype(dtype).itemsize for s, dtype in self.arrays.values())


def read_config(file: GGUF, context_window: int = LONGEST) -> LlamaConfig:
    """The sizes of the model in `file`, for a context of `context_window` tokens, or of fewer if the model has fewer.

    The context is a multiple of LANES: `context_window` is rounded up, and what the model has down.
    Raises GGUFError for another architecture, or for a feature that the course's decoder lacks.
    """
    architecture = file.field("general.architecture", str)
    if architecture != "llama":
        raise GGUFError(
            f"{file.path} holds a model of the architecture {architecture!r:.80}, and this command runs 'llama'; "
            "choose a Llama."
        )

    def number(name: str, kind: type = int, **default):
        return file.field(f"llama.{name}", kind, **default)

    if number("expert_count", default=0):
        raise GGUFError(
            f"{file.path} holds a mixture of experts, and this command runs one; choose a dense model."
        )
    scaling = number("rope.scaling.type", str, default="linear")
    if scaling not in ("none", "linear"):
        raise GGUFError(
            f"{file.path} scales positions by the method {scaling!r:.80}, and this command knows none and linear; "
            "choose another model."
        )
    sizes = "embedding_length attention.head_count block_count feed_forward_length context_length"
    positive = {name: number(name) for name in sizes.split()}
    hidden, heads, layers, inner, window = positive.values()
    kv_heads = positive["attention.head_count_kv"] = number(
        "attention.head_count_kv", default=heads
    )
    theta = positive["rope.freq_base"] = number("rope.freq_base", float, default=10000.0)
    epsilon = positive[EPSILON] = number(EPSILON, float)
    for name, value in positive.items():
        if not 0 < value < float("inf"):
            raise GGUFError(f"In {file.path}, llama.{name} is {value}; it must be positive.")
    for name in file.tensors:
        known = KNOWN.fullmatch(name)
        if not known or int(known["layer"] or 0) >= layers:
            raise GGUFError(
                f"{file.path} has a tensor {name!r:.80}, which the course's decoder lacks; choose another model."
            )
    head_dim = number("attention.key_length", default=hidden // heads)
    for what, found, most in (
        ("layers", layers, MOST_LAYERS),
        ("heads", heads, MOST_HEADS),
        ("heads for each key-value head", heads // kv_heads, MOST_QUERIES),
        ("elements in a head", head_dim, MOST_ELEMENTS),
    ):
        if found > most:
            raise GGUFError(
                f"{file.path} has {found:,} {what}, and this command compiles at most {most}; choose another model."
            )
    if head_dim < 4 or head_dim % 4:
        raise GGUFError(
            f"In {file.path}, a head has {head_dim} elements; it must be a multiple of 4."
        )
    if epsilon >= 1:
        raise GGUFError(f"In {file.path}, the norms' epsilon is {epsilon}; it must be below 1.")
    for name in ("attention.value_length", "rope.dimension_count"):
        if number(name, default=head_dim) != head_dim:
            raise GGUFError(
                f"In {file.path}, llama.{name} is not {head_dim}, the size of a head; choose another model."
            )
    try:
        return LlamaConfig(
            hidden_size=hidden,
            intermediate_size=inner,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            head_dim=head_dim,
            vocab_size=_require_shape(file, "token_embd.weight", (None, hidden))[0],
            context_window_size=LANES * max(1, min(window // LANES, -(-context_window // LANES))),
            rope_theta=theta,
            rms_norm_eps=epsilon,
        )
    except GGUFError:
        raise
    except ValueError as error:
        raise GGUFError(f"{file.path}: {error}") from error


def _require_shape(file: GGUF, name: str, shape: tuple[int | None, ...]) -> tuple[int, ...]:
    """The shape of a tensor, which must be `shape`; None stands for any extent."""
    if name not in file.tensors:
        raise GGUFError(
            f"{file.path} has no tensor {name}, which a Llama needs; choose another file."
        )
    found = file.tensors[name].shape
    if len(found) != len(shape) or any(
        b not in (None, a) for a, b in zip(found, shape, strict=True)
    ):
        raise GGUFError(
            f"In {file.path}, the tensor {name} has shape {found}, and the sizes in the file say {shape}; convert the "
            "model again."
        )
    return found


def check_memory(config: LlamaConfig, nbytes: int) -> None:
    """Raise ValueError if `nbytes`, which the context of a configuration takes, are more than this machine's memory."""
    memory = psutil.virtual_memory().total
    if nbytes > memory:
        raise ValueError(
            f"A context of {config.context_window_size:,} tokens takes {nbytes / 1e9:,.0f} GB, and this machine has "
            f"{memory / 1e9:,.0f} GB of memory; choose a smaller --context."
        )


class Weights:
    """The matrices and vectors of a Llama in `file`, with `lanes` rows of a quantized matrix side by side."""

    def __init__(self, file: GGUF, config: LlamaConfig, lanes: int):
        self.file, self.config, self.lanes = file, config, lanes
        c, hidden, inner = config, config.hidden_size, config.intermediate_size
        q, kv, d = c.num_attention_heads, c.num_key_value_heads, c.head_dim
        self.tied = "output.weight" not in file.tensors
        # the layer's name in the model -> its matrices in the file, in order, with their rows
        self.matrices = {"model.embed_tokens.matrix": [[("token_embd", c.vocab_size, hidden)]]}
        if not self.tied:
            self.matrices["lm_head"] = self._group_by_type([("output", c.vocab_size, hidden)])
        self.vectors = {"model.norm.weight": "output_norm"}
        heads = (("attn_q", q), ("attn_k", kv), ("attn_v", kv))
        in_layer = {
            "self_attn.qkv_proj": [(name, count * d, hidden) for name, count in heads],
            "self_attn.o_proj": [("attn_output", hidden, q * d)],
            "mlp.gate_up_proj": [(name, inner, hidden) for name in ("ffn_gate", "ffn_up")],
            "mlp.down_proj": [("ffn_down", hidden, inner)],
        }
        for i in range(c.num_hidden_layers):
            layer, target = f"blk.{i}.", f"model.layers.{i}."
            for name, parts in in_layer.items():
                prefixed = [(f"{layer}{part}", n, k) for part, n, k in parts]
                self.matrices[f"{target}{name}"] = self._group_by_type(prefixed)
            self.vectors[f"{target}input_layernorm.weight"] = f"{layer}attn_norm"
            self.vectors[f"{target}post_attention_layernorm.weight"] = f"{layer}ffn_norm"
        # only now, because a file may announce a head of any size, and the shapes above show whether that is true
        check_memory(config, 24 * config.context_window_size * d)  # float64 on the way
        self.rope = rope_table(config, self._rope_factors())

    def _group_by_type(
        self, matrices: list[tuple[str, int, int]]
    ) -> list[list[tuple[str, int, int]]]:
        """`matrices` in runs of one type, each of which is one matrix of the model."""
        runs: list[list[tuple[str, int, int]]] = []
        for name, n, k in matrices:
            _require_shape(self.file, f"{name}.weight", (n, k))
            alike = runs and self._type(runs[-1][-1][0]) == self._type(name)
            runs[-1].append((name, n, k)) if alike else runs.append([(name, n, k)])
        return runs

    def _type(self, name: str) -> str:
        return self.file.tensors[f"{name}.weight"].type

    def specs(self, layer: str) -> list[Spec]:
        """How each matrix of a layer is stored."""
        return [self._spec(run) for run in self.matrices[layer]]

    def _spec(self, run: list[tuple[str, int, int]]) -> Spec:
        n, k = sum(rows for _, rows, _ in run), run[0][2]
        kind = self._type(run[0][0])
        if kind not in BLOCKS:
            self.file.raw(f"{run[0][0]}.weight")  # refuses a type that nobody reads
            return Spec(None, n, k)
        codes = read_quantized_rows(kind, self.file.raw(f"{run[0][0]}.weight")[:1])
        return Spec(codes.form(self.lanes), n, k)

    def arrays(self) -> Iterator[tuple[str, np.ndarray]]:
        """(name of a parameter, its array) for all parameters, one at a time."""
        for name, run in self._runs():
            spec = self._spec(run)
            parts = [self._read_rows(*one) for one in run]
            packed = pack(stack_rows(parts), spec.form) if spec.form else [np.concatenate(parts)]
            for kind, array in zip(spec.arrays, packed, strict=True):
                yield f"{name}.{kind}", array
        for name, vector in self.vectors.items():
            yield name, self._read_vector(f"{vector}.weight", self.config.hidden_size)
        yield "model.rope", self.rope

    def shapes(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """{name of a parameter: (shape, dtype)} of what `arrays` gives."""
        found = {
            f"{name}.{kind}": described
            for name, run in self._runs()
            for kind, described in self._spec(run).arrays.items()
        }
        found |= {name: ((self.config.hidden_size,), "float32") for name in self.vectors}
        return {**found, "model.rope": (self.rope.shape, "float32")}

    def _runs(self) -> Iterator[tuple[str, list[tuple[str, int, int]]]]:
        """(name in the model, tensors in the file with their shapes) for each matrix."""
        for layer, runs in self.matrices.items():
            for at, run in enumerate(runs):
                yield layer if layer.endswith("matrix") else f"{layer}.parts.{at}", run

    def place(self) -> dict[str, np.ndarray]:
        """All arrays, one behind the other, in large pages where the system has them.

        A step reads all weights once. With pages of 4 KiB the processor looks up an address 25,000 times for each 100
        MB. Codes come first, and those of the layers before the head's, as a step reads them: a product asks for memory
        a little ahead, and beyond its own codes that should be what the next product begins with.
        """
        _, places = self._allocate()
        self._fill(places)
        return places

    def _fill(self, places: dict[str, np.ndarray]) -> None:
        for name, array in self.arrays():
            places[name][...] = array

    def _allocate(self) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """(memory for all arrays, its parts by the arrays' names)."""

        def order(name: str) -> tuple[bool, bool]:
            return not name.endswith(".codes"), not name.startswith("model.layers.")

        places, size, shapes = {}, 0, self.shapes()
        for name in sorted(shapes, key=order):
            shape, dtype = shapes[name]
            nbytes = math.prod(shape) * np.dtype(dtype).itemsize
            places[name] = slice(size, size + nbytes)
            size += -(-nbytes // ALIGNED) * ALIGNED
        room = aligned_bytes(size)
        return room, {
            name: room[place].view(shapes[name][1]).reshape(shapes[name][0])
            for name, place in places.items()
        }

    def _read_rows(self, name: str, n: int, k: int) -> QuantizedRows | np.ndarray:
        """A matrix of the file; of q and k, the two halves of each head's pairs apart, as the course rotates them."""
        raw, kind = self.file.raw(f"{name}.weight"), self._type(name)
        heads = {
            "attn_q": self.config.num_attention_heads,
            "attn_k": self.config.num_key_value_heads,
        }
        if (count := heads.get(name.rpartition(".")[2])) is not None:
            raw = raw[np.arange(n).reshape(count, -1, 2).swapaxes(1, 2).reshape(-1)]
        return read_quantized_rows(kind, raw) if kind in BLOCKS else read_floats(kind, raw)

    def _read_vector(self, name: str, length: int) -> np.ndarray:
        _require_shape(self.file, name, (length,))
        return read_floats(self.file.tensors[name].type, self.file.raw(name)).reshape(-1)

    def _rope_factors(self) -> np.ndarray:
        """What each pair's frequency is divided by: as in llama.cpp, by the file's table, and by a linear scale."""
        half, scale = self.config.head_dim // 2, 1.0
        if self.file.field("llama.rope.scaling.type", str, default="linear") == "linear":
            old = self.file.field("llama.rope.scale_linear", float, default=0.0)
            scale = self.file.field("llama.rope.scaling.factor", float, default=old) or 1.0
        if not 0 < scale < float("inf"):
            raise GGUFError(
                f"In {self.file.path}, llama.rope.scaling.factor is {scale}; it must be positive."
            )
        factors = np.full(half, scale)
        if "rope_freqs.weight" in self.file.tensors:
            factors *= self._read_vector("rope_freqs.weight", half)
        if not (np.isfinite(factors) & (factors > 0)).all():
            raise GGUFError(
                f"In {self.file.path}, rope_freqs.weight must be positive numbers; convert the model again."
            )
        return factors
