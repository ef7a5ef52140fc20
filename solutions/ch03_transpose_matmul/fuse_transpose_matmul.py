"""FuseTransposeMatmul: matmul(x, permute_dims(w)) becomes one kernel that reads w as it is stored.

The pass has two steps: `group` lets FuseOpsByPattern move each matmul and its transpose into a function of its
own, a composite, and `generate` replaces each call of a composite by a call of a PrimFunc, `NT_matmul`. Before
both, `own_transposes` sees to it that no transpose of such a pair is used by anything else.

The second half makes that kernel fast: `schedule_decode` for a few rows of x, `schedule_prefill` for many.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import numpy as np
import tvm
from tvm import relax, te, tirx
from tvm.ir import Call, Expr, GlobalVar, IRModule
from tvm.relax.dpl import DFPattern, is_op, wildcard
from tvm.relax.expr_functor import PyExprMutator, PyExprVisitor, mutator, visitor
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV
from tvm.target import Target

from chapters.toolkit.cpu.matmul_tile import (
    Tile,
    has_few_rows,
    is_nt_matmul,
    lanes_of,
    largest_divisor,
    matmul_tile,
    side_by_side,
    weight_shape,
)
from chapters.toolkit.ir.relax_effects import LOOK_ONLY, is_harmless

COMPOSITE = "transpose_matmul_fuse"
MATMUL = tvm.ir.Op.get("relax.matmul")
TRANSPOSE = tvm.ir.Op.get("relax.permute_dims")
Fires = Callable[[Call, Call], bool]  # (permute_dims, matmul) -> whether the two become one kernel

# --- the pair to look for -------------------------------------------------------------------------


def transpose_matmul_pattern() -> tuple[DFPattern, dict[str, DFPattern]]:
    """The pattern matmul(x, permute_dims(w)), and the names under which a check finds its parts.

    Returns (pattern of the whole, {"x": …, "w": …, "transpose": …, "product": …}): any expression x, any
    expression w, the call of permute_dims, the call of matmul.
    """
    # BEGIN exercise 3.1 (about 5 lines): the pattern and its four parts
    x, w = wildcard(), wildcard()
    transpose = is_op("relax.permute_dims")(w)
    product = is_op("relax.matmul")(x, transpose)
    return product, {"x": x, "w": w, "transpose": transpose, "product": product}
    # END exercise 3.1


def may_fuse(transpose: Call, product: Call) -> bool:
    """Whether product = matmul(x, transpose), transpose = permute_dims(w, axes), is a matmul with w transposed.

    It is if the axes exchange the last two dimensions of w and leave all others in place, however that is
    written: `axes` may be None (all dimensions reversed) and may count from the end. The types of w, x and
    the product must be known (`is_typed`): a PrimFunc cannot be made for an unknown shape or dtype, and
    `ndim` is -1 where not even the rank is known.
    """
    w, x = transpose.args[0], product.args[0]
    # BEGIN exercise 3.2 (about 6 lines): known types, and axes that exchange the last two dimensions
    if not all(is_typed(expr.ty) for expr in (w, x, product)) or w.ty.ndim < 2:
        return False
    dims = list(range(w.ty.ndim))
    axes = transpose.attrs.axes
    order = dims[::-1] if axes is None else [int(axis) % len(dims) for axis in axes]
    return order == [*dims[:-2], dims[-1], dims[-2]]
    # END exercise 3.2


def is_typed(ty: tvm.ir.Type) -> bool:
    """Whether `ty` is a tensor type that says its shape, dimension by dimension, and its dtype."""
    return (
        isinstance(ty, relax.TensorType)
        and isinstance(ty.shape, relax.ShapeExpr)
        and ty.dtype is not None
    )


# --- step 1: each pair a function of its own ------------------------------------------------------


def group(mod: IRModule, fires: Fires) -> IRModule:
    """`mod` with each pair that `fires` accepts moved into a private function, a composite.

    A pair is a permute_dims and, right behind it in one dataflow block, the matmul that uses it. The pattern
    alone would also match across blocks and past anything that stands between, and w would be read too late.
    """
    behind = Neighbours()
    for func in mod.functions.values():
        if isinstance(func, relax.Function):
            behind.visit_expr(func)

    def check(context: relax.transform.PatternCheckContext) -> bool:
        transpose, product = (context.annotated_expr[name] for name in ("transpose", "product"))
        following = behind.following.get(context.value_to_bound_var.get(transpose))
        return product.same_as(following) and fires(transpose, product)

    pattern = (COMPOSITE, *transpose_matmul_pattern(), check)
    return relax.transform.FuseOpsByPattern([pattern], bind_constants=False)(mod)


@visitor
class Neighbours(PyExprVisitor):
    """Notes in `following`, for each variable of a dataflow block, the value that is bound next."""

    def __init__(self):
        super().__init__()
        self.following: dict[relax.Var, Expr] = {}

    def visit_dataflow_block_(self, block: relax.DataflowBlock) -> None:
        for binding, after in pairwise(block.bindings):
            self.following[binding.var] = after.value
        super().visit_dataflow_block_(block)


# --- step 2: each composite a kernel --------------------------------------------------------------


def nt_matmul(w: te.Tensor, x: te.Tensor, out_dtype: str) -> te.Tensor:
    """The TE compute of x times w transposed, w read as it is stored: the reduction axis is its last index.

    w: (*batch of w, n, k). x: (*batch of x, m, k), or (k,), whose result has no dimension m. The batch
    dimensions are aligned from the right; one that is the constant 1 is repeated along the other's, and a
    missing one counts as 1. Returns (*batch, m, n) of `out_dtype`, called NT_matmul; the operands are cast to
    `out_dtype` before they are multiplied. Dimensions may be symbolic. With k the constant 0 every element is
    a sum of nothing, 0.
    """
    batch = broadcast(x.shape[:-2], w.shape[:-2])
    m, n, length = x.shape[-2:-1], w.shape[-2], x.shape[-1]
    if is_constant(length, 0):
        return te.compute((*batch, *m, n), lambda *_: tirx.const(0, out_dtype), name="NT_matmul")
    # BEGIN exercise 3.3 (about 10 lines): sum over k of x[…, i, k] * w[…, j, k], cast first
    k = te.reduce_axis((0, length), name="k")

    def element(*index: tirx.Var) -> Expr:
        *lead, j = index
        lead, i = lead[: len(batch)], lead[len(batch) :]
        from_x = x(*batch_index(x.shape[:-2], lead), *i, k).astype(out_dtype)
        from_w = w(*batch_index(w.shape[:-2], lead), j, k).astype(out_dtype)
        return te.sum(from_x * from_w, axis=k)

    return te.compute((*batch, *m, n), element, name="NT_matmul")
    # END exercise 3.3


def is_constant(dim: Expr | int, value: int) -> bool:
    """Whether `dim` is known now to be `value`; False for any symbolic dimension."""
    return isinstance(dim, int | tirx.IntImm) and int(dim) == value


def broadcast(a: Sequence[Expr], b: Sequence[Expr]) -> list[Expr]:
    """The batch dimensions of a product whose operands have `a` and `b`, aligned from the right."""
    rank = max(len(a), len(b))
    a, b = ([1] * (rank - len(dims)) + list(dims) for dims in (a, b))
    return [q if is_constant(p, 1) else p for p, q in zip(a, b, strict=True)]


def batch_index(dims: Sequence[Expr], index: Sequence[Expr]) -> list[Expr]:
    """Where element `index` of the product's batch lies in an operand with batch dimensions `dims`."""
    aligned = index[len(index) - len(dims) :]
    return [0 if is_constant(dim, 1) else at for dim, at in zip(dims, aligned, strict=True)]


