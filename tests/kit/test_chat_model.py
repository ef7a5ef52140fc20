"""Random Llamas in GGUF files: the compiled decoder gives the logits of a forward pass written in NumPy."""

from __future__ import annotations

import functools
import re
import warnings
from collections import Counter
from dataclasses import dataclass, field
from functools import cache, partial
from math import prod
from pathlib import Path

import numpy as np
import pytest
import tvm

from chapters.ch11_a_real_model.explain_kernels import explain
from chapters.ch11_a_real_model.passes import MULTIPLY, phases
from chapters.checking.programs import kernels
from chapters.kit.cases.guard_zones import QUICK_HERE
from chapters.kit.chat.cache_layout import LANES, rope_table
from chapters.kit.chat.chat_decoder import chat_decoder
from chapters.kit.chat.compile_decoder import add_share_tensors, compile_decoder
from chapters.kit.chat.gguf_file import GGUFError, read_gguf
from chapters.kit.chat.run_decoder import ChatModel
from chapters.kit.chat.weights import LONGEST, Weights, read_config
from chapters.kit.gpu.targets import DLIGHT_CUDA, WEBGPU
from chapters.kit.ir.tensor_ir import nodes
from chapters.kit.quantized.dequantize import match_dequantize
from chapters.kit.quantized.dot_products import dot_products, lanes_of
from chapters.kit.schedules.warn_of_fallback import FallbackWarning
from tests.kit.llama_in_numpy import Reference
from tests.support.kernels import relative_error, run_passes

gguf = pytest.importorskip("gguf")

HIDDEN, LAYERS, HEADS, KV_HEADS, INNER, VOCAB, WINDOW = 256, 2, 4, 2, 512, 320, 64
D = HIDDEN // HEADS
EPSILON, THETA = 1e-5, 500.0  # theta is small, so that slow pairs rotate within the window too
FIELDS = {
    "general.architecture": "llama",
    "llama.context_length": WINDOW,
    "llama.embedding_length": HIDDEN,
    "llama.block_count": LAYERS,
    "llama.feed_forward_length": INNER,
    "llama.attention.head_count": HEADS,
    "llama.attention.head_count_kv": KV_HEADS,
    "llama.attention.layer_norm_rms_epsilon": EPSILON,
    "llama.rope.freq_base": THETA,
    "llama.rope.dimension_count": D,
}
STEPS = [13, 1, 1, 20, 1, 28]  # tokens: together the whole window


# --- files ----------------------------------------------------------------------------------------


def shapes(vocab: int = VOCAB) -> dict[str, tuple[int, ...]]:
    """The tensors of a Llama, by their names in a file without ".weight"."""
    found = {"token_embd": (vocab, HIDDEN), "output_norm": (HIDDEN,), "output": (vocab, HIDDEN)}
    for layer in range(LAYERS):
        own = {
            "attn_norm": (HIDDEN,),
            "attn_q": (HEADS * D, HIDDEN),
            "attn_k": (KV_HEADS * D, HIDDEN),
            "attn_v": (KV_HEADS * D, HIDDEN),
            "attn_output": (HIDDEN, HEADS * D),
            "ffn_norm": (HIDDEN,),
            "ffn_gate": (INNER, HIDDEN),
            "ffn_up": (INNER, HIDDEN),
            "ffn_down": (HIDDEN, INNER),
        }
        found |= {f"blk.{layer}.{name}": shape for name, shape in own.items()}
    return found


def halves(numbers: np.ndarray) -> np.ndarray:
    """(rows, blocks) numbers as the two bytes of a float16 each."""
    return numbers.astype("<f2")[..., None].view("u1")


def random_blocks(kind: str, n: int, k: int, size: float, random: np.random.Generator):
    """Rows of random blocks of a type that the gguf package cannot write. The weights are about `size`."""
    blocks = n, k // 256
    near_one = random.uniform(0.5, 1.5, (2, *blocks))
    if kind == "Q4_K":  # scale * 6 bits * 4 bits - least * 6 bits: the means of both are equal
        head = [halves(size / 200 * near_one[0]), halves(size / 200 * 7.5 * near_one[1])]
        parts = [*head, random.integers(0, 256, (*blocks, 140), "u1")]
    else:  # Q6_K: 6 bits less 32, times a scale of 8 bits with a sign, times a float16
        parts = [
            random.integers(0, 256, (*blocks, 208), "u1"),
            halves(size / 1300 * near_one[0]),
        ]
    return np.concatenate(parts, axis=-1).reshape(n, -1)


