"""What the passes of this package share: how a rule is applied, and questions about types and constants."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import tvm
from tvm import relax, tirx
from tvm.ir import Expr, GenericConst
from tvm.relax.dpl import DFPattern, is_op, rewrite_call

from chapters.kit.ir.relax_effects import offloaded
from chapters.kit.passes.fold_read_only_constants import updates_in_place

Matched = Mapping[DFPattern, Expr]
# what to look for, what to put in its place
Rule = tuple[DFPattern, Callable[[Expr, Matched], Expr]]


def apply_rules(mod: tvm.IRModule, rules: Sequence[Rule]) -> tvm.IRModule:
    """A new module: each rule in turn rewrites each Relax function until it finds nothing more.

    A rule that does not apply after all returns the expression that it was given. A pattern is matched within one
    block, so no variable is used outside of its scope. A module that updates a tensor in place stays as it is: a rule
    may read a tensor later than the code that it replaces. So do functions that belong to another compiler.
    """
    if updates_in_place(mod):
        return mod
    result = mod.clone()
    for gvar, func in mod.functions_items():
        if isinstance(func, relax.Function) and not offloaded(func):
            for pattern, rewrite in rules:
                func = rewrite_call(pattern, rewrite, func)
            result[gvar] = func
    return result


def either(op: str, a: DFPattern, b: DFPattern) -> DFPattern:
    """A call of the commutative operator `op` on `a` and `b`, in either order."""
    return is_op(op)(a, b) | is_op(op)(b, a)


def known_shape(expr: Expr) -> list[Expr] | None:
    """The dimensions of a tensor, numbers or symbolic; None if they are not known."""
    has_shape = isinstance(expr.ty, relax.TensorType) and isinstance(expr.ty.shape, relax.ShapeExpr)
    return list(expr.ty.shape.values) if has_shape else None


def same(a: Sequence[Expr], b: Sequence[Expr]) -> bool:
    """Whether two lists of dimensions are provably equal."""
    prove = tvm.sym.Analyzer().can_prove_equal
    return len(a) == len(b) and all(prove(m, n) for m, n in zip(a, b, strict=True))


def is_positive(dim: Expr) -> bool:
    """Whether a dimension is a number above 0; False for a symbolic one."""
    return isinstance(dim, tirx.IntImm) and int(dim) > 0


def scalar(const: GenericConst) -> float | None:
    """The value of a constant tensor without dimensions; None for any other constant."""
    is_scalar = isinstance(const.ty, relax.TensorType) and const.ty.ndim == 0
    return float(const.value.numpy()) if is_scalar else None
