"""Relax modules in the checks of several chapters: arguments for their functions, and what these call."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.sym import Analyzer

from chapters.kit.cases.guard_zones import run_compiled
from chapters.kit.ir.relax_effects import calls_in
from chapters.kit.ir.tensor_ir import nodes, substitute

SIZES = (3, 5, 2, 7)  # of symbolic dimensions: no two are equal, none is a multiple of another


def _draw(shape: list[int], dtype: str, random: np.random.Generator) -> np.ndarray:
    """Floats of either sign from 0.25 to 1.5 in magnitude; integers from 0 to 2, which are indices of most axes."""
    if "float" not in dtype:
        return random.integers(0, 2 if dtype == "bool" else 3, shape).astype(dtype)
    signs = random.choice((-1.0, 1.0), shape)
    return (random.uniform(0.25, 1.5, shape) * signs).astype(dtype)


def arguments(
    func: relax.Function, scale: float = 1.0, sizes: Sequence[int] = SIZES
) -> list[np.ndarray]:
    """Random arrays for the parameters of `func`, which are tensors; floats are multiplied by `scale`.

    sizes: of symbolic dimensions, in the order in which the parameters name them.
    """
    found: dict[tvm.ir.Var, tirx.IntImm] = {}
    for param in func.params:
        for extent in param.ty.shape:
            for var in nodes(extent, tvm.ir.Var):
                found.setdefault(var, tirx.IntImm("int64", sizes[len(found) % len(sizes)]))
    random, arrays = np.random.default_rng(0), []
    for param in func.params:
        shape = [int(Analyzer().simplify(substitute(n, found))) for n in param.ty.shape]
        drawn = _draw(shape, str(param.ty.dtype), random)
        arrays.append((drawn * scale).astype(drawn.dtype))
    return arrays


def listing(func: tirx.PrimFunc) -> str:
    """The loops of `func` as TVM prints them."""
    lines = func.script().splitlines()
    start = next(i for i, line in enumerate(lines) if "with T.sblock" in line)
    return textwrap.dedent("\n".join(lines[start + 1 :]))


def run_kernel(func: tirx.PrimFunc, *arrays: np.ndarray) -> np.ndarray:
    """The last of `arrays` after `func` ran on them all, compiled for this CPU. May raise WroteOutside."""
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    return run_compiled(mod, list(arrays))[-1]


def poison(like: np.ndarray) -> np.ndarray:
    """An array like `like` whose every byte is 0xff: not a number, in every floating-point type."""
    array = np.empty_like(like)
    array.view("uint8" if array.ndim else array.dtype)[...] = 0xFF
    return array


def attributes_as_text(attrs: tvm.ir.DictAttrs | None) -> dict[str, str]:
    """Attributes of a module or a function, in the order of their names."""
    return {key: str(value) for key, value in sorted(dict(attrs or {}).items())}


def kernels(mod: tvm.IRModule) -> dict[str, tirx.PrimFunc]:
    """The PrimFuncs of `mod` by name."""
    return {g.name_hint: f for g, f in mod.functions_items() if isinstance(f, tirx.PrimFunc)}


def operators(mod: tvm.IRModule, name: str = "main") -> list[str]:
    """The calls of a Relax function in order: an operator's name, or `kernel` for a call_tir."""
    ops = [call.op for call in calls_in(mod[name]) if isinstance(call.op, tvm.ir.Op)]
    names = [op.name.removeprefix("relax.") for op in ops]
    return ["kernel" if one == "call_tir" else one for one in names]


def kernels_called(mod: tvm.IRModule, name: str = "main") -> list[str]:
    """The names of the kernels that a Relax function calls by call_tir, in order."""
    calls = [call for call in calls_in(mod[name]) if call.op == tvm.ir.Op.get("relax.call_tir")]
    return [call.args[0].name_hint for call in calls]
