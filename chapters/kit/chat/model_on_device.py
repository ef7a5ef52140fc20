"""The decoder of a chat on a GPU of this machine, or on a device that TVM's RPC reaches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tvm
from tvm import relax

from chapters.kit.chat.cache_layout import cache_shape
from chapters.kit.chat.decoder_cache import Decoder
from chapters.kit.chat.run_decoder import ChatModel
from chapters.kit.chat.weights import Weights
from chapters.kit.measure.devices import Device

CACHE = "vm.builtin.tensor_cache."  # TVM's functions for the device's cache of tensors
PREFIX = "chat"  # of the names of the parameters in it


class ModelOnDevice(ChatModel):
    """A ChatModel on `device`. What goes wrong there is a DeviceError.

    Through RPC a tensor arrives as a view that a tuple cannot hold. So TVM's cache of parameters makes the tuple where
    the device is, and the virtual machine is called by set_input and invoke_stateful.
    """

    def __init__(self, decoder: Decoder, weights: Weights, device: Device):
        self.config, self.device = weights.config, device
        module = device.load(decoder.executable)
        with device.describe_failures("given the model"):
            self.vm = relax.VirtualMachine(module, device.raw)
            put, clear = (device.function(CACHE + name) for name in ("update", "clear"))
            clear()
            places = {name: at for at, name in enumerate(decoder.names)}
            for name, array in weights.arrays():
                put(f"{PREFIX}_{places[name]}", self._to_device(array), True)
            gather = device.function("vm.builtin.param_array_from_cache")
            self.weights = gather(PREFIX, len(places))
            clear()
            self.cache = tvm.runtime.empty(cache_shape(self.config), decoder.cache, device.raw)
        self.length = 0

    def _run(self, function: str, tokens: Sequence[int], position: int) -> np.ndarray:
        with self.device.describe_failures("answering"):
            ids, at = (self._to_device(np.asarray(a, "int32")) for a in (tokens, [position]))
            self.vm.set_input(function, ids, at, self.cache, self.weights)
            self.vm.invoke_stateful(function)
            logits, self.cache = self.vm.get_outputs(function)
            return logits.numpy()

    def _to_device(self, array: np.ndarray) -> tvm.runtime.Tensor:
        return tvm.runtime.tensor(np.ascontiguousarray(array), device=self.device.raw)
