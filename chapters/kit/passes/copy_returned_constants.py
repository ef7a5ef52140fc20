"""Copies constants that a function returns: a caller may write into what it is given.

The virtual machine returns a constant itself, not a copy. A caller that then updates the result in place changes what
the next call returns, and what the function computes from the constant.
"""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from chapters.kit.passes.copy_operands_before_in_place import apply_copier, make_copy


@tvm.transform.module_pass(opt_level=0, name="CopyReturnedConstants")
class CopyReturnedConstants:
    """Copies each constant that is the result of a function or of a branch, or that a tuple there holds."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return apply_copier(mod, _Copier(mod))


@mutator
class _Copier(PyExprMutator):
    def __init__(self, mod: tvm.IRModule):
        super().__init__(mod)
        self.copies = 0

    def visit_seq_expr_(self, seq: relax.SeqExpr) -> relax.Expr:
        blocks = [self.visit_binding_block(block) for block in seq.blocks]
        self.builder_._begin_binding_block()
        result = self.copy_constants(self.visit_expr(seq.body))
        copies = self.builder_._end_block()
        return relax.SeqExpr([*blocks, copies] if copies.bindings else blocks, result)

    def copy_constants(self, expr: relax.Expr) -> relax.Expr:
        """`expr`, or a copy of the constant that it stands for; a tuple is made anew if it holds such a constant."""
        value = expr
        while isinstance(value, relax.Var) and (bound := self.lookup_binding(value)) is not None:
            value = bound
        if isinstance(value, tvm.ir.GenericConst):
            self.copies += 1
            return self.builder_.emit(make_copy(value))
        if isinstance(value, relax.Tuple):
            fields = [self.copy_constants(field) for field in value.fields]
            same = all(new.same_as(old) for new, old in zip(fields, value.fields, strict=True))
            return expr if same else relax.Tuple(fields)
        return expr
