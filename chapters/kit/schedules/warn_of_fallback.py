"""Says which kernels of a module only the fallback schedules, why, and how many of the bytes they move.

The fallback schedules any kernel, and it cuts none into tiles. A product needs tiles, because it uses each number many
times: without them it fetches the same numbers from memory again and again. The time of a model with one such kernel
may be mostly the time of this kernel.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import tvm
from tvm import relax, tirx
from tvm.ir.transform import Pass
from tvm.s_tir import SBlock

from chapters.kit.cpu.nt_matmul import NAME as NT_MATMUL
from chapters.kit.cpu.nt_matmul import OTHER_FORM, has_other_form, operands_of
from chapters.kit.ir.reductions import is_reduction, products
from chapters.kit.ir.relax_effects import calls_in
from chapters.kit.ir.tensor_ir import nodes, variables_of
from chapters.kit.passes.planned_storage import evaluate, tensor_bytes
from chapters.kit.schedules.tile_products import find_axes
from chapters.kit.schedules.unscheduled import is_made_of_blocks, needs_schedule

FALLBACK = "ApplyCPUFallback"
NO_SUM = "no sums: it computes or moves single elements"
CONVOLUTION = "a convolution in groups, or with a single filter"
EPILOGUE = "a product whose epilogue reads other sums than its own, or has several results"
SUMS = "sums that no schedule before the fallback takes"

KERNEL_CALLS = ("relax.call_tir", "relax.call_tir_inplace")
UNBOUNDED = 1024  # what a symbolic size without an upper bound counts as
WORTH_A_WARNING = 0.1  # of the bytes that a function moves
MUCH_REUSE = 4  # products per element of the operands and the result


class FallbackWarning(UserWarning):
    """A product that moves much of a function's data has only the fallback's schedule."""


class FallbackKernel(NamedTuple):
    """A kernel that only the fallback schedules: how often `function` launches it, and its share of the bytes moved."""

    function: str
    kernel: str
    launches: int
    share: float
    why: str


def trace_schedulers(
    mod: tvm.IRModule, passes: Sequence[Pass], target: tvm.target.Target
) -> tuple[tvm.IRModule, dict[str, str]]:
    """(`mod` after `passes`, for each kernel the name of the pass that scheduled it).

    A kernel that a pass makes and schedules at once, as FuseAddRMSNorm does, belongs to that pass.
    """
    found: dict[str, str] = {}
    with target:
        for one in passes:
            mod = one(mod)
            for gvar, func in mod.functions_items():
                if isinstance(func, tirx.PrimFunc) and not needs_schedule(func):
                    found.setdefault(gvar.name_hint, str(one.info.name))
    names = {gvar.name_hint for gvar in mod.get_global_vars()}
    return mod, {name: by for name, by in found.items() if name in names}


def find_fallback_kernels(mod: tvm.IRModule) -> list[FallbackKernel]:
    """The kernels of `mod` that still need a schedule, for each function those first that move most bytes.

    mod: Relax functions that call kernels. A kernel's bytes are those of its arguments and its result, each whole; a
    symbolic size counts as its upper bound (the attribute tir_var_upper_bound), or as UNBOUNDED if it has none.
    """
    waiting = {gvar.name_hint: func for gvar, func in mod.functions_items() if needs_schedule(func)}
    found = []
    for gvar, func in mod.functions_items():
        if isinstance(func, relax.Function):
            launches, moved = kernel_bytes(func)
            for kernel, count in moved.most_common():
                if kernel in waiting:
                    share, why = count / max(moved.total(), 1), explain_fallback(waiting[kernel])
                    found.append(
                        FallbackKernel(gvar.name_hint, kernel, launches[kernel], share, why)
                    )
    return found


def warn_of_products(mod: tvm.IRModule) -> None:
    """Issue a FallbackWarning for each product of `left(mod)` with WORTH_A_WARNING of the bytes that lacks tiles.

    Where the operands are used a few times only, as in a decode step's attention, tiles would save little. An NT_matmul
    is always slow without its schedule: it reads w row by row, and the fallback makes vectors of other kernels only.
    """
    for one in find_fallback_kernels(mod):
        func, bounds = mod[one.kernel], _read_bounds(mod[one.function])
        is_nt = any(block.name_hint == NT_MATMUL for block in products(func))
        if one.share >= WORTH_A_WARNING and (is_nt or operand_reuse(func, bounds) >= MUCH_REUSE):
            warnings.warn(
                f"The kernel {one.kernel} moves {one.share:.0%} of the bytes of {one.function}, and only the fallback "
                f"schedules it, because it is {one.why}. Its numbers are right, but it may be many times slower than "
                "a product that has a schedule.",
                FallbackWarning,
                stacklevel=2,
            )


def kernel_bytes(func: relax.Function) -> tuple[Counter[str], Counter[str]]:
    """(launches, bytes read and written) of each kernel that `func` calls; each call in its code counts once."""
    bounds, launches, moved = _read_bounds(func), Counter(), Counter()
    for call in calls_in(func.body):
        if isinstance(call.op, tvm.ir.Op) and call.op.name in KERNEL_CALLS:
            kernel = call.args[0].name_hint
            read = {argument: argument.ty for argument in call.args[1].fields}  # each once
            launches[kernel] += 1
            moved[kernel] += sum(_count_bytes(ty, bounds) for ty in [*read.values(), call.ty])
    return launches, moved


def operand_reuse(func: tirx.PrimFunc, bounds: Mapping[str, int]) -> float:
    """How many products `func` computes per element of its operands and results; 0 if it computes none."""
    computed = sum(
        math.prod(_evaluate_size(axis.dom.extent, bounds) for axis in block.iter_vars)
        for block in products(func)
    )
    buffers = [param for param in func.params if tirx.is_buffer_var(param)]
    elements = sum(math.prod(_evaluate_size(e, bounds) for e in one.shape) for one in buffers)
    return computed / max(elements, 1)


def explain_fallback(func: tirx.PrimFunc) -> str:
    """Why only the fallback schedules `func`, a kernel: what it computes that no other schedule serves."""
    if not is_made_of_blocks(func):
        return NO_SUM
    found = products(func)
    if found:
        return _describe_missing_tiles(func, found[0])
    return SUMS if any(map(is_reduction, nodes(func.body, SBlock))) else NO_SUM


def _describe_missing_tiles(func: tirx.PrimFunc, block: SBlock) -> str:
    """Why neither chapter 5's schedules nor TileProducts take `func`, in which `block` sums products."""
    if "conv" in block.name_hint:
        return CONVOLUTION
    if has_other_form(func):
        return OTHER_FORM
    _, w = operands_of(block)
    unknown = [str(e) for e in w.shape if not isinstance(e, tirx.IntImm)]
    try:
        find_axes(block)
    except ValueError as reason:
        if block.name_hint == NT_MATMUL and unknown:
            return f"a product with a matrix whose size is not known ({', '.join(unknown)})"
        return str(reason)
    return EPILOGUE


def _read_bounds(func: relax.Function) -> dict[str, int]:
    found = (func.attrs or {}).get("tir_var_upper_bound", {})
    return {str(name): int(most) for name, most in found.items()}


def _count_bytes(ty: tvm.ir.Type, bounds: Mapping[str, int]) -> int:
    if isinstance(ty, relax.TupleType):
        return sum(_count_bytes(field, bounds) for field in ty.fields)
    return _evaluate_size(tensor_bytes(ty), bounds) if isinstance(ty, relax.TensorType) else 0


def _evaluate_size(size: int | tvm.ir.Expr, bounds: Mapping[str, int]) -> int:
    if isinstance(size, int | tirx.IntImm):
        return int(size)
    return evaluate(size, {dim.name: bounds.get(dim.name, UNBOUNDED) for dim in variables_of(size)})
