"""Chapter 12: CombineProducts. Products of one tensor and several known weights become one product."""

# BEGIN exercise 12.1: the pass CombineProducts
from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import tvm
import tvm_ffi
from tvm import relax
from tvm.ir import Call, Expr, GenericConst, GlobalVar, IRModule, Op
from tvm.relax.expr_functor import PyExprMutator, PyExprVisitor, mutator, visitor

from chapters.kit.ir.relax_effects import may_write, offloaded, scopes

MATMUL, TRANSPOSE = Op.get("relax.matmul"), Op.get("relax.permute_dims")
# A product and its split are two kernels in place of one for each product.
FEWEST = 3
# Operators that no fusion merges into the kernel of the product whose result they read. Any other may be its epilogue,
# which costs nothing there, and would become a kernel of its own behind the split.
NO_EPILOGUE = (MATMUL, TRANSPOSE, Op.get("relax.reshape"))

# --- who reads what -------------------------------------------------------------------------------


@visitor
class Readers(PyExprVisitor):
    """For each variable and each constant of a function, the bindings that read it; None for the function's result."""

    def __init__(self):
        super().__init__()
        self.of: dict[Hashable, list[relax.Binding | None]] = defaultdict(list)
        self.bindings: dict[relax.Var, relax.Binding] = {}
        self.here: relax.Binding | None = None

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        outer, self.here = self.here, binding
        self.bindings[binding.var] = binding
        super().visit_var_binding_(binding)
        self.here = outer

    def visit_match_cast_(self, binding: relax.MatchCast) -> None:
        outer, self.here = self.here, binding
        super().visit_match_cast_(binding)
        self.here = outer

    def visit_var_(self, var: relax.Var) -> None:
        self.of[var].append(self.here)

    def visit_dataflow_var_(self, var: relax.DataflowVar) -> None:
        self.of[var].append(self.here)

    def visit_generic_const_(self, const: GenericConst) -> None:
        self.of[const.value].append(self.here)

    def root(self, expr: Expr) -> Expr:
        """The variable or value that `expr` is another name of, also as an item of a tuple."""
        while isinstance(expr, relax.Var) and expr in self.bindings:
            value = self.bindings[expr].value
            if isinstance(value, relax.TupleGetItem):
                packed = self.bindings.get(self.root(value.tuple_value))
                if packed is None or not isinstance(packed.value, relax.Tuple):
                    break
                value = packed.value.fields[value.index]
            if not isinstance(value, relax.Var):
                break
            expr = value
        return expr

    def live(self) -> set[relax.Var]:
        """The variables whose values the function's result depends on, or a call that has an effect."""
        reads = defaultdict(list)
        for read, readers in self.of.items():
            for binding in readers:
                reads[binding and binding.var].append(read)
        for var, binding in self.bindings.items():
            if isinstance(binding.value, relax.TupleGetItem):
                item = self.root(var)
                if not item.same_as(var):
                    reads[var] = [item]  # and not all that is in the tuple
        writes = [var for var, binding in self.bindings.items() if _has_effect(binding.value)]
        found: set[relax.Var] = set()
        waiting = [*reads[None], *writes]
        while waiting:
            var = waiting.pop()
            if isinstance(var, relax.Var) and var not in found:
                found.add(var)
                waiting += reads[var]
        return found

    def may_have_epilogue(self, var: relax.Var) -> bool:
        """Whether a fusion might merge what reads `var` into the kernel that computes it."""
        for binding in self.of[var]:
            value = binding and binding.value
            if isinstance(value, relax.Var | relax.Tuple | relax.TupleGetItem) or _moves_nothing(
                value
            ):
                if self.may_have_epilogue(binding.var):
                    return True
            elif value is not None and not (isinstance(value, Call) and value.op in NO_EPILOGUE):
                return True
        return False


