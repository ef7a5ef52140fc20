"""Runs a compiled decoder with TVM's runtime: neither the compiler nor the Python package `tvm` is loaded for it.

`import tvm` loads both libraries of the wheel, the compiler (libtvm_compiler, 260 MB) and the runtime (libtvm_runtime,
3 MB), and most of the package. What a compiled model calls is in the runtime, and the package tvm_ffi reaches it.
"""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from chapters.kit.chat.cache_layout import cache_shape
from chapters.kit.chat.decoder_cache import Decoder
from chapters.kit.chat.weights import Weights, check_memory
from chapters.kit.cpu.aligned import aligned_array

# DLPack's number for a CPU; the virtual machine's number for an allocator that keeps freed memory
CPU, POOLED = 1, 2


def load_runtime():
    """The package tvm_ffi, with TVM's runtime loaded: by `import tvm` if that came first, else without the compiler."""
    import tvm_ffi

    if "tvm" not in sys.modules:
        from tvm_ffi.libinfo import load_lib_ctypes

        (package,) = importlib.util.find_spec("tvm").submodule_search_locations
        # as tvm/base.py does: a compiled library finds the runtime's symbols among the global ones
        load_lib_ctypes("tvm", "tvm_runtime", "RTLD_GLOBAL", [Path(package) / "lib"])
    return tvm_ffi


def start_machine(executable):
    """The virtual machine of a module, on the CPU: its functions by their names.

    executable: the path of an exported library, or what `tvm.compile` returns. It does what relax.VirtualMachine does
    when it is made.
    """
    ffi = load_runtime()
    module = ffi.load_module(executable) if isinstance(executable, Path) else executable.jit()
    machine = module["vm_load_executable"]()
    machine["vm_initialization"](CPU, 0, POOLED)
    return machine


class ChatModel:
    """A compiled decoder with its weights and the cache of one conversation."""

    def __init__(self, decoder: Decoder, weights: Weights):
        self.config = weights.config
        shape = cache_shape(self.config)
        check_memory(self.config, np.dtype(decoder.cache).itemsize * math.prod(shape))
        with ThreadPoolExecutor(1) as beside:  # files are read and hashed without Python's lock
            placing = beside.submit(weights.place)
            self._ffi, self.vm = load_runtime(), start_machine(decoder.executable)
            arrays = placing.result()
        tensor = self._ffi.from_dlpack
        self.weights = self._ffi.convert([tensor(arrays[name]) for name in decoder.names])
        self.cache = tensor(aligned_array(shape, decoder.cache))
        self._ids = aligned_array((self.config.context_window_size,), "int32")
        self._position = aligned_array((1,), "int32")
        self._one_id, self._start = map(tensor, (self._ids[:1], self._position))
        self._functions: dict[str, Callable] = {}  # of the virtual machine
        self.length = 0

    def feed(self, tokens: Sequence[int]) -> np.ndarray:
        """The logits after `tokens`, float32 (vocab_size,), which extend the conversation.

        Raises ValueError if there are none, or more than the context window has room for.
        """
        room = self.config.context_window_size - self.length
        if not 0 < len(tokens) <= room:
            raise ValueError(
                f"{len(tokens)} tokens were given and {room} fit into the context; give at least one, and no more "
                "than fit."
            )
        logits = self._run("decode" if len(tokens) == 1 else "prefill", tokens, self.length)
        self.length += len(tokens)
        return logits.reshape(-1)

    def all_logits(self, tokens: Sequence[int]) -> np.ndarray:
        """The logits after each of `tokens`, a new conversation: float32 (len(tokens), vocab_size).

        The decoder must have the function batch_verify.
        """
        return self._run("batch_verify", tokens, 0)[0]

    def _run(self, function: str, tokens: Sequence[int], position: int) -> np.ndarray:
        """The logits that `function` gives for `tokens` from `position` on.

        After a step the processor's caches hold weights, so that each line of Python is slow: arguments are written
        where they stay, and the logits are not copied.
        """
        count = len(tokens)
        self._ids[:count], self._position[0] = tokens, position
        ids = self._one_id if count == 1 else self._ffi.from_dlpack(self._ids[:count])
        if function not in self._functions:  # looking one up takes longer than calling it
            self._functions[function] = self.vm[function]
        # the second result is the cache, which was extended in place
        logits = self._functions[function](ids, self._start, self.cache, self.weights)[0]
        return np.from_dlpack(logits)
