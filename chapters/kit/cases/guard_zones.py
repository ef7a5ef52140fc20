"""Compiles a PrimFunc and runs it on arrays with guard zones around them, to detect writes outside an array."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx
from tvm.target import Target

from chapters.kit.cpu.aligned import aligned_bytes
from chapters.kit.ir.tensor_ir import nodes
from chapters.kit.machine import QUICK_LLVM, llvm_host

ZONE = 4096  # bytes before and after each array
MARK = 0xA5
QUICK = Target(QUICK_LLVM)
# with this processor's instructions: portable code converts each float16 by a call
QUICK_HERE = Target({**QUICK_LLVM, "mcpu": llvm_host()["cpu"]})


class WroteOutside(Exception):
    """A compiled program wrote into a guard zone."""


class Guarded:
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
    kernel. It is left out of modules without kernels of their own, because TVM makes those of operators and calls them,
    and where the caller has compared them (checked=False).
    """
    own = checked and any(isinstance(func, tirx.PrimFunc) for func in mod.functions.values())
    return _compiled(tvm_ffi.StructuralKey(mod.clone()), target, own, relax_pipeline)


@lru_cache(
    maxsize=256
)  # many answers become the same program, and each is compared with the one given
def _compiled(program: tvm_ffi.StructuralKey, target: Target, checked: bool, pipeline: object):
    with tvm.transform.PassContext(config={"tirx.disable_assert": not checked}):
        return tvm.compile(program.key, target=target, relax_pipeline=pipeline)


def _as_declared(func: tirx.PrimFunc, arguments: list) -> bool:
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
    held = [Guarded(a) if isinstance(a, np.ndarray) else a for a in arguments]
    checked = not _as_declared(mod["main"], arguments)
    main = compile_once(mod, target, checked=checked)["main"]
    main(*[h.tensor if isinstance(h, Guarded) else h for h in held])
    arrays = [h for h in held if isinstance(h, Guarded)]
    if not all(array.intact() for array in arrays):
        raise WroteOutside(f"The program wrote up to {ZONE} bytes before or after an array.")
    return [h.array.copy() for h in arrays]
