"""Compiles the decoder of a file, and runs it."""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax
from tvm.ir.transform import Pass
from tvm.target import Target

from chapters.kit.chat.attention import cache_shape
from chapters.kit.chat.model import FUNCTIONS, chat_decoder
from chapters.kit.chat.weights import Weights
from chapters.kit.quantized.fuse_dequantize import FuseDequantizeMatmul, FuseDequantizeTake
from chapters.kit.quantized.schedule_coded_products import ScheduleCodedProducts
from chapters.runner.earlier import earlier


def chat_passes(target: Target, exact: bool = False, **facts) -> list[Pass]:
    """Chapter 9's passes, with those for coded matrices where they belong. facts: as `phases` takes them."""
    phases = earlier(9).phases(target, **facts)
    names = [str(one.info.name) for one in phases["graph and lower"]]
    at = names.index("FuseOps")
    phases["graph and lower"][at:at] = [FuseDequantizeTake(), FuseDequantizeMatmul()]
    phases["schedule"].insert(0, ScheduleCodedProducts(target, exact))
    return [one for phase in phases.values() for one in phase]


def compile_decoder(weights: Weights, target: Target, exact: bool = False, functions=FUNCTIONS):
    """(the executable, the names of its parameters) of the decoder for `weights`.

    exact: products take x in float32; without it in 8 bits, where the processor has instructions for that.
    """
    mod, names = chat_decoder(weights, functions)
    bounds = {"seq_len": weights.config.context_window_size}
    passes = tvm.transform.Sequential(chat_passes(target, exact, variable_bounds=bounds))

    @tvm.transform.module_pass(opt_level=0, name="chat")
    def pipeline(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        with target:
            return passes(mod)

    return tvm.compile(mod, target, relax_pipeline=pipeline), names


class ChatModel:
    """A compiled decoder with its weights and the cache of one conversation."""

    def __init__(self, executable, weights: Weights, names: list[str]):
        self.config = weights.config
        self.vm = relax.VirtualMachine(executable, tvm.cpu())
        arrays = dict.fromkeys(names)
        for name, array in weights.arrays():
            arrays[name] = tvm.runtime.tensor(array)
        self.weights = [arrays[name] for name in names]
        shape = cache_shape(self.config, self.config.context_window_size)
        self.cache = tvm.runtime.empty(shape, "float32")  # takes memory where tokens have been
        self.length = 0

    def feed(self, tokens: list[int]) -> np.ndarray:
        """The logits after `tokens`, float32 (vocab_size,), which extend the conversation."""
        name = "decode" if len(tokens) == 1 else "prefill"
        rows = self.vm["embed"](tvm.runtime.tensor(np.asarray(tokens, "int32")), self.weights)
        embedded = rows._create_view((1, len(tokens), self.config.hidden_size))
        position = tvm.runtime.tensor(np.asarray([self.length], "int32"))
        logits, self.cache = self.vm[name](embedded, position, self.cache, self.weights)
        self.length += len(tokens)
        return logits.numpy().reshape(-1)
