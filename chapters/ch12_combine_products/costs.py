"""What a module costs once chapter 9's passes have made kernels of it: launches, and bytes of constants."""

from __future__ import annotations

from functools import lru_cache

import tvm
import tvm_ffi
from tvm import relax

from chapters.kit.cases.guard_zones import QUICK
from chapters.kit.ir.relax_effects import calls_of_module, relax_functions
from chapters.kit.measure.pass_trace import LAUNCHING
from solutions.ch09_the_compiler.pipeline import phases


def lower(mod: tvm.IRModule) -> tvm.IRModule:
    """`mod` as the kernels that chapter 9's pipeline makes of it, for a CPU."""
    return _lowered(tvm_ffi.StructuralKey(mod.clone()))


@lru_cache(maxsize=256)
def _lowered(program: tvm_ffi.StructuralKey) -> tvm.IRModule:
    # folding constants compiles kernels, which run once and are called as they declare
    with QUICK, tvm.transform.PassContext(config={"tirx.disable_assert": True}):
        return tvm.transform.Sequential(phases(QUICK)["graph and lower"])(program.key)


def count_launches(mod: tvm.IRModule) -> int:
    """The calls of kernels in the code of a lowered module."""
    names = (call.op.name for call in calls_of_module(mod) if isinstance(call.op, tvm.ir.Op))
    return sum(name in LAUNCHING for name in names)


def constant_bytes(mod: tvm.IRModule) -> int:
    """The bytes of the different constants of a lowered module; equal ones are stored once."""
    found: dict[object, int] = {}

    def note(expr: relax.Expr) -> None:
        if isinstance(expr, tvm.ir.GenericConst):
            found[tvm_ffi.StructuralKey(expr.value)] = expr.value.numpy().nbytes

    for func in relax_functions(mod).values():
        relax.analysis.post_order_visit(func, note)
    return sum(found.values())