def _has_effect(value: Expr) -> bool:
    """Whether `value` is computed even if nothing reads it. A call of a function that TVM takes for pure is not."""
    pure = isinstance(value, Call) and isinstance(value.op, GlobalVar) and value.op.ty.purity
    return may_write(value) and not pure


def _moves_nothing(value: Expr | None) -> bool:
    """Whether `value` is a transpose that TVM takes for another name of its operand."""
    if not isinstance(value, Call) or value.op != TRANSPOSE:
        return False
    return _order(value) == list(range(value.args[0].ty.ndim))


def _order(transpose: Call) -> list[int]:
    """The dimension of its operand that each dimension of its result is, if its operand's are known."""
    rank, axes = transpose.args[0].ty.ndim, transpose.attrs.axes
    return list(range(rank))[::-1] if axes is None else [int(axis) % rank for axis in axes]


def count_uses(mod: IRModule) -> dict[Hashable, int]:
    """How often the Relax functions of `mod` read each constant, by its numbers: equal ones are stored once."""
    uses: dict[Hashable, int] = defaultdict(int)
    for func in mod.functions.values():
        if isinstance(func, relax.Function):
            readers = Readers()
            readers.visit_expr(func)
            for read, bindings in readers.of.items():
                if not isinstance(read, relax.Var):
                    uses[tvm_ffi.StructuralKey(read)] += len(bindings)
    return uses


# --- the groups -----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Product:
    """The binding of x times a known weight. chain: variables that only lead from the constant to the product."""

    var: relax.Var
    call: Call
    weight: GenericConst
    chain: tuple[relax.Var, ...]
    transposed: bool

    @property
    def width(self) -> int:
        """How many columns of the result it computes."""
        return int(self.weight.ty.shape[-2 if self.transposed else -1])


class Finder:
    """Finds the groups of one function. uses: how often the module reads each constant, by its numbers."""

    def __init__(self, func: relax.Function, uses: dict[Hashable, int]):
        self.func, self.uses = func, uses
        self.readers = Readers()
        self.readers.visit_expr(func)
        self.live = self.readers.live()

    def groups(self) -> Iterator[list[Product]]:
        """The products that become one, in the order of their bindings."""
        for scope in scopes(self.func):
            for block in scope.blocks:
                yield from (group for group in self.in_block(block) if len(group) >= FEWEST)

    def in_block(self, block: relax.BindingBlock) -> Iterator[list[Product]]:
        """The groups of one block. A call that may write into x ends all that are open."""
        found: dict[Hashable, list[Product]] = {}
        for binding in block.bindings:
            if may_write(binding.value):
                yield from found.values()
                found = {}
            product = self.product(binding)
            if product:
                found.setdefault(self.key(product), []).append(product)
        yield from found.values()

    def key(self, product: Product) -> Hashable:
        """What the products of a group have in common: x, and all of a weight's type but its width."""
        dims = [int(dim) for dim in product.weight.ty.shape]
        dims.pop(-2 if product.transposed else -1)
        x, dtype = self.readers.root(product.call.args[0]), str(product.call.attrs.out_dtype)
        return x, dtype, str(product.weight.ty.dtype), product.transposed, *dims

    def product(self, binding: relax.Binding) -> Product | None:
        """The product that `binding` binds, if it may join a group."""
        call, var = binding.value, binding.var
        if not isinstance(binding, relax.VarBinding) or not isinstance(call, Call):
            return None
        if call.op != MATMUL or not all(map(_is_typed, (call.args[0].ty, var.ty))):
            return None
        if var not in self.live or not self.may_join(var):
            return None
        product = self.with_weight(var, call)
        if not product or product.weight.ty.ndim < 2 or not product.width:
            return None
        return product if isinstance(call.args[0], relax.Var) else None

    def may_join(self, var: relax.Var) -> bool:
        """Whether the product bound to `var` gains by becoming a part of a larger one."""
        return not self.readers.may_have_epilogue(var)

    def with_weight(self, var: relax.Var, call: Call) -> Product | None:
        """The product, if its second operand is a constant, or its transpose, that nothing else reads."""
        expr, chain, transposed = call.args[1], [], False
        while isinstance(expr, relax.Var):
            binding = self.readers.bindings.get(expr)
            if binding is None or len(self.readers.of[expr]) != 1:
                return None
            chain.append(expr)
            expr = binding.value
            if isinstance(expr, Call):
                if transposed or expr.op != TRANSPOSE or not _swaps_the_last_two(expr):
                    return None
                expr, transposed = expr.args[0], True
        if not isinstance(expr, GenericConst):
            return None
        if self.uses[tvm_ffi.StructuralKey(expr.value)] != 1:
            return None
        return Product(var, call, expr, tuple(chain), transposed)