def generate(mod: IRModule, composites: dict[str, relax.Function]) -> IRModule:
    """`mod` with each call of one of `composites` replaced by a call of its kernel, and without them."""
    for gvar, func in mod.functions_items():
        if isinstance(func, relax.Function) and calls_any(func, composites):
            generator = GenerateKernels(mod, composites)  # one each: functions may share Vars
            generator.builder_.update_func(gvar, generator.visit_expr(func))
            mod = generator.builder_.get()
    for name in composites:
        del mod[name]
    return mod


def calls_any(func: relax.Function, names: dict[str, relax.Function]) -> bool:
    """Whether `func` refers to one of the module's functions `names`."""
    return any(gvar.name_hint in names for gvar in relax.analysis.all_global_vars(func))


@mutator
class GenerateKernels(PyExprMutator):
    """Replaces calls of `composites`, the functions that `group` made, by their name."""

    def __init__(self, mod: IRModule, composites: dict[str, relax.Function]):
        super().__init__(mod)
        self.composites = composites

    def visit_call_(self, call: Call) -> Expr:
        """A call of a composite becomes call_te of nt_matmul on (w, x), under the hint NT_matmul."""
        if not isinstance(call.op, GlobalVar) or call.op.name_hint not in self.composites:
            return super().visit_call_(call)
        composite = self.composites[call.op.name_hint]
        # BEGIN exercise 3.4 (about 4 lines): the call_te that computes what the composite computes
        w, x = (self.visit_expr(operand) for operand in operands(composite, call))
        dtype = str(composite.ret_ty.dtype)
        return self.builder_.call_te(nt_matmul, w, x, dtype, primfunc_name_hint="NT_matmul")
        # END exercise 3.4


