"""Copies operands that may share memory with another tensor, before they are updated in place.

In Relax a tensor is a value: `y = permute_dims(x)` is another tensor than x, and an update of y in place must not
change x. But some operators need no kernel. TVM lowers a transpose that moves no element to x itself, and a reshape to
a view of x. The update of y then writes into x; docs/upstream/update_in_place_reaches_the_operand.py shows it.
"""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from chapters.kit.ir.relax_effects import IN_PLACE

COPY = "runtime.TVMTensorCopyFromTo"
# these write their result into new memory, or into an operand that they may overwrite
MAKE_MEMORY = ("relax.call_tir", "relax.call_dps_packed", *IN_PLACE)


@tvm.transform.module_pass(opt_level=0, name="CopyOperandsBeforeInPlace")
class CopyOperandsBeforeInPlace:
    """Copies each operand that call_tir_inplace or call_inplace_packed updates, unless a kernel has written it.

    Parameters of the function are not copied: a caller that passes one to an in-place update expects it to be
    overwritten, as with a key-value cache.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return apply_copier(mod, _Copier(mod))


@mutator
class _Copier(PyExprMutator):
    def __init__(self, mod: tvm.IRModule):
        super().__init__(mod)
        self.copies = 0

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        if not isinstance(call.op, tvm.ir.Op) or call.op.name not in IN_PLACE:
            return call
        # call_inplace_packed has its operands as arguments, call_tir_inplace has them in a tuple
        packed = call.op.name == "relax.call_inplace_packed"
        operands = list(call.args[1:] if packed else call.args[1].fields)
        for index in {int(i) for i in call.attrs.inplace_indices if int(i) >= 0}:
            if not self.owns_its_memory(operands[index]):
                operands[index] = self.builder_.emit(make_copy(operands[index]))
                self.copies += 1
        rest = operands if packed else [relax.Tuple(operands), *call.args[2:]]
        return relax.Call(call.op, [call.args[0], *rest], call.attrs, call.ty_args)

    def owns_its_memory(self, expr: relax.Expr) -> bool:
        """Whether a kernel wrote `expr`, or it is a parameter."""
        while isinstance(expr, relax.Var):
            value = self.lookup_binding(expr)
            if value is None:
                return True  # a parameter
            expr = value
        if isinstance(expr, relax.TupleGetItem):
            return self.owns_its_memory(expr.tuple_value)
        is_operator = isinstance(expr, relax.Call) and isinstance(expr.op, tvm.ir.Op)
        return is_operator and expr.op.name in MAKE_MEMORY


def apply_copier(mod: tvm.IRModule, copier: PyExprMutator) -> tvm.IRModule:
    """`mod` with each Relax function as `copier` makes it; `mod` itself if its count `copies` stays 0."""
    for gvar, func in mod.functions_items():
        if isinstance(func, relax.Function):
            copied = copier.visit_expr(func)
            if copier.copies:
                copier.builder_.update_func(gvar, copied)
    return copier.builder_.get() if copier.copies else mod


def make_copy(tensor: relax.Expr) -> relax.Call:
    """A copy of the tensor, by a packed call: TVM takes a kernel that only copies for a reshape, and makes a view."""
    return relax.op.call_dps_packed(COPY, [tensor], out_ty=tensor.ty)
