"""Refuses to compile a kernel for a GPU if it would run on the CPU and access the GPU's memory from there."""

from __future__ import annotations

import tvm
from tvm import tirx
from tvm.ir import TensorLoad
from tvm_ffi import structural_map

from chapters.kit.ir.tensor_ir import nodes


@tvm.transform.module_pass(opt_level=0, name="RequireThreads")
class RequireThreads:
    """Changes nothing. Raises ValueError if a PrimFunc accesses a buffer outside of a GPU's threads.

    TVM compiles what is outside of threads for the CPU, where an address in the GPU's memory crashes the process. TVM's
    own check, VerifyMemory, comes after FlattenBuffer, which hides the parameters that it looks for.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        for gvar, func in mod.functions_items():
            if isinstance(func, tirx.PrimFunc) and accesses_from_host(func):
                raise ValueError(
                    f"{gvar.name_hint} cannot be compiled for a GPU: it accesses a buffer outside of any thread, which "
                    "the CPU would do with an address in the GPU's memory. Bind its loops to blockIdx and threadIdx."
                )
        return mod


def accesses_from_host(func: tirx.PrimFunc) -> bool:
    """Whether `func` reads or writes an element of a buffer in code that is in no thread of a GPU."""

    def extent_of_bound_loop(loop: tirx.For) -> tirx.Stmt:
        never = isinstance(loop.extent, tirx.IntImm) and int(loop.extent) == 0
        return tirx.Evaluate(loop.extent) if never or loop.thread_binding is not None else loop

    def extent_of_launch(attr: tirx.AttrStmt) -> tirx.Stmt:
        return attr if attr.attr_key != "thread_extent" else tirx.Evaluate(attr.value)

    on_host = structural_map(
        func.body, [(tirx.For, extent_of_bound_loop), (tirx.AttrStmt, extent_of_launch)]
    )
    return bool(nodes(on_host, TensorLoad) or nodes(on_host, tirx.BufferStore))
