"""Measures models of other packages, compiled by `compile`, beside PyTorch and torch.compile: `bench 10`.

The models are classes of Transformers and PyTorch with random weights. Numbers are compared with PyTorch's first. One
model, with and without a pass of its own, is the example of a report about a model of one's own.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from chapters.ch10_imported_models.compile_model import (
    WrongNumbers,
    compare_costs,
    kernels,
    make_graphs,
    measure_error,
    time_model,
)
from chapters.kit.bench.cases import duration, ratio
from chapters.kit.bench.results import load, show_one
from chapters.kit.draw.table import Table, format_duration, tabulate
from chapters.kit.models.from_torch import ModelRefused

OURS, PLAIN = "fusion_by_hand", "without its passes"
THEIRS = ("PyTorch", "torch.compile")
EXAMPLE = str(Path(__file__).parents[2] / "docs" / "own-model" / "recurrent.py")
EXAMPLE_NAME = "recurrent network"
LANGUAGE = ("olmo2", "phi3", "gemma3_text", "cohere", "mixtral")
MODULES = {
    "LSTM": "torch.nn.LSTM(256, 512, 2, batch_first=True), (torch.randn(1, 32, 256),)",
    "GRU": "torch.nn.GRU(256, 512, 2, batch_first=True), (torch.randn(1, 32, 256),)",
    "Transformer encoder": (
        "torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True), 4), "
        "(torch.randn(1, 64, 512),)"
    ),
    "T5 encoder": (
        "t.T5EncoderModel(t.T5Config(d_model=512, d_kv=64, d_ff=1408, num_layers=4, num_heads=8, "
        "vocab_size=1000)).eval(), (torch.randint(1000, (1, 64)),)"
    ),
    "Whisper encoder": (
        "t.WhisperModel(t.WhisperConfig(d_model=384, encoder_layers=4, decoder_layers=1, encoder_attention_heads=6, "
        "encoder_ffn_dim=1536, vocab_size=1000, pad_token_id=0)).encoder.eval(), (torch.randn(1, 80, 3000),)"
    ),
    "CLIP vision": (
        "t.CLIPVisionModel(t.CLIPVisionConfig(hidden_size=512, intermediate_size=2048, num_hidden_layers=4, "
        "num_attention_heads=8)).eval(), (torch.randn(1, 3, 224, 224),)"
    ),
    "ResNet-18": (
        "t.ResNetModel(t.ResNetConfig(embedding_size=64, hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2], "
        "layer_type='basic')).eval(), (torch.randn(1, 3, 224, 224),)"
    ),
}
TOKENS, LENGTH = 1000, 64


def language(kind: str) -> tuple:
    """(a language model of this kind of Transformers with four layers of 512, tokens): what model() returns."""
    import torch
    import transformers

    from chapters.ch10_imported_models.models import Logits

    sizes = {
        "hidden_size": 512,
        "intermediate_size": 1408,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "vocab_size": TOKENS,
        "pad_token_id": 0,
        "attn_implementation": "eager",
    }
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **sizes)
    made = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    mask = torch.full((1, 1, LENGTH, LENGTH), torch.finfo(torch.float32).min).triu(1)
    return Logits(made).eval(), (torch.randint(TOKENS, (1, LENGTH)), mask)


def run(quick: bool, say: Callable[[str], None]) -> dict[str, dict]:
    """{name of the results file: seconds per run of each model}; a model that is refused is told, and left out."""
    rounds, threads, cases = (3 if quick else 11), os.cpu_count() or 1, []
    with tempfile.TemporaryDirectory() as folder:
        for title, file in {EXAMPLE_NAME: EXAMPLE, **_files(Path(folder), quick)}.items():
            say(title)
            try:
                error = measure_error(file)
            except (ModelRefused, WrongNumbers) as reason:
                say(f"  left out: {reason}")
                continue
            timings, missing = time_model(file, threads, rounds)
            seconds = {name: timing.seconds for name, timing in timings.items()}
            say("  " + ", ".join(f"{name} {format_duration(s)}" for name, s in seconds.items()))
            cases.append({"model": title, "error": error, "seconds": seconds, "missing": missing})
    about = {"threads": threads, "rounds": rounds, "effect": compare_example()}
    return {"ch10_models": {**about, "cases": cases}}


def compare_example() -> str:
    """Launches and bytes of the example without and with its passes."""
    *_, canonical, changed = make_graphs(EXAMPLE)
    return compare_costs(kernels(canonical)[0], kernels(changed)[0], {})


def _files(folder: Path, quick: bool) -> dict[str, str]:
    """{the model's name: a file in `folder` that defines it}."""
    texts = {
        kind: f"from chapters.ch10_imported_models.bench import language\n\ndef model():\n    return language({kind!r})"
        for kind in LANGUAGE[: 1 if quick else None]
    }
    if not quick:
        texts |= {
            name: f"import torch\n{'import transformers as t' * text.startswith('t.')}\n\n"
            f"def model():\n    torch.manual_seed(0)\n    return {text}"
            for name, text in MODULES.items()
        }
    found = {}
    for name, text in texts.items():
        path = folder / f"{re.sub(r'[ -]', '_', name).lower()}.py"
        path.write_text(text, encoding="utf-8")
        found[name] = str(path)
    return found


def table(measured: dict, only: str = "") -> Table:
    """One row per model: our time, and how many times as long the others take; only: the model of one row."""
    cases = [one for one in measured["cases"] if (one["model"] == EXAMPLE_NAME) == bool(only)]
    others = (PLAIN, *THEIRS) if only else THEIRS
    columns = {"model": "model", "ours": duration(OURS)}
    columns |= {name: ratio(name, OURS, "{:.2f} ×") for name in others}
    note = f"Medians of {measured['rounds']} interleaved rounds, {measured['threads']} threads."
    return tabulate(cases, columns, note)


TABLES = {
    "ch10_models": table,
    EXAMPLE_NAME: (partial(table, only=EXAMPLE_NAME), "ch10_models"),
}
show_results = partial(show_one, TABLES)


def recorded_effect() -> str:
    """What `compare_example` gave when the results file was written."""
    results = load("ch10_models")
    return results["measured"]["effect"] if results else "not measured yet: bench 10"
