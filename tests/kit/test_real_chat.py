"""The real chat model: its logits against NumPy in float64, its answers against llama.cpp's, and what it takes.

`chat_answers.json` says which version and options of llama.cpp gave its answers, and how the prompts were chosen.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from chapters.ch11_a_real_model.passes import phases
from chapters.kit.chat.compiled import compile_decoder
from chapters.kit.chat.gguf_file import read_gguf
from chapters.kit.chat.perplexity import READS, Reader
from chapters.kit.chat.run_decoder import ChatModel
from chapters.kit.chat.tokenizer import Tokenizer
from chapters.kit.chat.weights import Weights, read_config
from chapters.kit.machine import llvm_host
from chapters.kit.quantized.dot_products import dot_products, lanes_of
from tests.kit.llama_in_numpy import logits_of
from tests.kit.real_model import real_model_path

RECORD = json.loads(Path(__file__).with_name("chat_answers.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def file():
    return read_gguf(real_model_path())


@pytest.fixture(scope="module")
def target():
    return llvm_host()["target"]


@pytest.fixture(scope="module")
def weights(file, target):
    return Weights(file, read_config(file), lanes_of(target))


@pytest.fixture(scope="module")
def rounding(weights, target):
    return ChatModel(compile_decoder(weights, target, phases), weights)


def one_by_one(model: ChatModel, ids: list[int]) -> np.ndarray:
    """The logits after each of the tokens `ids`, a new conversation that is fed one token at a time."""
    model.length = 0
    return np.stack([model.feed([one]).copy() for one in ids])


def test_logits_equal_numpy(file, target, weights, rounding):
    """Without rounding within 1e-4 of the largest logit: float32 against float64 through 30 layers.

    With x rounded to 8 bits the logits are off by 0.25 on average, where their standard deviation is 7. llama.cpp's,
    which rounds in the same way, are off by as much.
    """
    answer = RECORD["answers"][0]
    ids = answer["tokens"] + answer["answer"]
    expected = logits_of(file.path, ids)
    exact = Reader(compile_decoder(weights, target, phases, True, READS), weights).all_logits(ids)
    assert np.abs(exact - expected).max() < 1e-4 * np.abs(expected).max()
    if dot_products(target):
        error = np.abs(one_by_one(rounding, ids) - expected)
        assert 0.01 < error.mean() < 0.05 * expected.std()


@pytest.mark.parametrize("answer", RECORD["answers"], ids=lambda one: one["prompt"])
def test_answers_equal_llama_cpp(rounding, answer):
    rounding.length, found = 0, []
    logits = rounding.feed(answer["tokens"])
    for _ in answer["answer"]:
        found.append(int(logits.argmax()))
        logits = rounding.feed(found[-1:])
    assert found == answer["answer"]


def test_prompts_are_tokenized_as_llama_cpp_does(file):
    tokenizer = Tokenizer.from_gguf(file)
    for answer in RECORD["answers"]:
        text = (
            "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
            f"<|im_start|>user\n{answer['prompt']}<|im_end|>\n<|im_start|>assistant\n"
        )
        assert tokenizer.encode_prompt(text) == answer["tokens"]


@pytest.mark.skipif(sys.platform != "linux", reason="counts what Linux counts")
def test_a_step_asks_the_system_for_no_memory(rounding):
    """Its tensors lie in storages that TVM's allocator has kept from the steps before: no new page is touched."""
    import resource

    rounding.length = 0
    rounding.feed(RECORD["answers"][0]["tokens"])
    before, faults = rounding.length, []
    for _ in range(60):
        rounding.length = before
        start = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
        rounding.feed([5])
        faults.append(resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - start)
    assert (
        sum(faults[10:]) < 50
    )  # a tensor of 5 kB would touch one page in each step, if it were new memory
