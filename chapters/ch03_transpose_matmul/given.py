"""Code that chapter 3 provides: questions about types, shapes and functions, and the base class of OwnTransposes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import tvm
from tvm import relax, tirx
from tvm.ir import Call, Expr, IRModule
from tvm.relax.expr_functor import PyExprMutator

from chapters.kit.ir.relax_effects import LOOK_ONLY, calls_in, offloaded, writes_no_tensor

Fires = Callable[[Call, Call], bool]  # (permute_dims, matmul) -> whether the two become one kernel
MATMUL = tvm.ir.Op.get("relax.matmul")
TRANSPOSE = tvm.ir.Op.get("relax.permute_dims")


def is_typed(ty: tvm.ir.Type) -> bool:
    """Return whether `ty` is a tensor type with a known shape and dtype. A symbolic dimension counts as known."""
    has_shape = isinstance(ty, relax.TensorType) and isinstance(ty.shape, relax.ShapeExpr)
    return has_shape and ty.dtype is not None


# --- for the groups -------------------------------------------------------------------------------


def following_values(mod: IRModule) -> dict[relax.Var, Expr]:
    """Map each variable that a dataflow block of `mod` binds to the value of the next binding."""
    following: dict[relax.Var, Expr] = {}

    def note(expr: Expr) -> None:
        for block in expr.blocks if isinstance(expr, relax.SeqExpr) else ():
            if isinstance(block, relax.DataflowBlock):
                pairs = pairwise(block.bindings)
                following.update((binding.var, after.value) for binding, after in pairs)

    for func in mod.functions.values():
        if isinstance(func, relax.Function):
            relax.analysis.post_order_visit(func, note)
    return following


# --- for the kernel -------------------------------------------------------------------------------


def is_constant(dim: Expr | int, value: int) -> bool:
    """Return whether `dim` is the constant `value`; False for a symbolic dimension."""
    return isinstance(dim, int | tirx.IntImm) and int(dim) == value


def broadcast(a: Sequence[Expr], b: Sequence[Expr]) -> list[Expr]:
    """Return the batch dimensions of a product whose operands have the batch dimensions `a` and `b`.

    They are aligned from the right. A dimension that is missing or 1 is repeated: [2, 1] and [3] give [2, 3].
    """
    rank = max(len(a), len(b))
    a, b = ([1] * (rank - len(dims)) + list(dims) for dims in (a, b))
    return [q if is_constant(p, 1) else p for p, q in zip(a, b, strict=True)]


def batch_index(dims: Sequence[Expr], index: Sequence[Expr]) -> list[Expr]:
    """Return where to read an operand with batch dimensions `dims`, for the batch `index` of the product.

    An operand with one batch is read at 0: dims [1] and index [i] give [0].
    """
    aligned = index[len(index) - len(dims) :]
    return [0 if is_constant(dim, 1) else at for dim, at in zip(dims, aligned, strict=True)]


def calls_any(func: relax.Function, names: Mapping[str, relax.Function]) -> bool:
    """Return whether `func` calls one of the module's functions `names`."""
    return any(gvar.name_hint in names for gvar in relax.analysis.all_global_vars(func))


def operands(composite: relax.Function, call: Call) -> tuple[Expr, Expr]:
    """Return (w, x), the tensors that `call`, a call of `composite`, transposes and multiplies.

    It looks up which parameters the composite's two operators take. Positions would not do: FuseOpsByPattern orders the
    parameters by first use, gives x @ x.T a single one, and adds one for a symbolic size that is in no tensor's shape.
    """
    given = dict(zip(composite.params, call.args, strict=True))
    transpose, product = (binding.value for binding in composite.body.blocks[0].bindings)
    w, x = transpose.args[0], product.args[0]
    return given.get(w, w), given.get(x, x)


# --- for the transposes ---------------------------------------------------------------------------


is_claimed = (
    offloaded  # whether an earlier pass has claimed a function, for a library or as one kernel
)


class TransposesInSight(PyExprMutator):
    """Visits one Relax function and finds the transpose that a matmul multiplies by. `OwnTransposes` extends it.

    A subclass defines `may_move(transpose, call)`: whether `transpose` may be computed again right before `call`.
    """

    def __init__(self, mod: IRModule, func: relax.Function, fires: Fires):
        super().__init__(mod)
        self.fires = fires
        self.order = ProgramOrder(func)
        self.values: Mapping[relax.Var, Expr] = {}  # of the innermost function only
        self.here: relax.DataflowBlock | None = None

    def visit_function_(self, func: relax.Function) -> Expr:
        outer, self.values = self.values, relax.analysis.get_var2val(func)
        func = super().visit_function_(func)
        self.values = outer
        return func

    def visit_dataflow_block_(self, block: relax.DataflowBlock) -> relax.DataflowBlock:
        outer, self.here = self.here, block
        block = super().visit_dataflow_block_(block)
        self.here = outer
        return block

    def visit_binding_block_(self, block: relax.BindingBlock) -> relax.BindingBlock:
        outer, self.here = self.here, None
        block = super().visit_binding_block_(block)
        self.here = outer
        return block

    def transpose_in(self, call: Call) -> Call | None:
        """Return the permute_dims whose result `call` multiplies by.

        None if `call` is not a matmul in a dataflow block, if its second operand is not a permute_dims, and if `fires`
        or `may_move` refuses the pair.
        """
        if call.op != MATMUL or self.here is None:
            return None
        value = call.args[1]
        while isinstance(value, relax.Var):  # through aliases: lv1 = lv
            value = self.values.get(value)
        if not isinstance(value, Call) or value.op != TRANSPOSE:
            return None
        return value if self.may_move(value, call) and self.fires(value, call) else None

    def in_sight(self, expr: Expr) -> bool:
        """Return whether `expr` may be used in the block that is visited. A DataflowVar may only in its own block."""
        if not isinstance(expr, relax.DataflowVar):
            return True
        return any(binding.var.same_as(expr) for binding in self.here.bindings)


class ProgramOrder:
    """The calls of a function, in program order."""

    def __init__(self, func: relax.Function):
        self.calls = calls_in(func)

    def may_write_between(self, first: Call, last: Call) -> bool:
        """Return whether a call from `first` up to `last` may write into a tensor.

        If one of them occurs more than once, this looks at the widest range.
        """
        start = next(n for n, call in enumerate(self.calls) if call.same_as(first))
        end = max(n for n, call in enumerate(self.calls) if call.same_as(last))
        return any(_may_write(call) for call in self.calls[start:end])


def _may_write(call: Call) -> bool:
    """Return whether `call` may write into an existing tensor, such as w.

    True for functions of the module, closures and packed functions: this does not look into their bodies.
    """
    if not isinstance(call.op, tvm.ir.Op):
        return True
    return call.op.name not in LOOK_ONLY and not writes_no_tensor(call.op)
