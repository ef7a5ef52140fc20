"""A recurrent network, and a pass of its own: all steps multiply their input by one weight, so it is read once."""

import torch
import tvm
from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

STEPS, WIDTH = 16, 2048


class Recurrent(torch.nn.Module):
    """h = tanh(x[t] @ wx.T + b + h @ wh.T), for each row of x; returns the last h."""

    def __init__(self):
        super().__init__()
        self.read, self.keep = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.zeros(1, WIDTH)
        for t in range(len(x)):
            h = torch.tanh(self.read(x[t : t + 1]) + self.keep(h))
        return h


def model():
    torch.manual_seed(0)
    return Recurrent(), (torch.randn(STEPS, WIDTH),)


@tvm.transform.module_pass(opt_level=0, name="MultiplyBeforeSlicing")
class MultiplyBeforeSlicing:
    """Makes `matmul(x[a:b], w)` a slice of `matmul(x, w)`, if w multiplies as many rows of slices of x as x has."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        result = mod.clone()
        for gvar, func in mod.functions_items():
            if isinstance(func, relax.Function):
                result[gvar] = _Products(mod).visit_expr(func)
        return result


def slice_in(value, bound):
    """The call `x[a:b]` if `value` is `matmul(x[a:b], w)`, and x and w have two dimensions; else None."""
    if not isinstance(value, relax.Call) or value.op.name != "relax.matmul":
        return None
    rows, w = bound(value.args[0]), value.args[1]
    if not isinstance(rows, relax.Call) or rows.op.name != "relax.strided_slice":
        return None
    x, axes, _, _, *steps = rows.args
    if x.ty.ndim != 2 or w.ty.ndim != 2 or [int(axis) for axis in axes] != [0]:
        return None
    known = all(isinstance(one.ty.shape[0], tirx.IntImm) for one in (x, rows))
    return rows if known and all(int(step) == 1 for step in steps[0]) else None


@mutator
class _Products(PyExprMutator):
    """Of one dataflow block: {(x, w): how many rows of slices of x are multiplied by w}, and {(x, w): x @ w}."""

    rows, products = {}, {}

    def visit_dataflow_block_(self, block: relax.DataflowBlock) -> relax.BindingBlock:
        self.rows, self.products = {}, {}
        values = {one.var: one.value for one in block.bindings}
        for value in values.values():
            found = slice_in(value, values.get)
            if found is not None:
                key = found.args[0], value.args[1]
                self.rows[key] = self.rows.get(key, 0) + int(found.ty.shape[0])
        changed = super().visit_dataflow_block_(block)
        self.rows, self.products = {}, {}
        return changed

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        found = slice_in(call, self.lookup_binding)
        key = None if found is None else (found.args[0], call.args[1])
        if key is None or self.rows.get(key) != int(key[0].ty.shape[0]):
            return super().visit_call_(call)
        if key not in self.products:
            x, w = map(self.visit_expr, key)
            whole = relax.op.matmul(x, w, out_dtype=str(call.ty.dtype))
            self.products[key] = self.builder_.emit(whole)
        return relax.Call(found.op, [self.products[key], *found.args[1:]], found.attrs)


def passes():
    return [relax.transform.EliminateCommonSubexpr(), MultiplyBeforeSlicing()]
