"""Finds bindings that may write to memory that others read. A pass must not move a computation across them."""

from collections.abc import Iterator

import tvm
from tvm import relax
from tvm.ir import Op

IN_PLACE = ("relax.call_tir_inplace", "relax.call_inplace_packed")
# impure, but they write into no tensor; LegalizeOps turns the first two into the last two
LOOK_ONLY = ("relax.print", "relax.assert_op", "relax.run.print", "relax.run.assert_op")


def may_write(value: relax.Expr) -> bool:
    """Whether computing `value` may change an existing tensor.

    False only if every call in it is of an operator that TVM marks as pure and that does not work in place. True for a
    call of another function, whatever its body: it may pass its arguments to an in-place operator.
    """
    return not all(writes_no_tensor(call.op) for call in calls_in(value))


def writes_no_tensor(op: relax.Expr) -> bool:
    """Whether `op` is an operator that TVM marks as pure and that does not work in place: it changes no tensor."""
    return isinstance(op, Op) and op.name not in IN_PLACE and bool(op.get_attr("FPurity"))


def offloaded(func: relax.Function) -> bool:
    """Whether `func` belongs to another compiler or is one kernel already, so that its body must stay as it is."""
    attrs = func.attrs or {}
    return any(key in attrs for key in ("Primitive", "Composite", "Codegen"))


def scopes(expr: relax.Expr) -> Iterator[relax.SeqExpr]:
    """Every SeqExpr of a function: its body, the branches in it, and the bodies of functions defined inside.

    The bindings of one SeqExpr run one after another. Of two SeqExprs, either may run never, once or many times.
    Functions that are `offloaded` are left out.
    """
    if isinstance(expr, relax.Function):
        if not offloaded(expr):
            yield from scopes(expr.body)
    elif isinstance(expr, relax.If):
        yield from scopes(expr.true_branch)
        yield from scopes(expr.false_branch)
    elif isinstance(expr, relax.SeqExpr):
        yield expr
        for block in expr.blocks:
            for binding in block.bindings:
                yield from scopes(binding.value)


def calls_in(expr: relax.Expr) -> list[relax.Call]:
    """All calls in `expr`, arguments first: also those in branches, in inner functions and in arguments."""
    found = []

    def visit(one: relax.Expr) -> None:
        if isinstance(one, relax.Call):
            found.append(one)

    relax.analysis.post_order_visit(expr, visit)
    return found


def relax_functions(mod: tvm.IRModule) -> dict[str, relax.Function]:
    """The Relax functions of `mod` by name."""
    return {g.name_hint: f for g, f in mod.functions_items() if isinstance(f, relax.Function)}


def calls_of_module(mod: tvm.IRModule) -> list[relax.Call]:
    """All calls in the Relax functions of `mod`, each function as in `calls_in`."""
    return [call for func in relax_functions(mod).values() for call in calls_in(func)]


def bindings_of(scope: relax.SeqExpr) -> list[relax.Binding]:
    """The bindings of a scope in the order they run, across its blocks."""
    return [binding for block in scope.blocks for binding in block.bindings]