def write_random_tensor(
    kind: str, shape: tuple[int, ...], random: np.random.Generator
) -> np.ndarray:
    """A random tensor as a file stores it, uint8 (rows, bytes) for all types but F32 and F16."""
    if len(shape) == 1:  # the weight of a norm
        return random.uniform(0.5, 1.5, shape).astype("float32")
    size = shape[1] ** -0.5
    if kind in ("Q4_K", "Q6_K"):
        return random_blocks(kind, *shape, size, random)
    floats = (random.standard_normal(shape) * size).astype("float32")
    return gguf.quantize(floats, gguf.GGMLQuantizationType[kind])


@dataclass
class Llama:
    """A random Llama. kinds: a tensor's name, without its layer, -> its type; "" for all others."""

    kinds: dict[str, str]
    tied: bool = False
    vocab: int = VOCAB
    fields: dict = field(default_factory=dict)  # added to FIELDS; None takes one away
    extra: dict[str, np.ndarray] = field(default_factory=dict)  # further tensors, float32
    without: tuple[str, ...] = ()  # tensors that the file lacks

    @functools.cached_property
    def stored(self) -> dict[str, tuple[str, np.ndarray]]:
        random, stored = np.random.default_rng(0), {}
        for name, shape in shapes(self.vocab).items():
            end = next(end for end in self.kinds if end in ("", name.rpartition(".")[2]))
            kind = "F32" if len(shape) == 1 else self.kinds[end]
            if not (self.tied and name == "output"):
                stored[name] = kind, write_random_tensor(kind, shape, random)
        return stored

    def save(self, path: Path) -> Path:
        writer = gguf.GGUFWriter(path, FIELDS["general.architecture"])
        for name, value in (FIELDS | self.fields).items():
            if name == "general.architecture":
                writer.kv_data[0][name].value = value
            elif isinstance(value, float):
                writer.add_float32(name, value)
            elif isinstance(value, str):
                writer.add_string(name, value)
            elif value is not None:
                writer.add_uint32(name, value)
        for name, (kind, array) in self.stored.items():
            if name not in self.without:
                writer.add_tensor(
                    f"{name}.weight", array, raw_dtype=gguf.GGMLQuantizationType[kind]
                )
        for name, array in self.extra.items():
            writer.add_tensor(name, array)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path


# --- the models -----------------------------------------------------------------------------------

