"""Copies operands before an in-place update, unless they have memory of their own.

In Relax a tensor is a value: `y = permute_dims(x)` is another tensor than x, and an update of y in place leaves x as it
was. But TVM makes no kernel of some operators. It lowers a transpose that moves nothing to x itself, and a reshape to a
view of x. The update of y then writes into x; tests/kit/test_copy_operands_before_in_place.py shows it.
"""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

UPDATES, UPDATES_PACKED = "relax.call_tir_inplace", "relax.call_inplace_packed"
COPY = "runtime.TVMTensorCopyFromTo"
# these write their result into new memory, or into memory that was theirs to update
MAKE_MEMORY = ("relax.call_tir", UPDATES, UPDATES_PACKED, "relax.call_dps_packed")


@tvm.transform.module_pass(opt_level=0, name="CopyOperandsBeforeInPlace")
class CopyOperandsBeforeInPlace:
    """Copies each operand of call_tir_inplace and call_inplace_packed that they update and no kernel has written.

    A parameter of the function is not copied: whoever gives it to an in-place update allows that it is overwritten, as
    with a key-value cache.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        copier = _Copier(mod)
        for gvar, func in mod.functions_items():
            if isinstance(func, relax.Function):
                copied = copier.visit_expr(func)
                if copier.copies:
                    copier.builder_.update_func(gvar, copied)
        return copier.builder_.get() if copier.copies else mod


@mutator
class _Copier(PyExprMutator):
    def __init__(self, mod: tvm.IRModule):
        super().__init__(mod)
        self.copies = 0

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        if not isinstance(call.op, tvm.ir.Op) or call.op.name not in (UPDATES, UPDATES_PACKED):
            return call
        packed = call.op.name == UPDATES_PACKED  # has its operands as arguments, not in a tuple
        operands = list(call.args[1:] if packed else call.args[1].fields)
        for index in {int(i) for i in call.attrs.inplace_indices if int(i) >= 0}:
            if not self.has_memory_of_its_own(operands[index]):
                operands[index] = self.builder_.emit(_copy(operands[index]))
                self.copies += 1
        rest = operands if packed else [relax.Tuple(operands), *call.args[2:]]
        return relax.Call(call.op, [call.args[0], *rest], call.attrs, call.ty_args)

    def has_memory_of_its_own(self, expr: relax.Expr) -> bool:
        """Whether a kernel wrote `expr`, or the caller gave it."""
        while isinstance(expr, relax.Var):
            value = self.lookup_binding(expr)
            if value is None:
                return True  # a parameter
            expr = value
        if isinstance(expr, relax.TupleGetItem):
            return self.has_memory_of_its_own(expr.tuple_value)
        return (
            isinstance(expr, relax.Call)
            and isinstance(expr.op, tvm.ir.Op)
            and expr.op.name in MAKE_MEMORY
        )


def _copy(tensor: relax.Expr) -> relax.Call:
    """The tensor in new memory. A kernel that only copies would be a reshape to TVM, and so a view again."""
    return relax.op.call_dps_packed(COPY, [tensor], out_ty=tensor.ty)
