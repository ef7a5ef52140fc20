"""The real chat model and its tokenizer, for tests that need them."""

from __future__ import annotations

import functools
import os
from pathlib import Path

import pytest

from chapters.kit.chat.gguf_file import read_gguf
from chapters.kit.chat.model_cache import cached_model, fetch_model
from chapters.kit.chat.tokenizer import Tokenizer


@functools.cache
def real_model_path() -> Path:
    """The default model's file. Skips the test if it is not in the cache, and FUSION_REQUIRE_MODEL is not "1"."""
    if os.environ.get("FUSION_REQUIRE_MODEL") == "1":
        return fetch_model()
    return cached_model() or pytest.skip(
        "the chat model is not in the cache; run `python -m chapters chat` once, or set FUSION_REQUIRE_MODEL=1"
    )


@functools.cache
def real_tokenizer() -> Tokenizer:
    return Tokenizer.from_gguf(read_gguf(real_model_path()))
