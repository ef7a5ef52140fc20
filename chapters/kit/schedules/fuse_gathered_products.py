"""Multiplies by matrices of a table in place: a layer of experts reads the matrix that each token chose.

A mixture of experts writes `matmul(take(table, chosen, axis=0), x)`, with one column of x for each choice. As a kernel
of its own the lookup copies a matrix for each choice, and the product reads each copy once: 64 choices of a matrix of
1 MB move 64 MB three times. The product itself has one column, so tiles of columns would be empty but for one lane.
"""

from __future__ import annotations

import tvm
from tvm import relax, te, tirx, topi
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.target import Target

from chapters.kit.ir.row_index import is_one
from chapters.kit.schedules.vectorize_rows import vectorize_sums

TAKE, MATMUL = (tvm.ir.Op.get(f"relax.{name}") for name in ("take", "matmul"))


@tvm.transform.module_pass(opt_level=0, name="FuseGatheredProducts")
class FuseGatheredProducts:
    """Makes one kernel of a lookup of matrices (n, k) in a table and the product of each with its own column.

    If the current target is a CPU, for operands of constant sizes and one dtype. The kernel is scheduled as sums of
    rows; a product that has no such schedule stays. So does a lookup that something else reads.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        target = Target.current()
        if target is None or target.kind.name != "llvm":
            return mod
        fuser = _Fuser(mod, target)
        for gvar, func in mod.functions_items():
            if isinstance(func, relax.Function):
                fuser.builder_.update_func(gvar, fuser.visit_expr(func))
        for gvar, func in fuser.kernels.items():
            fuser.builder_.update_func(gvar, func)
        return fuser.builder_.get() if fuser.kernels else mod


@mutator
class _Fuser(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, target: Target):
        super().__init__(mod)
        self.target = target
        self.kernels: dict[tvm.ir.GlobalVar, tirx.PrimFunc] = {}  # scheduled

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        is_product = call.op == MATMUL and isinstance(call.args[0], relax.Var)
        taken = self.lookup_binding(call.args[0]) if is_product else None
        if not isinstance(taken, relax.Call) or taken.op != TAKE or not _can_fuse(taken, call):
            return call

        def gathered_product(table: te.Tensor, chosen: te.Tensor, x: te.Tensor) -> te.Tensor:
            w = topi.take(table, chosen, axis=0, mode=str(taken.attrs.mode))
            k = te.reduce_axis((0, table.shape[2]), "k")
            return te.compute(w.shape[:2], lambda s, j: te.sum(w[s, j, k] * x[s, k], axis=k))

        rows = self.builder_.emit(relax.op.squeeze(call.args[1], [2]))
        fused = self.builder_.call_te(gathered_product, *taken.args, rows)
        found = vectorize_sums(self.builder_.get()[fused.args[0]], self.target)
        if found is None:
            return call
        self.kernels[fused.args[0]] = found.mod["main"].with_attr("tirx.is_scheduled", True)
        return relax.op.expand_dims(self.builder_.emit(fused), 2)


def _can_fuse(taken: relax.Call, product: relax.Call) -> bool:
    """Whether `product` multiplies matrices `taken` along axis 0 of a table by as many single columns."""
    types = [one.ty for one in (*taken.args, product.args[1])]
    if [ty.ndim for ty in types] != [3, 1, 3] or taken.attrs.axis != 0:
        return False
    dims = [dim for ty in types for dim in ty.shape or [None]]
    one_dtype = types[0].dtype == types[2].dtype and types[0].dtype == product.ty.dtype
    constant = all(isinstance(dim, tirx.IntImm) for dim in dims)
    return constant and one_dtype and dims[3] == dims[4] and is_one(dims[-1])
