"""FuseAddRMSNorm with two decisions of MLC-LLM's pass (July 2026). You break it in exercises 4.3 and 4.6.

First decision: a pair gets the prefill kernel if its first dimension is 1, else the decode kernel. Second decision: the
pass builds a kernel only if it has none of that kind yet. The kernels and the rest of the pass are this course's, and
run on the CPU.
"""

import tvm
from tvm import relax, tirx
from tvm.ir import Op
from tvm.relax.expr_functor import PyExprMutator, mutator

from chapters.kit.cpu.add_norm_on_cpu import cpu_kernel
from chapters.kit.ir.row_index import is_one


@tvm.transform.module_pass(opt_level=0, name="FuseAsUpstream")
class FuseAsUpstream:
    """Replace every rms_norm of an add by a call of a kernel for (1, n, hidden) or (n, 1, hidden), for LLVM."""

    def transform_module(self, mod: tvm.IRModule, _context) -> tvm.IRModule:
        return _Fuser(mod).transform()


@mutator
class _Fuser(PyExprMutator):
    def __init__(self, mod: tvm.IRModule):
        super().__init__(mod)
        self.mod = mod
        self.kernels: dict[str, tvm.ir.GlobalVar] = {}

    def transform(self) -> tvm.IRModule:
        for gvar, func in self.mod.functions_items():
            if isinstance(func, relax.Function):
                rewritten = relax.analysis.remove_all_unused(self.visit_expr(func))
                self.builder_.update_func(gvar, rewritten)
        return self.builder_.get()

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if call.op != Op.get("relax.nn.rms_norm"):
            return call
        total, weight = call.args
        add = self.lookup_binding(total)
        if not isinstance(add, relax.Call) or add.op != Op.get("relax.add"):
            return call
        x1, x2 = add.args
        first, _second, hidden = x1.ty.shape.values
        kind = "prefill" if is_one(first) else "decode"
        if kind not in self.kernels:
            self.kernels[kind] = self._make(kind, int(hidden), str(x1.ty.dtype), call.attrs.epsilon)
        call_tir = relax.call_tir(self.kernels[kind], [x1, x2, weight], [x1.ty, x2.ty])
        both = self.builder_.emit(call_tir)
        self.set_var_remap(total, self.builder_.emit(relax.TupleGetItem(both, 1)))
        return relax.TupleGetItem(both, 0)

    def _make(self, kind: str, hidden: int, dtype: str, epsilon: float) -> tvm.ir.GlobalVar:
        one, many = tirx.IntImm("int64", 1), tirx.Var("n", "int64")
        dims = [one, many] if kind == "prefill" else [many, one]
        kernel = cpu_kernel(dims, hidden, dtype, float(epsilon))
        return self.builder_.add_func(kernel, f"fuse_add_norm_{kind}")
