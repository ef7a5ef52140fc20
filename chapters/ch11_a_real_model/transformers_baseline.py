"""Transformers' Llama with the file's weights in PyTorch's formats: a baseline of `python -m chapters bench 11`.

It runs in the interpreter that FUSION_PEER_PYTHON names, so nothing here or in what it imports needs TVM.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch._inductor.config as inductor
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

from chapters.ch11_a_real_model.bench_inputs import (
    BFLOATS,
    COMPILED,
    CONTEXT,
    EXACT_LIMIT,
    FILE,
    FLOATS,
    INT8,
    NAMES,
    PREFILL,
    ROUNDED_LIMIT,
    check_logits,
    read_facts,
    read_weights,
)
from chapters.kit.bench.timing import call_compiled

LENGTHS = {"prefill": PREFILL, "decode": 128}  # of the cache: all of it takes part in attention


def model_of(facts: dict, arrays: dict[str, np.ndarray], weights: str = FLOATS) -> LlamaForCausalLM:
    """The model with the weights `arrays`, in float32, bfloat16 or, by torchao, 8 bits with a scale per row.

    In float32 it uses the memory of `arrays`. With 8 bits, everything but the matrices is in bfloat16.
    """
    sizes = facts["config"]
    heads, groups = sizes["num_attention_heads"], sizes["num_key_value_heads"]
    names = (
        "hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads"
    )
    names += " head_dim vocab_size rms_norm_eps"
    config = LlamaConfig(
        **{name: sizes[name] for name in names.split()},
        max_position_embeddings=sizes["context_window_size"],
        rope_parameters={"rope_type": "default", "rope_theta": sizes["rope_theta"]},
        tie_word_embeddings=True,
    )
    tensors = {}
    for name, array in arrays.items():
        tensor = torch.from_numpy(array)
        if "qkv_proj" in name:
            counts = [count * sizes["head_dim"] for count in (heads, groups, groups)]
            parts = zip(("q_proj", "k_proj", "v_proj"), tensor.split(counts), strict=True)
            tensors |= {name.replace("qkv_proj", part): one for part, one in parts}
        elif "gate_up_proj" in name:
            parts = zip(("gate_proj", "up_proj"), tensor.chunk(2), strict=True)
            tensors |= {name.replace("gate_up_proj", part): one for part, one in parts}
        elif name != "model.rope":
            tensors[name] = tensor
    model = LlamaForCausalLM(config)
    model.load_state_dict(tensors, assign=True)
    model.tie_weights()
    if weights in (BFLOATS, INT8):
        model = model.to(torch.bfloat16)
    if weights == INT8:
        from torchao.quantization import Int8WeightOnlyConfig, quantize_

        quantize_(model, Int8WeightOnlyConfig())
    return model.eval()


@torch.inference_mode()
def step(forward: Callable, tokens: torch.Tensor, position: int, cache: StaticCache):
    """The logits (1, 1, vocab_size) after `tokens` (1, n), of which the first is at `position`."""
    for layer in cache.layers:
        layer.cumulative_length.fill_(position)
    return forward(input_ids=tokens, past_key_values=cache, use_cache=True, logits_to_keep=1).logits


def make_all_logits(
    facts: dict, arrays: dict[str, np.ndarray], weights: str, threads: int
) -> Callable[[Sequence[int]], np.ndarray]:
    """The model, as a function that gives the logits after all tokens of a new conversation, in float32."""
    torch.set_num_threads(threads)
    model = model_of(facts, arrays, weights)

    @torch.inference_mode()
    def all_logits(tokens: Sequence[int]) -> np.ndarray:
        return model(input_ids=torch.tensor([tokens])).logits[0].float().numpy()

    return all_logits


def transformers_baseline(name: str, path: str, threads: int) -> dict[str, tuple]:
    """A prefill and a decode step of the runtime `name` of NAMES: operator by operator, or through torch.compile.

    torch.compile may take the weights as constants, and store them as its kernels read them.
    """
    torch.set_num_threads(threads)
    inductor.freezing = True
    facts, compiled = read_facts(path), name.startswith(COMPILED)
    limit = EXACT_LIMIT if NAMES[name] == FLOATS else ROUNDED_LIMIT
    model = model_of(facts, read_weights(path), NAMES[name])
    forward = torch.compile(model.forward, dynamic=False) if compiled else model.forward
    tokens, found = torch.tensor([facts["tokens"]]), {}
    inputs = {"prefill": (tokens, 0), "decode": (tokens[:, CONTEXT : CONTEXT + 1], CONTEXT)}
    for function, (given, position) in inputs.items():
        cache = StaticCache(config=model.config, max_cache_len=LENGTHS[function])
        step(model.forward, tokens[:, :CONTEXT], 0, cache)
        call = functools.partial(step, forward, given, position, cache)
        logits = call_compiled(call) if compiled else call()
        error = check_logits(logits.float().numpy(), path, f"{FILE} {function}", limit)
        found[f"{name} {function}"] = (call, error)
    return found