def operands(composite: relax.Function, call: Call) -> tuple[Expr, Expr]:
    """(w, x): what a composite's permute_dims and matmul take, as arguments of `call`, a call of it.

    They are found by parameter, not by position: FuseOpsByPattern orders the parameters by first use, gives
    x @ x.T one parameter for both, and adds one for a symbolic size that no tensor's shape shows.
    """
    given = dict(zip(composite.params, call.args, strict=True))
    transpose, product = (binding.value for binding in composite.body.blocks[0].bindings)
    w, x = transpose.args[0], product.args[0]
    return given.get(w, w), given.get(x, x)


# --- before both: a transpose for each matmul -----------------------------------------------------


def own_transposes(mod: IRModule, fires: Fires) -> IRModule:
    """`mod` with a permute_dims of its own for each matmul that `fires(transpose, product)` accepts.

    FuseOpsByPattern moves a matched pair into a function of its own. If something else uses the transpose
    too, it must become a second result of that function, and a second matmul is moved without it: neither
    is the pair that `generate` expects. After this step every transpose of a pair has one user.

    A transpose that has lost its last user is gone; one that is still used stays where it was. A module in
    which no matmul is accepted is returned as it is.
    """
    changed = {}
    for gvar, func in mod.functions_items():
        if isinstance(func, relax.Function) and not is_claimed(func):
            owner = OwnTransposes(mod, func, fires)
            rewritten = owner.visit_expr(func)
            if owner.given:
                changed[gvar] = relax.analysis.remove_all_unused(rewritten)
    if changed:
        mod = mod.clone()
        mod.update(changed)
    return mod


def is_claimed(func: relax.Function) -> bool:
    """Whether an earlier pass has set `func` aside, for a library or as a kernel of its own."""
    attrs = func.attrs or {}
    return any(key in attrs for key in ("Primitive", "Composite", "Codegen"))


def may_write(call: Call) -> bool:
    """Whether `call` may write into a tensor that exists already, w for instance.

    Functions of the module, closures and packed functions count as well: nobody looks inside.
    """
    if not isinstance(call.op, tvm.ir.Op):
        return True
    return call.op.name not in LOOK_ONLY and not is_harmless(call.op)


@visitor
class ProgramOrder(PyExprVisitor):
    """Collects all calls of the function it visits, in the order in which they are written."""

    def __init__(self):
        super().__init__()
        self.calls: list[Call] = []

    def visit_call_(self, call: Call) -> None:
        super().visit_call_(call)
        self.calls.append(call)

    def may_write_between(self, first: Call, last: Call) -> bool:
        """Whether a call from `first` up to `last` may write; a call that stands twice counts widely."""
        start = next(n for n, call in enumerate(self.calls) if call.same_as(first))
        end = max(n for n, call in enumerate(self.calls) if call.same_as(last))
        return any(may_write(call) for call in self.calls[start:end])


