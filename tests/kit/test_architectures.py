"""The compiler on models that others wrote: PyTorch's numbers, and the kernels that the course's passes fuse.

They are Transformers' own classes, small and with random weights. The attention is Transformers' eager one, and the
mask is an input, because the code that makes masks is exported with operators that TVM compiles to invalid code.
"""

from collections import Counter

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.s_tir import SBlock

from chapters.kit.cases.guard_zones import QUICK_HERE
from chapters.kit.ir.relax_effects import calls_in
from chapters.kit.ir.tensor_ir import nodes
from chapters.kit.models.from_torch import import_program, run_torch
from chapters.kit.schedules.warn_of_fallback import trace_schedulers
from solutions.ch09_the_compiler.pipeline import phases
from solutions.ch10_imported_models.imported_models import canonicalize
from tests.support.kernels import run_main

pytest.importorskip("torch", reason="needs PyTorch: pip install -e '.[models]'")
pytest.importorskip("transformers", reason="needs Transformers: pip install -e '.[models]'")

TOLERANCE = 1e-5  # of the largest number: two layers in float32 differ by a few 1e-7, sums in another order included
NORMS = {"Llama": 5, "Mistral": 5, "Qwen2": 5, "Qwen3": 9, "Gemma 2": 9}  # others have LayerNorm
PAIRS = dict.fromkeys(NORMS, 4)  # of an add and the norm of its result, fused
# queries with keys, and weights with values: chapter 5's schedules need a constant matrix, and these have none
TWO_ACTIVATIONS = {"TileProducts"}
LINEAR = ("Linear", "Conv1D", "Conv2d")  # GPT-2's name for a linear layer, and ViT's patches
LEFT_OUT = {"BERT": 1, "ViT": 1}  # the linear layers of poolers, which read the hidden states

HIDDEN, WIDE = 48, 80  # no two sizes are equal, so that a swapped pair shows
SIZES = {
    "vocab_size": 96,  # as `random_model` draws them, for 7 tokens
    "hidden_size": HIDDEN,
    "intermediate_size": WIDE,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "attn_implementation": "eager",  # one that is written in PyTorch's own operators
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
GROUPED = {**SIZES, "num_key_value_heads": 2}
GPT2 = {"n_embd": HIDDEN, "n_layer": 2, "n_head": 4, "n_positions": 64}
IMAGE = {"image_size": 12, "patch_size": 4}
# name: (class, class of its configuration, sizes)
ARCHITECTURES = {
    "Llama": ("LlamaForCausalLM", "LlamaConfig", GROUPED),
    "Mistral": ("MistralForCausalLM", "MistralConfig", {**GROUPED, "head_dim": 12}),
    "Qwen2": ("Qwen2ForCausalLM", "Qwen2Config", GROUPED),
    "Qwen3": ("Qwen3ForCausalLM", "Qwen3Config", {**GROUPED, "head_dim": 20}),
    "Phi": ("PhiForCausalLM", "PhiConfig", SIZES),
    "GPT-2": ("GPT2LMHeadModel", "GPT2Config", {**SIZES, **GPT2}),
    "GPT-NeoX": ("GPTNeoXForCausalLM", "GPTNeoXConfig", SIZES),
    "Gemma 2": ("Gemma2ForCausalLM", "Gemma2Config", {**GROUPED, "head_dim": 20}),
    "StableLM": ("StableLmForCausalLM", "StableLmConfig", {**GROUPED, "partial_rotary_factor": 0.5}),
    "BERT": ("BertModel", "BertConfig", SIZES),
    "ViT": ("ViTModel", "ViTConfig", {**SIZES, **IMAGE}),
}  # fmt: skip


def build(name: str) -> tuple:
    """(module, example inputs) of one architecture."""
    import torch
    import transformers

    from chapters.ch10_imported_models.models import random_model

    class LastHiddenState(torch.nn.Module):
        """Takes tensors, which are the arguments of these names, and returns one tensor."""

        def __init__(self, model, *names):
            super().__init__()
            self.model, self.names = model, names

        def forward(self, *inputs):
            return self.model(**dict(zip(self.names, inputs, strict=True))).last_hidden_state

    model, config, sizes = ARCHITECTURES[name]
    config = getattr(transformers, config)(**sizes)
    made, (ids, mask) = random_model(getattr(transformers, model), config)
    if name == "ViT":
        return LastHiddenState(made.model, "pixel_values"), (torch.randn(1, 3, 12, 12),)
    if name == "BERT":  # each token sees all others
        names = "input_ids", "attention_mask"
        return LastHiddenState(made.model, *names), (ids, torch.zeros_like(mask))
    return made, (ids, mask)


@pytest.fixture(params=ARCHITECTURES, scope="module")
def case(request):
    """(name, model, example inputs, the imported module, its canonical form)."""
    model, inputs = build(request.param)
    mod = import_program(model, inputs)
    return request.param, model, inputs, mod, canonicalize()(mod)


@pytest.fixture(scope="module")
def kernels(case) -> tuple[tvm.IRModule, dict[str, str]]:
    """The module of kernels without schedules, and the pass that scheduled each of them."""
    mod, found = case[-1], phases(QUICK_HERE)
    lowered, first = trace_schedulers(mod, found["graph and lower"], QUICK_HERE)
    _, then = trace_schedulers(lowered, found["schedule"], QUICK_HERE)
    return lowered, then | first


def products(mod: tvm.IRModule) -> dict[str, bool]:
    """For each kernel with a product, whether one operand is a matrix, as the weight of a linear layer is."""
    found = {}
    for gvar, func in mod.functions_items():
        blocks = nodes(func.body, SBlock) if isinstance(func, tirx.PrimFunc) else []
        for block in blocks:
            if "matmul" in block.name_hint and len(block.reads) == 2:
                ranks = [len(region.source.shape) for region in block.reads]
                found[gvar.name_hint] = 2 in ranks
    return found


def test_numbers_are_those_of_pytorch(case):
    _, model, inputs, _, mod = case
    assert relax.analysis.check_well_formed(mod)
    (found,) = run_main(mod, *(value.numpy() for value in inputs))
    (expected,) = run_torch(model, inputs)
    assert np.abs(found - expected).max() < TOLERANCE * np.abs(expected).max()


def test_every_rms_norm_is_recognized(case, kernels):
    name, _, _, _, mod = case
    names = Counter(call.op.name for call in calls_in(mod["main"]))
    assert names["relax.nn.rms_norm"] == NORMS.get(name, 0)
    assert not names["relax.rsqrt"]
    lowered, by = kernels
    pairs = [call for call in calls_in(lowered["main"]) if by.get(called(call)) == "FuseAddRMSNorm"]
    assert len(pairs) == PAIRS.get(name, 0)


def test_every_linear_layer_is_a_scheduled_product(case, kernels):
    name, model, _, _, _ = case
    lowered, by = kernels
    is_linear = products(lowered)
    assert {by[kernel] for kernel, linear in is_linear.items() if linear} == {"ScheduleMatmuls"}
    others = {by[kernel] for kernel, linear in is_linear.items() if not linear}
    assert others == TWO_ACTIVATIONS
    layers = [m for m in model.modules() if type(m).__name__ in LINEAR]
    calls = [call for call in calls_in(lowered["main"]) if is_linear.get(called(call))]
    assert len(calls) == len(layers) - LEFT_OUT.get(name, 0)


def called(call: relax.Call) -> str:
    """The kernel that a call launches."""
    return (
        call.args[0].name_hint if call.args and isinstance(call.args[0], tvm.ir.GlobalVar) else ""
    )
