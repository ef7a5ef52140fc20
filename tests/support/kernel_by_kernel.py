"""Runs a Relax function whose operators have all become kernels, kernel by kernel, on an engine that executes GPU code.

This executes the GPU code of a whole decoder on a machine without a GPU. Python does the work of the virtual machine:
it passes each kernel its arguments and arrays for its results. The engine runs the generated code of the kernels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.target import Target

from chapters.kit.emulator.cuda_on_cpu import CudaOnCpu
from chapters.kit.gpu.launches import Engine, HostProgram
from chapters.kit.gpu.targets import DLIGHT_CUDA
from chapters.kit.passes.planned_storage import evaluate
from tests.support.kernels import after_phases

Value = np.ndarray | tuple | int
CALL_TIR, CALL_INPLACE = map(tvm.ir.Op.get, ("relax.call_tir", "relax.call_tir_inplace"))


class KernelByKernel:
    """A module of scheduled kernels for a GPU; `engine` executes each launch.

    mod: its Relax functions contain only calls of PrimFuncs, tuples, their elements, and variables; no other operator.
    `launched` counts the launches of each kernel.
    """

    def __init__(self, mod: tvm.IRModule, target: Target, engine: Engine):
        self.mod, self.target, self.engine = mod, target, engine
        self.programs: dict[str, HostProgram] = {}
        self.launched: dict[str, int] = {}

    def run(self, name: str, *arguments: Value, sizes: Mapping[str, int] | None = None) -> Value:
        """The Relax function `name` on NumPy arrays and tuples of them.

        sizes: the symbolic dimensions that are in no argument's shape. An argument that a kernel updates in place is
        changed. Raises LaunchError if the engine finds a fault in a kernel, ValueError for an operator that is not a
        kernel.
        """
        func = self.mod[name]
        known: dict[str, int] = dict(sizes or {})
        values: dict[relax.Var, Value] = {}
        for param, value in zip(func.params, arguments, strict=True):
            values[param] = value
            _bind_dims(param.ty, value, known)
        for block in func.body.blocks:
            for binding in block.bindings:
                values[binding.var] = self._evaluate(binding.value, values, known)
        return self._evaluate(func.body.body, values, known)

    def _evaluate(self, expr: relax.Expr, values: dict, known: dict[str, int]) -> Value:
        if isinstance(expr, relax.Var):
            return values[expr]
        if isinstance(expr, relax.Tuple):
            return tuple(self._evaluate(field, values, known) for field in expr.fields)
        if isinstance(expr, relax.TupleGetItem):
            return self._evaluate(expr.tuple_value, values, known)[expr.index]
        if isinstance(expr, tirx.IntImm):
            return int(expr)
        if isinstance(expr, relax.Call) and expr.op in (CALL_TIR, CALL_INPLACE):
            return self._launch(expr, values, known)
        raise ValueError(
            f"{str(expr)[:80]} is no call of a kernel: give a module that has been through the schedule phase."
        )

    def _launch(self, call: relax.Call, values: dict, known: dict[str, int]) -> Value:
        kernel = call.args[0].name_hint
        arguments = [self._evaluate(argument, values, known) for argument in call.args[1].fields]
        if call.op == CALL_INPLACE:
            results = [arguments[int(i)] for i in call.attrs.inplace_indices]
            self._run_kernel(kernel, arguments)
        else:
            types = call.ty.fields if isinstance(call.ty, relax.TupleType) else [call.ty]
            results = [_allocate_result(ty, known) for ty in types]
            self._run_kernel(kernel, [*arguments, *results])
        return tuple(results) if isinstance(call.ty, relax.TupleType) else results[0]

    def _run_kernel(self, name: str, arguments: Sequence[Value]) -> None:
        if name not in self.programs:
            self.programs[name] = HostProgram(self.mod[name], self.target)
        for launch in self.programs[name].run(self.engine, list(arguments)):
            kernel = launch.kernel.name
            self.launched[kernel] = self.launched.get(kernel, 0) + 1


def run_on_gpu(
    mod: tvm.IRModule, *arguments: Value, target: Target = DLIGHT_CUDA, **facts
) -> np.ndarray:
    """What `main` of the Relax module `mod` returns, after the phases for `target`, as CUDA run on this CPU."""
    scheduled = after_phases(mod, target, **facts)
    return KernelByKernel(scheduled, target, CudaOnCpu()).run("main", *arguments)


def _allocate_result(ty: relax.TensorType, known: Mapping[str, int]) -> np.ndarray:
    """An array of type `ty`, full of NaN or -1: a kernel must not read its result before it has written it."""
    shape = [int(d) if isinstance(d, tirx.IntImm) else evaluate(d, known) for d in ty.shape.values]
    dtype = str(ty.dtype)
    return np.full(shape, np.array(np.nan if "float" in dtype else -1).astype(dtype))


def _bind_dims(ty: tvm.ir.Type, value: Value, known: dict[str, int]) -> None:
    """Add to `known` the symbolic dimensions of `ty`, read from the shape of `value`."""
    if isinstance(ty, relax.TupleType):
        for field, one in zip(ty.fields, value, strict=True):
            _bind_dims(field, one, known)
    elif isinstance(ty, relax.TensorType):
        for dim, extent in zip(ty.shape.values, value.shape, strict=True):
            if isinstance(dim, tvm.ir.Var):
                known[dim.name] = extent