@mutator
class OwnTransposes(PyExprMutator):
    """Rewrites one Relax function for `own_transposes`. `given` counts the transposes handed out."""

    def __init__(self, mod: IRModule, func: relax.Function, fires: Fires):
        super().__init__(mod)
        self.fires = fires
        self.order = ProgramOrder()
        self.order.visit_expr(func)
        self.values: Mapping[relax.Var, Expr] = {}  # of the innermost function: none is captured
        self.here: relax.DataflowBlock | None = None
        self.given = 0

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

    def visit_call_(self, call: Call) -> Expr:
        transpose = self.transpose_in(call)
        if transpose is None:
            return super().visit_call_(call)
        self.given += 1
        # BEGIN exercise 3.5 (about 4 lines): emit a permute_dims for this matmul alone, and use it
        x, w = self.visit_expr(call.args[0]), self.visit_expr(transpose.args[0])
        own = self.builder_.emit(relax.op.permute_dims(w, transpose.attrs.axes))
        return relax.op.matmul(x, own, call.attrs.out_dtype)
        # END exercise 3.5

    def transpose_in(self, call: Call) -> Call | None:
        """The permute_dims whose result `call`, a matmul in a dataflow block, multiplies by; else None.

        None too where it cannot be moved to stand before `call`: w is out of sight there, or may have been
        written into meanwhile.
        """
        if call.op != MATMUL or self.here is None:
            return None
        value = call.args[1]
        while isinstance(value, relax.Var):  # through aliases: lv1 = lv
            value = self.values.get(value)
        if not isinstance(value, Call) or value.op != TRANSPOSE:
            return None
        if not self.in_sight(value.args[0]) or self.order.may_write_between(value, call):
            return None
        return value if self.fires(value, call) else None

    def in_sight(self, expr: Expr) -> bool:
        """Whether `expr` may be used in this block: a DataflowVar only in the block that binds it."""
        if not isinstance(expr, relax.DataflowVar):
            return True
        return any(binding.var.same_as(expr) for binding in self.here.bindings)


# --- the pass -------------------------------------------------------------------------------------


def fuse(mod: IRModule, fires: Fires) -> IRModule:
    """`mod` with each pair that `fires` accepts replaced by a kernel; `mod` itself is not changed."""
    grouped = group(own_transposes(mod, fires), fires)
    old = {gvar.name_hint for gvar in mod.get_global_vars()}
    functions = {gvar.name_hint: func for gvar, func in grouped.functions_items()}
    composites = {name: func for name, func in functions.items() if name not in old}
    return generate(grouped, composites) if composites else mod


@tvm.transform.module_pass(opt_level=0, name="FuseTransposeMatmul")
class FuseTransposeMatmul:
    """Fuses permute_dims + matmul, in dataflow blocks, into kernels that read w as it is stored.

    Put it before LegalizeOps. It returns on every well-formed module; what it cannot fuse it leaves as it is.
    """

    def transform_module(self, mod: IRModule, _ctx: tvm.transform.PassContext) -> IRModule:
        return fuse(mod, may_fuse)


# --- break a careless check -----------------------------------------------------------------------


def careless(transpose: Call, product: Call) -> bool:
    """`may_fuse` by someone in a hurry: does the second to last dimension of w come last? The rest is not asked."""
    w, x = transpose.args[0], product.args[0]
    axes = transpose.attrs.axes
    return all(is_typed(expr.ty) for expr in (w, x, product)) and (
        axes is None or int(axes[-1]) % w.ty.ndim == w.ty.ndim - 2
    )


