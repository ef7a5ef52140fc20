"""The decoder once more, in PyTorch, to be compared with: eager, and through torch.compile.

`python -m chapters.ch09_the_compiler.torch_decoder WEIGHTS.npz` reads weights and configuration from a file and then
obeys lines: a variant, a function, perhaps a file. It runs one step, writes the logits into the file if there is one,
and answers "done". It is a process of its own, since TVM and PyTorch are rarely installed side by side; its interpreter
is the one in the environment variable FUSION_TORCH_PYTHON, if it is set.
"""

from __future__ import annotations

import json
import math
import sys

import numpy as np


def decoder_of(weights: dict, config: dict, torch):
    """forward(tokens (1, s), position, cache) -> logits (1, vocab_size) of the last; `cache` is written in place."""
    functional = torch.nn.functional
    heads, groups, d = (
        config[name] for name in ("num_attention_heads", "num_key_value_heads", "head_dim")
    )
    window, layers = config["context_window_size"], config["num_hidden_layers"]
    exponent = torch.arange(d // 2) * (-2.0 * math.log(config["rope_theta"]) / d)
    frequencies = torch.exp(exponent)

    def norm(x, weight):
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + config["rms_norm_eps"])
        return x * scale * weight

    def rotate(x, places):
        angle = (places[:, None] * frequencies).repeat(1, 2)
        half = torch.cat([-x[..., d // 2 :], x[..., : d // 2]], -1)
        return x * angle.cos() + half * angle.sin()

    def attention(x, layer, places, cache):
        name = f"model.layers.{layer}.self_attn"
        qkv = functional.linear(x, weights[f"{name}.qkv_proj.weight"])
        qkv = qkv.view(-1, heads + 2 * groups, d).transpose(0, 1)
        q, k, v = qkv.split([heads, groups, groups])
        cache[layer, 0, :, places] = rotate(k, places)
        cache[layer, 1, :, places] = v
        mask = torch.arange(window) <= places[:, None]
        keys, values = (one.repeat_interleave(heads // groups, 0) for one in cache[layer])
        out = functional.scaled_dot_product_attention(
            rotate(q, places)[None], keys[None], values[None], attn_mask=mask
        )
        out = out[0].transpose(0, 1).reshape(len(places), heads * d)
        return functional.linear(out, weights[f"{name}.o_proj.weight"])

    def forward(tokens, position, cache):
        places = position + torch.arange(tokens.shape[1])
        x = weights["model.embed_tokens.weight"][tokens[0]]
        for layer in range(layers):
            name = f"model.layers.{layer}"
            x = x + attention(
                norm(x, weights[f"{name}.input_layernorm.weight"]), layer, places, cache
            )
            normed = norm(x, weights[f"{name}.post_attention_layernorm.weight"])
            gate, up = functional.linear(normed, weights[f"{name}.mlp.gate_up_proj.weight"]).chunk(
                2, -1
            )
            x = x + functional.linear(
                functional.silu(gate) * up, weights[f"{name}.mlp.down_proj.weight"]
            )
        return functional.linear(
            norm(x[-1:], weights["model.norm.weight"]), weights["lm_head.weight"]
        )

    return forward


def main(path: str) -> int:
    """Serve; see the module's docstring."""
    import torch

    with np.load(path) as file:
        facts = json.loads(str(file["facts"]))
        weights = {name: torch.from_numpy(file[name]) for name in file.files if name != "facts"}
    torch.set_num_threads(facts["threads"])
    config, prompt = facts["config"], torch.tensor([facts["prompt"]])
    forward = decoder_of(weights, config, torch)
    variants = {"eager": forward, "compiled": torch.compile(forward, dynamic=False)}
    shape = [config["num_hidden_layers"], 2, config["num_key_value_heads"]]
    caches = {
        name: torch.zeros(*shape, config["context_window_size"], config["head_dim"])
        for name in variants
    }
    after = torch.tensor(prompt.shape[1])
    steps = {
        "prefill": lambda name: variants[name](prompt, torch.tensor(0), caches[name]),
        "decode": lambda name: variants[name](prompt[:, -1:], after, caches[name]),
    }
    with torch.inference_mode():
        for line in sys.stdin:
            variant, function, *file = line.split()
            logits = steps[function](variant)
            if file:
                np.save(file[0], logits.numpy())
            print("done", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
