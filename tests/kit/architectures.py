"""Small models with random weights, one for each architecture that the compiler is tested on."""

from __future__ import annotations

HIDDEN, WIDE, TOKENS, LENGTH = 48, 80, 96, 7  # no two sizes are equal, so that a swapped pair shows
SIZES = {
    "vocab_size": TOKENS,
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
    "StableLM": (
        "StableLmForCausalLM",
        "StableLmConfig",
        {**GROUPED, "partial_rotary_factor": 0.5},
    ),
    "BERT": ("BertModel", "BertConfig", SIZES),
    "ViT": ("ViTModel", "ViTConfig", {**SIZES, **IMAGE}),
}


def build(name: str) -> tuple:
    """(module, example inputs) of one architecture."""
    import torch
    import transformers

    class Wrapped(torch.nn.Module):
        """Takes tensors and returns one tensor: logits, or the last hidden state."""

        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, *inputs):
            if len(inputs) == 1:
                return self.model(pixel_values=inputs[0]).last_hidden_state
            ids, mask = inputs
            found = self.model(input_ids=ids, attention_mask=mask, **options)
            return found[0]

    model, config, sizes = ARCHITECTURES[name]
    torch.manual_seed(0)
    made = getattr(transformers, model)(getattr(transformers, config)(**sizes)).eval()
    for (
        parameter
    ) in made.parameters():  # norms and biases too, whose first values are ones and zeros
        torch.nn.init.normal_(parameter, std=0.2)
    if name == "ViT":
        return Wrapped(made), (torch.randn(1, 3, 12, 12),)
    options = {} if name == "BERT" else {"use_cache": False}
    mask = torch.zeros(1, 1, LENGTH, LENGTH)
    if name != "BERT":
        mask = torch.full_like(mask, torch.finfo(torch.float32).min).triu(1)
    return Wrapped(made), (torch.randint(TOKENS, (1, LENGTH)), mask)
