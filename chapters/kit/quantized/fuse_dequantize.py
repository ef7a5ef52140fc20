"""Moves the unpacking of a matrix into the kernels that read it: no float copy of the matrix is written to memory.

FuseOps leaves the two apart, because it fuses nothing into the front of a product. Both passes come after LegalizeOps
and AnnotateTIROpPattern, and before FuseOps, which then adds the epilogues that it finds behind the fused product.
"""

from __future__ import annotations

import tvm
from tvm import relax, tirx
from tvm.ir import Call, Expr, GlobalVar, IRModule, Op, TensorLoad
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.s_tir import SBlockRealize, Schedule

from chapters.kit.cpu.nt_matmul import is_nt_matmul
from chapters.kit.ir.relax_effects import may_write, offloaded
from chapters.kit.ir.tensor_ir import innermost_blocks, loads, nodes, substitute, with_fields
from chapters.kit.quantized.dequantize import NAME, form_of

CALL_TIR = Op.get("relax.call_tir")


def takes_rows(func: tirx.PrimFunc) -> bool:
    """Whether `func` (matrix, numbers, result) copies rows of a matrix, whose numbers it reads from another tensor."""
    blocks = innermost_blocks(func.body)
    if len(func.params) != 3 or len(blocks) != 1 or blocks[0][1].block.init is not None:
        return False
    found = loads(blocks[0][1].block.body, func.params[0])
    return len(found) == 1 and bool(nodes(found[0].indices[0], TensorLoad))


def joined(first: tirx.PrimFunc, second: tirx.PrimFunc) -> tirx.PrimFunc:
    """One kernel that runs `first` and then `second`, whose first parameter is the result of `first`.

    Its parameters are those of `first` without the result, then the other parameters of `second`. The result of `first`
    becomes a buffer inside. The attributes are those of `second`.
    """
    *inputs, result = first.params
    matrix, *others = second.params
    one, two = first.body.block, substitute(second.body.block, {matrix: result})
    inside = [result, *one.alloc_buffers, *two.alloc_buffers]
    root = with_fields(two, body=tirx.SeqStmt([one.body, two.body]), alloc_buffers=inside)
    return tirx.PrimFunc([*inputs, *others], SBlockRealize([], True, root), attrs=second.attrs)


def unpacks_and_multiplies(unpack: tirx.PrimFunc, product: tirx.PrimFunc) -> tirx.PrimFunc | None:
    """One kernel for both, if `product` is an NT_matmul (w, x, result); None for another kernel."""
    return joined(unpack, product) if is_nt_matmul(product) else None


def unpacks_rows(unpack: tirx.PrimFunc, take: tirx.PrimFunc) -> tirx.PrimFunc | None:
    """One kernel that unpacks only the rows that `take` copies; None if that is another kernel."""
    if not takes_rows(take):
        return None
    sch = Schedule(joined(unpack, take))
    sch.compute_inline(sch.get_child_blocks(sch.get_sblock("root"))[0])
    return sch.mod["main"].without_attr("global_symbol")


RULES = {"FuseDequantizeMatmul": unpacks_and_multiplies, "FuseDequantizeTake": unpacks_rows}


class _Rules:
    """What the rules make of two kernels of a module, each pair asked about once."""

    def __init__(self, mod: IRModule):
        self.mod = mod
        self.known: dict[tuple[GlobalVar, GlobalVar], dict[str, tirx.PrimFunc]] = {}

    def __call__(self, unpack: Call, reader: Call) -> dict[str, tirx.PrimFunc]:
        """{name of a rule: the kernel that it makes of both}, empty if no rule serves them."""
        names = unpack.args[0], reader.args[0]
        if names not in self.known:
            made = {name: rule(*(self.mod[one] for one in names)) for name, rule in RULES.items()}
            self.known[names] = {
                name: kernel for name, kernel in made.items() if kernel is not None
            }
        return self.known[names]


def pairs(mod: IRModule, block: relax.DataflowBlock, rules: _Rules) -> dict[Call, Call]:
    """The kernels of a block that can unpack a matrix themselves: their calls, and the calls that unpack it now.

    Left out is a matrix of which one reader needs the floats, since they are then in memory in any case. The codes are
    read later than before, so nothing may write to a tensor between the two calls.
    """
    ready: dict[relax.Var, Call] = {}
    readers: dict[relax.Var, dict[relax.Var, Call]] = {}
    unpacked: dict[relax.Var, Call] = {}
    for binding in block.bindings:
        value = binding.value
        if may_write(value):
            ready.clear()
        if not isinstance(value, Call) or value.op != CALL_TIR:
            continue
        arguments = list(value.args[1])
        if isinstance(binding.var, relax.DataflowVar) and form_of(mod[value.args[0]]):
            ready[binding.var] = unpacked[binding.var] = value
            continue
        matrix, *others = arguments or [None]
        if matrix in ready and matrix not in others and rules(ready[matrix], value):
            readers.setdefault(matrix, {})[binding.var] = value
    users = relax.analysis.udchain(block)
    return {
        reader: unpacked[matrix]
        for matrix, found in readers.items()
        if set(found) == set(users[matrix])
        for reader in found.values()
    }


@mutator
class _Fuse(PyExprMutator):
    """Replaces the calls of one Relax function that the rule `name` serves."""

    def __init__(self, mod: IRModule, name: str):
        super().__init__(mod)
        self.mod, self.name, self.rules = mod, name, _Rules(mod)
        self.found: dict[Call, Call] = {}

    def visit_dataflow_block_(self, block: relax.DataflowBlock) -> relax.DataflowBlock:
        self.found = pairs(self.mod, block, self.rules)
        return super().visit_dataflow_block_(block)

    def visit_call_(self, call: Call) -> Expr:
        unpack = self.found.get(call)
        kernel = None if unpack is None else self.rules(unpack, call).get(self.name)
        if kernel is None:
            return super().visit_call_(call)
        name = f"{NAME}_{call.args[0].name_hint}"
        arguments = [self.visit_expr(one) for one in [*unpack.args[1], *list(call.args[1])[1:]]]
        return relax.call_tir(self.builder_.add_func(kernel, name), arguments, call.ty_args[0])


def _pass(name: str) -> tvm.ir.transform.Pass:
    @tvm.transform.module_pass(opt_level=0, name=name)
    def transform(mod: IRModule, _ctx: tvm.transform.PassContext) -> IRModule:
        for gvar, func in mod.functions_items():
            if isinstance(func, relax.Function) and not offloaded(func):
                fuse = _Fuse(mod, name)
                new = relax.analysis.remove_all_unused(fuse.visit_expr(func))
                fuse.builder_.update_func(gvar, new)
                mod = fuse.builder_.get()
        return mod

    return transform


def FuseDequantizeMatmul() -> tvm.ir.transform.Pass:
    """Fuses the unpacking of a matrix with the products that multiply by it transposed."""
    return _pass("FuseDequantizeMatmul")


def FuseDequantizeTake() -> tvm.ir.transform.Pass:
    """Fuses the unpacking of a matrix with the lookups that copy rows of it."""
    return _pass("FuseDequantizeTake")
