"""llama.cpp on the same file: a baseline of `bench 11`, through llama-cpp-python's low-level functions.

It runs in the interpreter that FUSION_PEER_PYTHON names, so nothing here or in what it imports needs TVM.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence

import llama_cpp
import numpy as np

from chapters.ch11_a_real_model.bench_inputs import (
    CONTEXT,
    LLAMA_CPP_VARIANTS,
    ROUNDED_LIMIT,
    check_logits,
    read_facts,
)

BATCH = 512  # tokens that llama.cpp takes at a time
SEQUENCE = 0
ERROR = 4  # GGML_LOG_LEVEL_ERROR


@llama_cpp.llama_log_callback
def _errors_only(level: int, text: bytes, _data) -> None:
    """Print llama.cpp's errors. By default it describes each tensor, which takes longer than loading them."""
    if level == ERROR:
        print(text.decode("utf-8", "replace"), end="", file=sys.stderr, flush=True)


llama_cpp.llama_log_set(_errors_only, ctypes.c_void_p(0))


def store_as_q4_0(source: str, target: str) -> None:
    """Let llama.cpp write the model `source` with weights of type Q4_0 to `target`.

    llama.cpp rearranges weights of this type for the processor's registers while it loads them, and those of Q4_1 it
    does not. Raises ValueError if it could not be done.
    """
    wanted = llama_cpp.llama_model_quantize_default_params()
    wanted.ftype, wanted.allow_requantize = llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0, True
    paths = source.encode(), target.encode()
    if llama_cpp.llama_model_quantize(*paths, ctypes.byref(wanted)):
        raise ValueError(f"llama.cpp could not store {source} as Q4_0")


def load(path: str):
    """The model in the file, on the CPU."""
    llama_cpp.llama_backend_init()
    parameters = llama_cpp.llama_model_default_params()
    parameters.n_gpu_layers = 0
    model = llama_cpp.llama_model_load_from_file(path.encode(), parameters)
    if not model:
        raise ValueError(f"llama.cpp could not load {path}")
    return model


class Context:
    """One sequence of a loaded model. flash: whether attention is llama.cpp's flash attention; None for its default."""

    def __init__(self, model, window: int, threads: int, flash: bool | None = None):
        parameters = llama_cpp.llama_context_default_params()
        parameters.n_ctx, parameters.n_batch, parameters.n_ubatch = window, BATCH, BATCH
        parameters.n_threads = parameters.n_threads_batch = threads
        if flash is not None:
            parameters.flash_attn_type = int(flash)
        self.context = llama_cpp.llama_init_from_model(model, parameters)
        if not self.context:
            raise ValueError("llama.cpp could not make a context")
        self.memory = llama_cpp.llama_get_memory(self.context)
        vocabulary = llama_cpp.llama_model_get_vocab(model)
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(vocabulary)
        self.batch = llama_cpp.llama_batch_init(BATCH, 0, 1)

    def feed(self, tokens: Sequence[int], position: int) -> np.ndarray:
        """The logits (vocab_size,) after `tokens`, of which the first is at `position`; forgets what was there.

        The array is llama.cpp's own, and is overwritten by the next call.
        """
        self._decode(tokens, position, every=False)
        logits = llama_cpp.llama_get_logits_ith(self.context, -1)  # waits for the result
        return np.ctypeslib.as_array(logits, (self.vocab_size,))

    def all_logits(self, tokens: Sequence[int]) -> np.ndarray:
        """The logits after each of `tokens`, a new conversation: float32 (len(tokens), vocab_size)."""
        self._decode(tokens, 0, every=True)
        logits = llama_cpp.llama_get_logits(self.context)
        return np.ctypeslib.as_array(logits, (len(tokens), self.vocab_size)).copy()

    def _decode(self, tokens: Sequence[int], position: int, every: bool) -> None:
        """every: ask for the logits after each token, and not only after the last."""
        llama_cpp.llama_memory_seq_rm(self.memory, SEQUENCE, position, -1)
        batch = self.batch
        batch.n_tokens = len(tokens)
        for at, token in enumerate(tokens):
            batch.token[at], batch.pos[at] = token, position + at
            batch.n_seq_id[at], batch.seq_id[at][0] = 1, SEQUENCE
            batch.logits[at] = every or at == len(tokens) - 1
        if status := llama_cpp.llama_decode(self.context, batch):
            raise ValueError(f"llama_decode gave the status {status}")


def llama_cpp_baseline(name: str, path: str, threads: int) -> dict[str, tuple]:
    """A prefill and a decode step of the variant `name` of LLAMA_CPP_VARIANTS."""
    weights, flash = LLAMA_CPP_VARIANTS[name]
    facts = read_facts(path)
    tokens, window = facts["tokens"], facts["config"]["context_window_size"]
    model = load(facts["models"][weights])
    prefills, steps = (Context(model, window, threads, flash) for _ in range(2))
    steps.feed(tokens[:CONTEXT], 0)
    calls = {
        "prefill": lambda: prefills.feed(tokens, 0),
        "decode": lambda: steps.feed(tokens[CONTEXT : CONTEXT + 1], CONTEXT),
    }
    return {
        f"{name} {function}": (
            call,
            check_logits(call(), path, f"{weights} {function}", ROUNDED_LIMIT),
        )
        for function, call in calls.items()
    }


def describe_build() -> str:
    """llama-cpp-python's version, and the instruction sets and options that llama.cpp says it was built with."""
    facts = llama_cpp.llama_print_system_info().decode("utf-8", "replace")
    return f"llama-cpp-python {llama_cpp.__version__}, {' '.join(facts.split()).strip(' |')}"