def deceives_careless() -> tuple[IRModule, list[np.ndarray]]:
    """A module on which `fuse(mod, careless)` gives other numbers, and arguments for its function `main`.

    The module is well-formed, is right as it stands, and `careless` must get through with it: same types, no
    error, wrong numbers.
    """
    # BEGIN exercise 3.6 (about 10 lines): a permutation that moves more than careless looks at
    x = relax.Var("x", relax.TensorType((4, 3), "float32"))
    w = relax.Var("w", relax.TensorType((3, 5, 3), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, w]):
        with builder.dataflow():
            turned = builder.emit(relax.op.permute_dims(w, [2, 0, 1]))
            out = builder.emit_output(relax.op.matmul(x, turned))
        builder.emit_func_output(out)
    random = np.random.default_rng(0)
    return builder.get(), [random.standard_normal(s).astype("float32") for s in ((4, 3), (3, 5, 3))]
    # END exercise 3.6


# --- what it saves --------------------------------------------------------------------------------


def bytes_saved(weights: Sequence[tuple[int, int]], itemsize: int) -> int:
    """How many bytes fewer one run moves if each of `weights`, of shape (n, k), is multiplied as it is stored.

    A kernel moves what it reads and what it writes, once each. itemsize: bytes of one element.
    """
    # BEGIN exercise 3.7 (1 line): what a transpose moves; what the matmul moves with and without it
    return sum(2 * n * k for n, k in weights) * itemsize
    # END exercise 3.7


# --- the kernel, fast -----------------------------------------------------------------------------

LOADED = 16  # vectors of x that prefill loads in the steps that it writes out one after another
UNROLLED = 8  # such steps at most


def schedule_decode(func: tirx.PrimFunc, target: Target) -> tirx.PrimFunc:
    """An NT_matmul scheduled for a few rows of x: what counts is that w streams through once, as it is stored.

    func: (w, x, out) with w of shape (n, k), all constant; x of any rank, with as many rows as `has_few_rows`
    says. Along k, where w is contiguous, each output gets one partial sum for each of the `lanes` of a vector
    register; `members` rows of w are read together, each once for all rows of x; groups of them run in
    parallel. Raises ValueError for another w or x.
    """
    _, k = weight_shape(func)
    lanes, members = largest_divisor(k, lanes_of(func, target)), side_by_side(func, target)
    sch = Schedule(func)
    product = sch.get_sblock("NT_matmul")
    # BEGIN exercise 3.8 (about 14 lines): a partial sum a lane, rows of w side by side, groups in parallel
    *rows, j, k_loop = sch.get_loops(product)
    _, lane = sch.split(k_loop, [None, lanes])
    partial = sch.rfactor(lane, factor_axis=len(rows) + 1)
    *rows, j, lane = sch.get_loops(product)  # out[…, j] = the sum of partial[…, j, lane]
    group, member = sch.split(j, [None, members])
    sch.reorder(group, *rows, lane, member)
    sch.compute_at(partial, group, preserve_unit_loops=True)
    _, partial_lane, *rows, partial_member, chunk = sch.get_loops(partial)
    sch.reorder(chunk, *rows, partial_member, partial_lane)
    for loop in (*rows, partial_member):
        sch.unroll(loop)
    sch.vectorize(partial_lane)
    sch.parallel(group)
    sch.decompose_reduction(product, lane)
    sch.decompose_reduction(partial, chunk)
    # END exercise 3.8
    return sch.mod["main"]


