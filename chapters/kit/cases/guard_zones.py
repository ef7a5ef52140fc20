"""Compiles a PrimFunc and runs it on arrays with guard zones around them, to detect writes outside an array."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.target import Target

from chapters.kit.cpu.aligned import aligned_bytes
from chapters.kit.ir.relax_effects import calls_of_module, relax_functions
from chapters.kit.ir.tensor_ir import nodes
from chapters.kit.machine import QUICK_LLVM, llvm_host

ZONE = 4096  # bytes before and after each array
MARK = 0xA5
QUICK = Target(QUICK_LLVM)
# with this processor's instructions: portable code converts each float16 by a call
QUICK_HERE = Target({**QUICK_LLVM, "mcpu": llvm_host()["cpu"]})


class WroteOutside(Exception):
    """A compiled program wrote into a guard zone."""


class GuardedArray:
    """A copy of `array` in 64-byte aligned memory between two marked zones; `tensor` shares it with TVM."""

    def __init__(self, array: np.ndarray):
        size = array.nbytes + 2 * ZONE
        self._memory = aligned_bytes(size)
        self._memory[...] = MARK
        self._used = slice(ZONE, ZONE + array.nbytes)
        self.array = self._memory[self._used].view(array.dtype).reshape(array.shape)
        self.array[...] = array
        self.tensor = tvm_ffi.from_dlpack(self.array)

    def intact(self) -> bool:
        """Whether both zones are as they were."""
        before, after = self._memory[: self._used.start], self._memory[self._used.stop :]
        return bool((before == MARK).all() and (after == MARK).all())


def compile_once(
    mod: tvm.IRModule,
    target: Target = QUICK,
    *,
    checked: bool = True,
    relax_pipeline: tvm.transform.Pass | str = "default",
) -> tvm.runtime.Executable:
    """`tvm.compile`, once for the same program, and by default quickly, for a program that runs once.

    What TVM generates to compare a kernel's arguments with their declarations takes longer to compile than a small
    kernel. It is left out of modules whose kernels TVM makes of operators, or is known to call with what they declare,
    and where the caller has compared them (checked=False).
    """
    kernels = [func for func in mod.functions.values() if isinstance(func, tirx.PrimFunc)]
    asserts = any(nodes(kernel.body, tirx.AssertStmt) for kernel in kernels)
    checked = checked and bool(kernels) and (asserts or not _calls_as_declared(mod))
    return _compile(tvm_ffi.StructuralKey(mod.clone()), target, checked, relax_pipeline)


# many answers become the same program, and each is compared with the one given
@lru_cache(maxsize=256)
def _compile(program: tvm_ffi.StructuralKey, target: Target, checked: bool, pipeline: object):
    with tvm.transform.PassContext(config={"tirx.disable_assert": not checked}):
        return tvm.compile(program.key, target=target, relax_pipeline=pipeline)


def _calls_as_declared(mod: tvm.IRModule) -> bool:
    """Whether the kernels are called by Relax functions, with tensors that TVM has compared with what they declare.

    It compares dtypes and sizes where a module is checked to be well-formed, but not a size that is not known yet.
    """
    named = ("relax.call_tir", "relax.call_tir_inplace")
    calls = [call for call in calls_of_module(mod) if getattr(call.op, "name", "") in named]
    known = all(
        len(call.args) == 2 and _is_known(call.args[1].ty) and _is_known(call.ty) for call in calls
    )
    return bool(relax_functions(mod)) and known and relax.analysis.check_well_formed(mod)


def _is_known(kind: tvm.ir.Type) -> bool:
    if isinstance(kind, tvm.ir.TupleType):
        return all(map(_is_known, kind.fields))
    has_sizes = isinstance(kind, relax.TensorType) and isinstance(kind.shape, relax.ShapeExpr)
    return has_sizes and all(isinstance(size, tirx.IntImm) for size in kind.shape.values)


def _matches_declaration(func: tirx.PrimFunc, arguments: list) -> bool:
    """Whether the arguments are arrays of the very shapes and dtypes that `func` declares, and it asserts nothing."""
    declared = [
        (str(p.dtype), [int(n) if isinstance(n, tirx.IntImm) else None for n in p.shape])
        if tirx.is_buffer_var(p)
        else None
        for p in func.params
    ]
    given = [(str(a.dtype), [*a.shape]) if isinstance(a, np.ndarray) else a for a in arguments]
    return declared == given and not nodes(func.body, tirx.AssertStmt)


def run_compiled(mod: tvm.IRModule, arguments: list, target: Target = QUICK) -> list[np.ndarray]:
    """The arrays among `arguments` after `mod`'s `main` ran on copies of them.

    Raises WroteOutside if it wrote just outside one of them.
    """
    held = [GuardedArray(a) if isinstance(a, np.ndarray) else a for a in arguments]
    checked = not _matches_declaration(mod["main"], arguments)
    main = compile_once(mod, target, checked=checked)["main"]
    main(*[h.tensor if isinstance(h, GuardedArray) else h for h in held])
    arrays = [h for h in held if isinstance(h, GuardedArray)]
    if not all(array.intact() for array in arrays):
        raise WroteOutside(f"The program wrote up to {ZONE} bytes before or after an array.")
    return [h.array.copy() for h in arrays]