FREQUENCIES = {"rope_freqs.weight": np.linspace(1, 8, D // 2).astype("float32")}
MIXED = {"token_embd": "Q8_0", "ffn_down": "Q4_0", "": "Q4_1"}
ODD = 321  # tokens: a vocabulary that does not fill the lanes of the head
LLAMAS = {
    "Q4_1, and Q8_0 shared": Llama(MIXED, tied=True, vocab=ODD),
    "Q4_K and Q6_K": Llama(
        {"token_embd": "Q4_K", "attn_v": "Q6_K", "ffn_down": "Q6_K", "output": "Q6_K", "": "Q4_K"}
    ),
    "floats, and an odd vocabulary": Llama(
        {
            "token_embd": "F16",
            "attn_k": "Q4_0",
            "attn_v": "BF16",
            "ffn_up": "F32",
            "output": "Q8_0",
            "": "F16",
        },
        vocab=325,
    ),
    "frequencies": Llama(MIXED, tied=True, vocab=ODD, extra=FREQUENCIES),
    "positions divided by 4": Llama(
        MIXED,
        tied=True,
        vocab=ODD,
        fields={"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0},
    ),
}
# models that differ in their table of rotations only, and the one whose compiled decoder serves them
SAME_DECODER = dict.fromkeys(["frequencies", "positions divided by 4"], "Q4_1, and Q8_0 shared")


OWN_LANES = lanes_of(QUICK_HERE)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Gives the path of the file of one of LLAMAS; each is written once."""
    folder = tmp_path_factory.mktemp("models")

    @cache
    def of(name: str) -> Path:
        return LLAMAS[name].save(folder / f"{name}.gguf")

    return of


@pytest.fixture(scope="module")
def model(path):
    """Gives the ChatModel of one of LLAMAS; each decoder is compiled once."""
    made: dict = {}

    def of(name: str, exact: bool) -> ChatModel:
        file = read_gguf(path(name))
        weights = Weights(file, read_config(file), OWN_LANES)
        key = SAME_DECODER.get(name, name), exact
        if key not in made:
            with warnings.catch_warnings():
                warnings.simplefilter("error", FallbackWarning)
                made[key] = compile_decoder(weights, QUICK_HERE, phases, exact)
        return ChatModel(made[key], weights)

    return of


def hold_conversation(model: ChatModel, reference: Reference):
    """(the logits of the model, those of the reference) after each of STEPS."""
    random, vocab = np.random.default_rng(1), len(reference.tensors["token_embd"].data)
    for s in STEPS:
        tokens = random.integers(0, vocab, s).tolist()
        yield model.feed(tokens), reference.feed(tokens)[-1]


@pytest.mark.parametrize("name", LLAMAS)
def test_exact_logits(name, model, path):
    held = model(name, True)
    for found, exact in hold_conversation(held, Reference(path(name))):
        assert found.shape == exact.shape and found.dtype == np.float32
        np.testing.assert_allclose(found, exact, rtol=0, atol=1e-4 * np.abs(exact).max())
    assert held.length == WINDOW == held.config.context_window_size


def rounding_reference(path: Path) -> Reference:
    """The reference that rounds x as the kernels of this processor do."""
    return Reference(path, rounds=bool(dot_products(QUICK_HERE)))


ROUNDED = ["Q4_1, and Q8_0 shared", "Q4_K and Q6_K", "floats, and an odd vocabulary"]


@pytest.mark.parametrize("name", ROUNDED)
def test_the_first_logits_with_x_in_8_bits(name, model, path):
    """They are those of a reference that rounds x to 8 bits too, in most of ten conversations.

    Not in all of them: an element of x half between two integers may be rounded up in float32 and down in float64.
    """
    held, random, errors = model(name, False), np.random.default_rng(2), []
    for s in [1, 3] * 5:
        tokens = random.integers(0, VOCAB, s).tolist()
        held.length = 0
        errors.append(
            relative_error(held.feed(tokens), rounding_reference(path(name)).feed(tokens)[-1])
        )
    assert np.median(errors) <= 1e-4, errors


@pytest.mark.parametrize("name", ROUNDED)
def test_a_conversation_with_x_in_8_bits(name, model, path):
    """Its logits stay near those of the reference that rounds x too.

    One element of x that is rounded the other way, by a whole step or 0.8 % of its group's largest, moves whatever
    comes after it, tokens that follow included. That stays below what all roundings of x together do: they move logits
    from exact ones by 2 to 5 % of the largest. A wrong row, scale or head moves a logit by as much as its own size.
    """
    for found, exact in hold_conversation(model(name, False), rounding_reference(path(name))):
        assert relative_error(found, exact) <= 0.05


def test_what_the_virtual_machine_does_between_the_kernels_of_a_step(model):
    """The layers share a few tensors, and leave no tuple and no reshape: only weights are looked up in each layer."""
    held, called = model("Q4_1, and Q8_0 shared", False), Counter()
    held.feed([1])
    held.vm["set_instrument"](
        lambda _func, name, before, *_: called.update([str(name)] if before else []) or 0
    )
    held.feed([2])
    assert sum("attention" in name for name in called.elements()) == LAYERS
    assert called["vm.builtin.make_tuple"] == 1  # the results
    assert called["vm.builtin.reshape"] == 1  # the embedded token
    assert called["vm.builtin.alloc_tensor"] <= 12


def test_one_weight_at_a_time_gives_the_same_logits(model, path):
    file = read_gguf(path("Q4_1, and Q8_0 shared"))
    weights = Weights(file, read_config(file), OWN_LANES)
    without = partial(phases, without=MULTIPLY)
    apart = compile_decoder(weights, QUICK_HERE, without, functions=["prefill"])
    models = model("Q4_1, and Q8_0 shared", False), ChatModel(apart, weights)
    found = [one.feed([3, 1, 4, 1, 5]) for one in models]
    np.testing.assert_allclose(found[0], found[1], atol=1e-4 * np.abs(found[0]).max())


@pytest.mark.skipif(not dot_products(QUICK_HERE), reason="products are floats on this processor")
def test_explain_names_whose_code_made_each_kernel(model, path):
    held = model("Q4_1, and Q8_0 shared", False)
    table = explain(held, read_gguf(path("Q4_1, and Q8_0 shared")), held.config, False, "", 3)
    by_name = {row[0]: row for row in table.rows}
    products = [row for name, row in by_name.items() if "dequantize_NT_matmul" in name]
    assert products and all(
        row[3:] == ("ScheduleQuantizedMatmuls", products[0][4]) for row in products
    )
    assert products[0][4] == "the reference's (11.3, 11.4)"
    assert by_name["fuse_add_norm_prefill"][4] == "the reference's (4)"
    assert any("attention" in name and row[4] == "given" for name, row in by_name.items())
    shares = [float(row[2].rstrip("%")) for row in table.rows]
    assert 99 < sum(shares) < 101


@pytest.mark.parametrize("target", [QUICK_HERE, DLIGHT_CUDA, WEBGPU], ids=["CPU", "CUDA", "WGSL"])
def test_no_kernel_writes_the_floats_of_a_matrix(target, path):
    """Each product of the decoder unpacks its own matrix, and has its schedule."""
    file = read_gguf(path("Q4_K and Q6_K"))
    on_cpu = target is QUICK_HERE
    mod, _ = chat_decoder(Weights(file, read_config(file), lanes_of(target)), on_gpu=not on_cpu)
    passes = add_share_tensors(phases(target, variable_bounds={"seq_len": WINDOW}))
    name = "ScheduleQuantizedMatmuls" if on_cpu else "ScheduleQuantizedMatmulsOnGPU"
    at = [str(one.info.name) for one in passes].index(name)
    found = kernels(run_passes(passes[: at + 1], mod, target))
    assert not [name for name, func in found.items() if match_dequantize(func)]
    products = [func for name, func in found.items() if "NT_matmul" in name]
    assert len(products) >= 10  # q and k, v, o, gate and up, down: each for one token and for many
    assert all("tirx.is_scheduled" in func.attrs for func in products)
    sizes = {prod(shape) for shape in shapes().values() if len(shape) == 2}
    sizes |= {2 * INNER * HIDDEN, (HEADS + KV_HEADS) * D * HIDDEN}
    for func in found.values():
        for buffer in {var for var in nodes(func, tvm.tirx.Var) if tvm.tirx.is_buffer_var(var)}:
            extents = [int(one) for one in buffer.shape if isinstance(one, tvm.tirx.IntImm)]
            if str(buffer.dtype) == "float32" and buffer not in func.params:
                assert str(buffer.scope()) not in ("", "global") or prod(extents) not in sizes


# --- what the weights are -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ROUNDED)
def test_the_arrays_are_those_of_the_model(name, path):
    """The decoder's parameters, in their shapes and dtypes, and the bytes that `Spec` says."""
    file = read_gguf(path(name))
    weights = Weights(file, read_config(file), 16)
    mod, names = chat_decoder(weights, ["decode"])
    arrays = dict(weights.arrays())
    assert set(arrays) == set(names)
    *_, packed = mod["decode"].params
    for name, ty in zip(names, packed.ty.fields, strict=True):
        assert arrays[name].shape == tuple(int(n) for n in ty.shape), name
        assert str(arrays[name].dtype) == str(ty.dtype), name
        assert arrays[name].flags.c_contiguous
    for layer in weights.matrices:
        own = sum(array.nbytes for name, array in arrays.items() if name.startswith(f"{layer}."))
        assert own == sum(spec.nbytes for spec in weights.specs(layer))


def test_a_vocabulary_of_any_size_fills_the_lanes(path):
    """Rows of 0 follow the last token's, so the head is a product of whole panels."""
    file = read_gguf(path("Q4_1, and Q8_0 shared"))
    weights = Weights(file, read_config(file), OWN_LANES)
    (spec,) = weights.specs("model.embed_tokens.matrix")
    assert spec.form.lanes == OWN_LANES and spec.n == ODD
    scales = dict(weights.arrays())["model.embed_tokens.matrix.scales"]
    rows = scales[:, :, 0].swapaxes(1, 2).reshape(-1, scales.shape[1])
    assert len(rows) % OWN_LANES == 0 and (rows[:ODD] != 0).any(1).all()
    assert (rows[ODD:] == 0).all()


def test_neighbours_of_one_type_are_one_matrix(path):
    file = read_gguf(path("Q4_K and Q6_K"))
    weights = Weights(file, read_config(file), 16)
    rows = {layer: [spec.n for spec in weights.specs(layer)] for layer in weights.matrices}
    assert rows["model.layers.0.self_attn.qkv_proj"] == [(HEADS + KV_HEADS) * D, KV_HEADS * D]
    assert rows["model.layers.1.mlp.gate_up_proj"] == [2 * INNER]


# --- configurations, and what is refused ----------------------------------------------------------

SMALL = {"": "Q8_0"}


def open_model(llama: Llama, path: Path):
    """(the file of a model, its configuration), as `chat` reads them."""
    file = read_gguf(llama.save(path / "model.gguf"))
    return file, read_config(file)


@pytest.mark.parametrize(
    ("asked", "in_file", "window"),
    [
        (LONGEST, 64, 64),
        (LONGEST, 5000, 2048),
        (48, 64, 48),
        (50, 100, 64),
        (65, 79, 64),
        (5000, 5000, 4992),
    ],
)
def test_the_context_is_a_multiple_of_a_block(asked, in_file, window, tmp_path):
    llama = Llama(SMALL, fields={"llama.context_length": in_file})
    file, _ = open_model(llama, tmp_path)
    assert read_config(file, asked).context_window_size == window
    assert window % LANES == 0


def test_what_a_file_may_leave_out(tmp_path):
    """The sizes of a head, the number of key-value heads, and theta, as llama.cpp completes them."""
    absent = ["attention.head_count_kv", "rope.freq_base", "rope.dimension_count"]
    file, config = open_model(
        Llama(SMALL, fields={f"llama.{name}": None for name in absent}), tmp_path
    )
    assert config.num_key_value_heads == HEADS and config.rope_theta == 10000.0
    assert config.head_dim == D
    with pytest.raises(GGUFError):  # the file's k and v are those of two heads
        Weights(file, config, 16)


def test_a_head_may_have_another_size(tmp_path):
    fields = {f"llama.{name}": 32 for name in ("attention.key_length", "attention.value_length")}
    _, config = open_model(
        Llama(SMALL, fields={**fields, "llama.rope.dimension_count": 32}), tmp_path
    )
    assert config.head_dim == 32


def with_fields(**fields) -> Llama:
    return Llama(SMALL, fields={f"llama.{name}": value for name, value in fields.items()})


HEAD = ("attention.key_length", "rope.dimension_count", "attention.value_length")
# fields that are changed -> what the sentence must name
WRONG_FIELDS = [
    ({"attention.key_length": 512, **dict.fromkeys(HEAD[1:])}, "blk.0.attn_q.weight has shape"),
    ({"attention.key_length": 2**31 - 4}, "2,147,483,644 elements in a head"),
    (dict.fromkeys(HEAD, 63), "63 elements"),
    ({"attention.value_length": 32}, "value_length"),
    ({"rope.dimension_count": D // 2}, "dimension_count"),
    ({"attention.head_count": 1024, "attention.head_count_kv": 1024}, "1,024 heads"),
    ({"attention.head_count": 65, "attention.head_count_kv": 1}, "65 heads for each key-value"),
    ({"attention.head_count_kv": 3}, "no multiple of"),
    ({"attention.layer_norm_rms_epsilon": 2.0}, "must be below 1"),
    ({"attention.layer_norm_rms_epsilon": None}, "llama.attention.layer_norm_rms_epsilon"),
    ({"rope.scaling.type": 999 * "x"}, "the method 'xxx"),
    ({"expert_count": 8}, "mixture of experts"),
    ({"block_count": 257}, "257 layers"),
    ({"block_count": LAYERS + 1}, f"no tensor blk.{LAYERS}.attn_q.weight"),
    ({"block_count": "two"}, "llama.block_count"),
    ({"block_count": 0}, "llama.block_count is 0"),
    ({"attention.head_count": 0}, "llama.attention.head_count is 0"),
    ({"attention.head_count_kv": 0}, "llama.attention.head_count_kv is 0"),
    ({"context_length": 0}, "llama.context_length is 0"),
    ({"feed_forward_length": 0}, "llama.feed_forward_length is 0"),
    ({"embedding_length": None}, "llama.embedding_length"),
]
WITHOUT = ("token_embd", "blk.0.attn_q", "blk.1.ffn_norm")
WRONG_SHAPES = {
    "token_embd": (VOCAB, HIDDEN // 2),
    "output": (VOCAB + 32, HIDDEN),
    "blk.0.attn_k": (HEADS * D, HIDDEN),
    "blk.1.attn_norm": (HIDDEN, 1),
}
FURTHER_TENSORS = {
    f"blk.{LAYERS}.attn_norm.weight": ((HIDDEN,), f"blk.{LAYERS}."),
    "blk.00.attn_norm.weight": ((HIDDEN,), "blk.00."),  # a layer written otherwise
    "blk.0.attn_q.bias": ((HEADS * D,), "blk.0.attn_q.bias"),
    "blk.1.ffn_gate_inp.weight": ((8, HIDDEN), "blk.1.ffn_gate_inp.weight"),  # of experts
    "rope_freqs.weight": ((D // 2,), "rope_freqs.weight must be positive"),  # they are zeros
}
REFUSED = [  # a model, and what the sentence must name
    (
        Llama({"ffn_up": "Q5_0", "": "Q8_0"}),
        "blk.0.ffn_up.weight in PATH is stored as type 6 (Q5_0)",
    ),
    (
        Llama(SMALL, fields={"general.architecture": "qwen2\x1b[31m\nred" + 2000 * "A"}),
        r"architecture 'qwen2\x1b[31m\nredAAA",
    ),
    *((with_fields(**fields), part) for fields, part in WRONG_FIELDS),
    *((Llama(SMALL, without=(name,)), f"no tensor {name}.weight") for name in WITHOUT),
    *(
        (
            Llama(SMALL, without=(name,), extra={f"{name}.weight": np.zeros(shape, "float32")}),
            f"{name}.weight has shape",
        )
        for name, shape in WRONG_SHAPES.items()
    ),
    *(
        (Llama(SMALL, extra={name: np.zeros(shape, "float32")}), part)
        for name, (shape, part) in FURTHER_TENSORS.items()
    ),
    (
        Llama(SMALL, extra={"rope_freqs.weight": np.ones(D, "float32")}),
        "rope_freqs.weight has shape",
    ),
]


@pytest.mark.parametrize(("llama", "part"), REFUSED, ids=[part for _, part in REFUSED])
def test_a_file_is_refused_in_one_sentence(llama, part, tmp_path, monkeypatch):
    """Before a false size in the file could make a large table."""

    def table(config, *_):
        assert config.head_dim < 1000
        return rope_table(config, *_)

    monkeypatch.setattr("chapters.kit.chat.weights.rope_table", table)
    path = tmp_path / "model.gguf"
    with pytest.raises(GGUFError) as refused:
        file, config = open_model(llama, tmp_path)
        list(Weights(file, config, 16).arrays())
    message = str(refused.value).replace(str(path), "PATH")
    assert part in message and "PATH" in message
    assert message.endswith(".") and message.isprintable() and len(message) < 500
    assert not re.search(r"[.!?] [A-Z]", message)


def test_a_context_that_does_not_fit_into_memory_is_refused(tmp_path):
    file, _ = open_model(with_fields(context_length=2**32 - 16), tmp_path)
    with pytest.raises(
        ValueError,
        match=r"A context of 4,000,000,000 tokens takes .* choose a smaller --context",
    ):
        Weights(file, read_config(file, 4 * 10**9), 16)