def _is_typed(ty: tvm.ir.Type) -> bool:
    has_shape = isinstance(ty, relax.TensorType) and isinstance(ty.shape, relax.ShapeExpr)
    return has_shape and ty.dtype is not None


def _swaps_the_last_two(transpose: Call) -> bool:
    dims = list(range(transpose.args[0].ty.ndim))
    return len(dims) >= 2 and _order(transpose) == [*dims[:-2], dims[-1], dims[-2]]


# --- the rewrite ----------------------------------------------------------------------------------


@mutator
class Combiner(PyExprMutator):
    """Emits the combined product before the first of a group; each product then takes its part of the result."""

    def __init__(self, mod: IRModule, groups: list[list[Product]]):
        super().__init__(mod)
        self.place = {p.var: (group, n) for group in groups for n, p in enumerate(group)}
        self.unused = {var for group in groups for product in group for var in product.chain}
        self.parts: dict[relax.Var, relax.Var] = {}

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        if binding.var in self.unused:
            return
        if binding.var in self.place:
            group, number = self.place[binding.var]
            first = group[0].var
            if number == 0:
                self.parts[first] = self.emit_parts(group)
            part = relax.TupleGetItem(self.parts[first], number)
            binding = relax.VarBinding(binding.var, part)
        super().visit_var_binding_(binding)

    def emit_parts(self, group: list[Product]) -> relax.Var:
        """Emit the product of x and the stacked weights, and return the tuple of its parts."""
        first = group[0]
        axis = -2 if first.transposed else -1
        stacked = np.concatenate([product.weight.value.numpy() for product in group], axis)
        w: Expr = relax.const(stacked, str(first.weight.ty.dtype))
        if first.transposed:
            dims = list(range(stacked.ndim))
            axes = [*dims[:-2], dims[-1], dims[-2]]
            w = self.builder_.emit(relax.op.permute_dims(w, axes))
        x = self.visit_expr(first.call.args[0])
        out_dtype = first.call.attrs.out_dtype
        combined = self.builder_.emit(relax.op.matmul(x, w, out_dtype))
        ends = list(accumulate(product.width for product in group))
        return self.builder_.emit(relax.op.split(combined, ends[:-1], first.var.ty.ndim - 1))


@tvm.transform.module_pass(opt_level=0, name="CombineProducts")
class CombineProducts:
    """Make one product of three or more that multiply one tensor by weights known at compile time.

    Run it before the passes that fuse products with what stands before and behind them. It raises no error on a
    well-formed module; products that it cannot combine at no cost stay as they are.
    """

    def transform_module(self, mod: IRModule, _ctx: tvm.transform.PassContext) -> IRModule:
        functions = {g: f for g, f in mod.functions_items() if isinstance(f, relax.Function)}
        uses, changed = count_uses(mod), {}
        for gvar, func in functions.items():
            groups = [] if offloaded(func) else list(Finder(func, uses).groups())
            if groups:
                changed[gvar] = Combiner(mod, groups).visit_expr(func)
        if not changed:
            return mod
        result = mod.clone()
        result.update(changed)
        return result


# END exercise 12.1
