"""What chapter 9's checks ask about a module: its kernels, its calls, its allocations."""

from __future__ import annotations

import tvm
from tvm import relax, tirx

from chapters.checking.programs import kernels
from chapters.kit.ir.relax_effects import calls_in, calls_of_module, relax_functions
from chapters.kit.ir.tensor_ir import nodes


def unscheduled(mod: tvm.IRModule) -> list[str]:
    """The names of the kernels without a schedule, sorted; functions that compute shapes do not count."""
    return sorted(
        name
        for name, func in kernels(mod).items()
        if "tirx.is_scheduled" not in (func.attrs or {}) and not name.startswith("shape_func")
    )


# --- Relax ----------------------------------------------------------------------------------------


def count_calls(mod: tvm.IRModule, *names: str) -> int:
    """How often the operators `names` are called in the Relax functions of `mod`."""
    wanted = [tvm.ir.Op.get(name) for name in names]
    return sum(call.op in wanted for call in calls_of_module(mod))


def operators(mod: tvm.IRModule, name: str) -> list[str]:
    """The Relax operators that `name` still calls, without the calls of kernels."""
    found = {call.op.name for call in calls_in(mod[name]) if isinstance(call.op, tvm.ir.Op)}
    return sorted(found - {"relax.call_tir", "relax.call_tir_inplace"})


def count_launches(mod: tvm.IRModule, name: str) -> int:
    """How many kernels the Relax function `name` calls, in any form; functions that compute shapes do not count."""
    found = 0
    for call in calls_in(mod[name]):
        callees = [e for e in (call.op, *call.args) if isinstance(e, tvm.ir.GlobalVar)]
        is_kernel = bool(callees) and isinstance(mod[callees[0]], tirx.PrimFunc)
        found += is_kernel and not callees[0].name_hint.startswith("shape_func")
    return found


def storage_sizes(mod: tvm.IRModule) -> list[int]:
    """Bytes of the storages that `mod` allocates, by the VM's calls or by Relax's own; -1 where that is symbolic."""
    allocations = [tvm.ir.Op.get(f"relax.{kind}.alloc_storage") for kind in ("vm", "memory")]
    sizes = [call.args[0].values[0] for call in calls_of_module(mod) if call.op in allocations]
    return [int(size) if isinstance(size, tirx.IntImm) else -1 for size in sizes]


def symbols(mod: tvm.IRModule) -> dict[str, list[str]]:
    """The names of the symbolic dimensions of each Relax function."""

    def of(func: relax.Function) -> list[str]:
        defined = relax.analysis.defined_symbolic_vars(func)
        free = relax.analysis.free_symbolic_vars(func)
        return sorted({var.name for var in (*defined, *free)})

    return {name: of(func) for name, func in relax_functions(mod).items()}


# --- kernels --------------------------------------------------------------------------------------


def nests(func: tirx.PrimFunc) -> int:
    """How many loop nests stand side by side in `func`."""
    body = func.body.block.body
    return len(body.seq) if isinstance(body, tirx.SeqStmt) else 1


def has_loop(func: tirx.PrimFunc, kind: tirx.ForKind) -> bool:
    """Whether `func` has a loop of that kind."""
    return any(loop.kind == kind for loop in nodes(func.body, tirx.For))


def vector_lengths(func: tirx.PrimFunc) -> list[int]:
    """The lengths of the vectors of `func`."""
    loops = nodes(func.body, tirx.For)
    return sorted({int(loop.extent) for loop in loops if loop.kind == tirx.ForKind.VECTORIZED})


def has_dimension(func: tirx.PrimFunc, name: str) -> bool:
    """Whether a buffer of `func` has a symbolic dimension called `name`."""
    shapes = [p.shape for p in func.params if tirx.is_buffer_var(p)]
    return any(isinstance(d, tvm.ir.Var) and d.name == name for shape in shapes for d in shape)


def uses_tensor_cores(func: tirx.PrimFunc) -> bool:
    """Whether a kernel of `func` has the instruction mma.sync, as chapter 8 writes it by hand."""
    found = nodes(func.body, tvm.ir.Call)
    return any(isinstance(call.op, tvm.ir.Op) and call.op.name == "tirx.ptx.mma" for call in found)
