"""Compiles the decoder of a file, and runs it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tvm
from tvm import relax
from tvm.ir.transform import Pass
from tvm.target import Target
from tvm_ffi import convert

from chapters.kit.chat.attention import cache_shape
from chapters.kit.chat.model import FUNCTIONS, chat_decoder
from chapters.kit.chat.weights import Weights, memory_for_context
from chapters.kit.cpu.aligned import ALIGNED, aligned_array, aligned_bytes
from chapters.kit.pipeline.share_tensors import ShareTensors
from chapters.kit.quantized.coded_products_on_gpu import ScheduleCodedProductsOnGPU
from chapters.kit.quantized.dot_products import dot_products
from chapters.kit.quantized.schedule_coded_products import ScheduleCodedProducts


def with_coded_passes(
    phases: Mapping[str, Sequence[Pass]], target: Target, exact: bool
) -> list[Pass]:
    """The passes of `phases` in order, with the one for coded products first among the schedules, and ShareTensors.

    phases: chapter 9's, with chapter 11's passes, which fuse `dequantize` with its readers. exact: for a CPU, see
    `compile_decoder`. Products on a GPU are always exact.
    """
    schedule = list(phases["schedule"])
    on_cpu = target.kind.name == "llvm"
    products = (
        ScheduleCodedProducts(target, exact) if on_cpu else ScheduleCodedProductsOnGPU(target)
    )
    schedule.insert(0, products)
    memory = list(phases["memory"])
    at = [str(one.info.name) for one in memory].index("KillAfterLastUse")
    memory[at:at] = [
        ShareTensors(),
        # CallTIRRewrite leaves a tuple behind each kernel with two results: it is read directly, then by nothing
        relax.transform.CanonicalizeBindings(),
        relax.transform.DeadCodeElimination(),
    ]
    changed = {**phases, "schedule": schedule, "memory": memory}
    return [one for phase in changed.values() for one in phase]


def cache_dtype(target: Target, exact: bool) -> str:
    """The dtype of the cache of a decoder that is compiled for `target`."""
    rounds = not exact and target.kind.name == "llvm" and dot_products(target)
    return "float16" if rounds else "float32"


def compile_decoder(
    weights: Weights,
    target: Target,
    phases: Callable[..., Mapping[str, Sequence[Pass]]],
    exact: bool = False,
    functions: Sequence[str] = FUNCTIONS,
) -> tuple[tvm.runtime.Executable, list[str]]:
    """(the executable, the names of its parameters) of the decoder for `weights`.

    phases: chapter 11's function of this name, in passes.py. exact: products take x in float32, and the cache holds
    float32; without it 8 bits and float16, where the processor has instructions for products of 8 bits.
    """
    mod, names = chat_decoder(weights, functions, cache_dtype(target, exact))
    bounds = {"seq_len": weights.config.context_window_size}
    passes = with_coded_passes(phases(target, variable_bounds=bounds), target, exact)

    @tvm.transform.module_pass(opt_level=0, name="chat")
    def pipeline(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        with target:
            return tvm.transform.Sequential(passes)(mod)

    return tvm.compile(mod, target, relax_pipeline=pipeline), names


def placed(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Copies of `arrays` one behind the other, in large pages where the system has them.

    A step reads all weights once. With pages of 4 KiB the processor looks up an address 25,000 times for each 100 MB.
    Codes come first, and those of the layers before the head's, as a step reads them: a product asks for memory a
    little ahead, and beyond its own codes that should be what the next product begins with.
    """

    def order(name: str) -> tuple[bool, bool]:
        return not name.endswith(".codes"), not name.startswith("model.layers.")

    places, size = {}, 0
    for name in sorted(arrays, key=order):
        places[name], size = size, size + -(-arrays[name].nbytes // ALIGNED) * ALIGNED
    room = aligned_bytes(size)
    copies = {}
    for name, array in arrays.items():
        at = room[places[name] : places[name] + array.nbytes]
        copies[name] = at.view(array.dtype).reshape(array.shape)
        copies[name][...] = array
    return copies


class ChatModel:
    """A compiled decoder with its weights and the cache of one conversation.

    cache: the dtype of the cache, as `cache_dtype` gives it.
    """

    def __init__(self, executable, weights: Weights, names: Sequence[str], cache: str):
        self.config = weights.config
        shape = cache_shape(self.config)
        memory_for_context(self.config, np.dtype(cache).itemsize * math.prod(shape))
        self.vm = relax.VirtualMachine(executable, tvm.cpu())
        arrays = placed(dict(weights.arrays()))
        self.weights = convert([tvm.runtime.from_dlpack(arrays[name]) for name in names])
        self.cache = tvm.runtime.from_dlpack(aligned_array(shape, cache))
        self._ids = aligned_array((self.config.context_window_size,), "int32")
        self._position = aligned_array((1,), "int32")
        self._one_id, self._start = map(tvm.runtime.from_dlpack, (self._ids[:1], self._position))
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

    def _run(self, function: str, tokens: Sequence[int], position: int) -> np.ndarray:
        """The logits that `function` gives for `tokens` from `position` on.

        After a step the processor's caches hold weights, so that each line of Python is slow: arguments are written
        where they stay, and the logits are not copied.
        """
        count = len(tokens)
        self._ids[:count], self._position[0] = tokens, position
        ids = self._one_id if count == 1 else tvm.runtime.from_dlpack(self._ids[:count])
        if function not in self._functions:  # looking one up takes longer than calling it
            self._functions[function] = self.vm[function]
        # the second result is the cache, which was extended in place
        logits = self._functions[function](ids, self._start, self.cache, self.weights)[0]
        return np.from_dlpack(logits)