def schedule_prefill(func: tirx.PrimFunc, target: Target) -> tirx.PrimFunc:
    """An NT_matmul scheduled for many rows of x: what counts is that sums stay in registers.

    func: (w, x, out) with w of shape (n, k), both constant; x of two dimensions or more, its rows constant or
    symbolic. x is small, so it is packed: a vector register takes one column of `lanes` rows. w is large and
    stays as it is: each element of it is multiplied with the same column of all rows of a tile. Rows are
    padded to whole tiles. Raises ValueError as `matmul_tile` does.
    """
    tile = matmul_tile(func, target)
    sch = Schedule(func)
    product = sch.get_sblock("NT_matmul")
    packed, result = pad_rows(sch, product, tile)
    pack_rows(sch, product, tile)
    # BEGIN exercise 3.9 (about 14 lines): tile, order, unroll and vectorise the product; blocks of n in parallel
    *around, j, k = sch.get_loops(product)
    row = around.pop(tile.row_axis)
    row_tile, vector, lane = sch.split(row, [None, tile.vectors, tile.lanes])
    block_n, columns, column = sch.split(j, [None, tile.block_n // tile.columns, tile.columns])
    block_k, steps, step = sch.split(k, [None, *split_steps(tile)])
    sch.reorder(block_n, *around, block_k, row_tile, columns, steps, step, column, vector, lane)
    sch.reverse_compute_at(result, block_n)
    sch.vectorize(lane)
    for loop in (vector, column, step):
        sch.unroll(loop)
    sch.parallel(block_n)
    sch.decompose_reduction(product, block_k)
    # END exercise 3.9
    vectorize_copies(sch, packed, result, tile)
    return sch.mod["main"]


def pad_rows(sch: Schedule, product: SBlockRV, tile: Tile) -> tuple[SBlockRV, SBlockRV]:
    """Make the rows of the product whole tiles; returns the blocks that copy x in and the result out.

    pad_einsum makes these copies where the rows do not divide; elsewhere they are made here, because a packed
    x and a result in tiles need them too.
    """
    padding = [1] * len(sch.get_loops(product))
    padding[tile.row_axis] = tile.rows
    sch.pad_einsum(product, padding)
    (packed,) = sch.get_producers(product) or [sch.cache_read(product, 0, "global")]
    (result,) = sch.get_consumers(product) or [sch.cache_write(product, 0, "global")]
    return packed, result


def pack_rows(sch: Schedule, product: SBlockRV, tile: Tile) -> None:
    """Lay out the copies of x and of the result so that the rows of a tile are the innermost dimension."""

    def of_x(*index: tirx.Var) -> list[Expr]:
        *around, k = index
        row = around.pop(tile.row_axis)
        return [*around, row // tile.rows, k // tile.block_k, k % tile.block_k, row % tile.rows]

    def of_result(*index: tirx.Var) -> list[Expr]:
        *around, j = index
        row = around.pop(tile.row_axis)
        return [j // tile.block_n, *around, row // tile.rows, j % tile.block_n, row % tile.rows]

    sch.transform_layout(product, ("read", 0), of_x)
    sch.transform_layout(product, ("write", 0), of_result)


def split_steps(tile: Tile) -> tuple[int, int]:
    """(steps, how many of them are written out one after another), which together make block_k."""
    unrolled = largest_divisor(tile.block_k, min(UNROLLED, LOADED // tile.vectors))
    return tile.block_k // unrolled, unrolled


def vectorize_copies(sch: Schedule, packed: SBlockRV, result: SBlockRV, tile: Tile) -> None:
    """Vectorise the copies of x, along its rows, and of the result, along its columns."""
    *around, k = sch.get_loops(packed)
    vectors, lane = sch.split(around[tile.row_axis], [None, tile.lanes])
    sch.reorder(vectors, k, lane)
    sch.vectorize(lane)
    sch.parallel(vectors)
    width = largest_divisor(tile.block_n, tile.lanes)
    if width > 1:
        _, lane = sch.split(sch.get_loops(result)[-1], [None, width])
        sch.vectorize(lane)


def schedule_kernels(mod: IRModule, target: Target) -> IRModule:
    """`mod` with every NT_matmul that has a schedule here scheduled: for few rows as decode, else as prefill."""
    mod = mod.clone()
    for gvar, func in mod.functions_items():
        if isinstance(func, tirx.PrimFunc) and has_schedule(func):
            mod[gvar] = schedule(func, target).with_attr("tirx.is_scheduled", True)
    return mod


def schedule(func: tirx.PrimFunc, target: Target) -> tirx.PrimFunc:
    """The NT_matmul `func` with the schedule for its rows. Raises ValueError as the schedules do."""
    return (schedule_decode if has_few_rows(func, target) else schedule_prefill)(func, target)


def has_schedule(func: tirx.PrimFunc) -> bool:
    """Whether `func` is an unscheduled NT_matmul, by what it reads, whose weight is a matrix of constant size."""
    return "tirx.is_scheduled" not in (func.attrs or {}) and is_nt_matmul(func)
