"""The decoder once more, in PyTorch: a baseline of `python -m chapters bench 9`, eager and through torch.compile.

It runs in the interpreter that FUSION_PEER_PYTHON names, so nothing here or in what it imports needs TVM.
"""

from __future__ import annotations

import math

import torch
from torch.nn import functional

from chapters.ch09_the_compiler.decoder_inputs import check_logits, read_inputs
from chapters.kit.bench.timing import bind_torch


class Decoder:
    """A Llama with the weights and sizes of a bench's inputs, for one sequence."""

    def __init__(self, weights: dict[str, torch.Tensor], config: dict):
        self.weights = weights
        self.layers, self.window = config["num_hidden_layers"], config["context_window_size"]
        self.heads, self.groups = config["num_attention_heads"], config["num_key_value_heads"]
        self.head_dim, self.epsilon = config["head_dim"], config["rms_norm_eps"]
        exponents = torch.arange(self.head_dim // 2) * (-2 / self.head_dim)
        self.frequencies = torch.exp(exponents * math.log(config["rope_theta"]))

    def new_cache(self) -> torch.Tensor:
        """Zeros for the keys and values of each layer."""
        return torch.zeros(self.layers, 2, self.groups, self.window, self.head_dim)

    def forward(self, tokens, position, cache):
        """The logits (1, vocab_size) after the last of `tokens` (1, n), of which the first is at `position`.

        `cache` is updated in place.
        """
        places = position + torch.arange(tokens.shape[1])
        x = self.weights["model.embed_tokens.weight"][tokens[0]]
        for layer in range(self.layers):
            name = f"model.layers.{layer}"
            normed = self._norm(x, f"{name}.input_layernorm")
            x = x + self._attention(normed, f"{name}.self_attn", places, cache[layer])
            normed = self._norm(x, f"{name}.post_attention_layernorm")
            gate, up = self._linear(normed, f"{name}.mlp.gate_up_proj").chunk(2, -1)
            x = x + self._linear(functional.silu(gate) * up, f"{name}.mlp.down_proj")
        return self._linear(self._norm(x[-1:], "model.norm"), "lm_head")

    def _linear(self, x, name):
        return functional.linear(x, self.weights[f"{name}.weight"])

    def _norm(self, x, name):
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.epsilon)
        return x * scale * self.weights[f"{name}.weight"]

    def _rotate(self, x, places):
        half = self.head_dim // 2
        angle = (places[:, None] * self.frequencies).repeat(1, 2)
        other = torch.cat([-x[..., half:], x[..., :half]], -1)
        return x * angle.cos() + other * angle.sin()

    def _attention(self, x, name, places, cache):
        heads, groups = self.heads, self.groups
        qkv = self._linear(x, f"{name}.qkv_proj").view(-1, heads + 2 * groups, self.head_dim)
        q, k, v = qkv.transpose(0, 1).split([heads, groups, groups])
        cache[0, :, places], cache[1, :, places] = self._rotate(k, places), v
        keys, values = (one.repeat_interleave(heads // groups, 0)[None] for one in cache)
        mask = torch.arange(self.window) <= places[:, None]
        q = self._rotate(q, places)[None]
        out = functional.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
        return self._linear(out[0].transpose(0, 1).flatten(1), f"{name}.o_proj")


def torch_baseline(path: str, name: str) -> dict[str, tuple]:
    """A prefill and a decode step on the inputs that the bench wrote. name: "PyTorch" or "torch.compile"."""
    facts, arrays = read_inputs(path)
    weights = {key: torch.from_numpy(array) for key, array in arrays.items()}
    decoder, prompt = Decoder(weights, facts["config"]), torch.tensor([facts["prompt"]])
    inputs = {
        "prefill": (prompt, torch.tensor(0)),
        "decode": (prompt[:, -1:], torch.tensor(prompt.shape[1])),
    }
    how = {"threads": facts["threads"], "compiled": name == "torch.compile"}
    cache, found = decoder.new_cache(), {}
    for function, (tokens, position) in inputs.items():
        call, logits = bind_torch(decoder.forward, tokens, position, cache, **how)
        found[f"{name} {function}"] = (call, check_logits(logits.numpy(), path, function))
    return found
