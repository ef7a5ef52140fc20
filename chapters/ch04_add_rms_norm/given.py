"""What chapter 4 provides around your code: the wide kernel, the limits of a target, and where a kernel call may go.

In the order of the lesson: pairs and their types (match); threads and the wide kernel; which kernel a target gets
(dispatch); the sites of a function, and the mutator that visits them (rewrite).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import tvm
from tvm import relax, tirx
from tvm.ir import Op
from tvm.relax.expr_functor import PyExprMutator
from tvm.script import tirx as T
from tvm.target import Target

from chapters.kit.cpu.add_norm_on_cpu import Rows
from chapters.kit.gpu.limits import ITEM_BYTES, VECTOR_BYTES, WARP
from chapters.kit.ir.parse_alone import kernel_for_rows
from chapters.kit.ir.relax_effects import bindings_of, may_write, scopes
from chapters.kit.ir.row_index import unit_dimensions

MAX_THREADS = 1024  # per block, at most, even if the target allows more
FLOAT32_MAX = (2 - 2**-23) * 2.0**127


# --- match ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class AddNorm:
    """A pair `total = add(x1, x2)`, `norm = rms_norm(total, weight)` that one kernel can serve.

    total and norm are the variables of the two bindings. x1, x2, weight and epsilon are what the two calls are given.
    """

    x1: relax.Expr
    x2: relax.Expr
    weight: relax.Expr
    total: relax.Var
    norm: relax.Var
    epsilon: float

    @property
    def shape(self) -> list[tvm.ir.Expr]:
        """The shape of total: the leading dimensions, numbers or symbolic, then the hidden size, a number."""
        return list(self.total.ty.shape.values)

    @property
    def hidden_size(self) -> int:
        return int(self.shape[-1])

    @property
    def dtype(self) -> str:
        return str(self.total.ty.dtype)


Bound = Mapping[relax.Var, relax.Expr]  # the value of each earlier variable
Match = Callable[[relax.Var, relax.Expr, Bound], AddNorm | None]  # the type of match_add_norm


def is_call(value: relax.Expr | None, op: str) -> bool:
    """Whether `value` is a call of the Relax operator called `op`, such as "relax.add"."""
    return isinstance(value, relax.Call) and value.op == Op.get(op)


def same_tensor_type(a: tvm.ir.Type, b: tvm.ir.Type) -> bool:
    """Whether both are tensors with the same dtype and provably the same shape. False if either shape is unknown."""
    for ty in (a, b):
        if not isinstance(ty, relax.TensorType) or not isinstance(ty.shape, relax.ShapeExpr):
            return False
    if str(a.dtype) != str(b.dtype) or a.ndim != b.ndim:
        return False
    prove = tvm.sym.Analyzer().can_prove_equal
    return all(prove(m, n) for m, n in zip(a.shape.values, b.shape.values, strict=True))


# --- the wide kernel ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """How a wide kernel divides a row: `threads` per row, `vector` elements per load, `rows` rows per block."""

    threads: int
    vector: int
    rows: int


def fit_threads(items: int, limit: int) -> int:
    """Return a number of threads, at most `limit`, that share `items` evenly or nearly so. It is a multiple of 32.

    Returns the largest whole number of warps above half the limit that divides items. If there is none, returns as many
    whole warps as the items fill, at most `limit`; then some threads have less to do than others.
    """
    limit -= limit % WARP
    for threads in range(limit, limit // 2, -WARP):
        if items % threads == 0:
            return threads
    return min(limit, math.ceil(items / WARP) * WARP)


def plan_threads(hidden_size: int, dtype: str, limit: int) -> Plan:
    """Return the plan of a wide kernel for rows of `hidden_size` elements. limit: the most threads a block may have.

    vector: 16 bytes of elements, or 1 if that does not divide hidden_size, since the second row would start in the
    middle of a vector. threads: whole warps, chosen by fit_threads. Each thread holds one vector if limit allows that,
    and otherwise about as few as it allows: with more threads, more loads are in flight. rows: as many as fit into a
    block of 128 threads, or of limit if that is less; at least 1.
    """
    vector = VECTOR_BYTES // ITEM_BYTES[dtype]
    if hidden_size % vector:
        vector = 1
    threads = fit_threads(hidden_size // vector, limit)
    return Plan(threads, vector, rows=max(1, min(limit, 128) // threads))


@dataclass(frozen=True)
class _Wide(Rows):
    """What is compiled into a wide kernel. A chunk is one vector of a row. Thread t has chunks t, t + threads, …"""

    plan: Plan

    @property
    def chunks(self) -> int:
        """Chunks per row."""
        return self.hidden_size // self.plan.vector

    @property
    def per_thread(self) -> int:
        """The most chunks that a thread holds."""
        return math.ceil(self.chunks / self.plan.threads)

    def numbers(self, block, line, i, thread) -> tuple[tvm.ir.Expr, tvm.ir.Expr]:
        """Return the number of the row that a thread works on, and the number of the i-th chunk that it holds."""
        return block * self.plan.rows + line, i * self.plan.threads + thread

    def place(self, row: tvm.ir.Expr, chunk: tvm.ir.Expr, element: tvm.ir.Expr) -> tuple:
        """Return the indices of an element of a chunk of the row numbered `row`."""
        return self.at(row, chunk * self.plan.vector + element)

    def exists(self, row: tvm.ir.Expr, chunk: tvm.ir.Expr) -> tvm.ir.Expr:
        """Whether the kernel's arguments have such a row and chunk."""
        return tirx.And(row < self.count, chunk < self.chunks)


@kernel_for_rows
def wide_kernel(
    dims: list[tvm.ir.Expr], hidden_size: int, dtype: str, epsilon: float, plan: Plan
) -> tirx.PrimFunc:
    """Return a kernel like row_kernel, with `plan.vector` elements per load and store, and `plan.rows` rows per block.

    It loads x1 and x2 before the first store, and weight before the sum over the threads. So all loads of a thread are
    in flight before it has to wait. plan.vector must divide hidden_size.
    """
    wide = _Wide(dims, hidden_size, dtype, epsilon, plan)
    threads, vector, block_rows = plan.threads, plan.vector, plan.rows
    shape, held_shape = [*dims, hidden_size], (wide.per_thread, vector)
    blocks = tirx.ceildiv(wide.count, block_rows)

    @T.prim_func(private=True, s_tir=True)
    def add_norm(
        x1: T.Buffer(shape, dtype),
        x2: T.Buffer(shape, dtype),
        weight: T.Buffer((hidden_size,), dtype),
        norm: T.Buffer(shape, dtype),
        total: T.Buffer(shape, dtype),
    ):
        T.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True})
        held = T.sblock_alloc_buffer(held_shape, dtype, scope="local")
        scale = T.sblock_alloc_buffer(held_shape, dtype, scope="local")
        partial = T.sblock_alloc_buffer((block_rows, threads), "float32", scope="local")
        # In shared memory, with several rows per block, TVM would leave out the barrier before the sum is read.
        squares = T.sblock_alloc_buffer((block_rows,), "float32", scope="local")
        for block in T.thread_binding(blocks, thread="blockIdx.x"):
            for line in T.thread_binding(block_rows, thread="threadIdx.y"):
                for thread in T.thread_binding(threads, thread="threadIdx.x"):
                    _add(wide, block, line, thread, x1, x2, held)
                    _write_total(wide, block, line, thread, held, total)
                    _load_weight(wide, thread, weight, scale)
                    _sum_own_squares(wide, line, thread, held, partial)
                for thread in T.thread_binding(threads, thread="threadIdx.x"):
                    with T.sblock("sum_over_threads"):
                        y, t = T.axis.remap("SR", [line, thread])
                        with T.init():
                            squares[y] = T.float32(0)
                        squares[y] += partial[y, t]
                for thread in T.thread_binding(threads, thread="threadIdx.x"):
                    _normalise(wide, line, thread, squares, held, scale)
                    _write_norm(wide, block, line, thread, held, norm)

    return add_norm


@T.inline
def _add(wide, block, line, thread, x1, x2, held):
    """held = x1 + x2."""
    for i in T.unroll(wide.per_thread):
        for v in T.vectorized(wide.plan.vector):
            with T.sblock("add"):
                here = T.meta_var(wide.numbers(block, line, i, thread))
                row = T.axis.spatial(wide.count, here[0])
                c = T.axis.spatial(wide.chunks, here[1])
                e = T.axis.spatial(wide.plan.vector, v)
                T.where(wide.exists(*here))
                at = T.meta_var(wide.place(row, c, e))
                held[c // wide.plan.threads, e] = x1[at] + x2[at]


def _writer(name: str) -> Callable:
    """Return a T.inline function that stores target = source in the sblock `name`.

    Each name has its own function, because TVM numbers the sblocks that one T.inline function makes.
    """

    @T.inline
    def write(wide, block, line, thread, source, target):
        for i in T.unroll(wide.per_thread):
            for v in T.vectorized(wide.plan.vector):
                with T.sblock(name):
                    here = T.meta_var(wide.numbers(block, line, i, thread))
                    row = T.axis.spatial(wide.count, here[0])
                    c = T.axis.spatial(wide.chunks, here[1])
                    e = T.axis.spatial(wide.plan.vector, v)
                    T.where(wide.exists(*here))
                    target[wide.place(row, c, e)] = source[c // wide.plan.threads, e]

    return write


_write_total, _write_norm = _writer("write_total"), _writer("write_norm")


@T.inline
def _load_weight(wide, thread, weight, scale):
    """scale = weight, for the chunks of this thread."""
    for i in T.unroll(wide.per_thread):
        for v in T.vectorized(wide.plan.vector):
            with T.sblock("load_weight"):
                c = T.axis.spatial(wide.chunks, i * wide.plan.threads + thread)
                e = T.axis.spatial(wide.plan.vector, v)
                T.where(i * wide.plan.threads + thread < wide.chunks)
                scale[c // wide.plan.threads, e] = weight[c * wide.plan.vector + e]


@T.inline
def _sum_own_squares(wide, line, thread, held, partial):
    """partial = the sum of held ** 2 over what this thread holds."""
    with T.sblock("start_at_zero"):
        y, t = T.axis.remap("SS", [line, thread])
        partial[y, t] = T.float32(0)
    for i in T.unroll(wide.per_thread):
        for v in T.unroll(wide.plan.vector):
            with T.sblock("sum_own_squares"):
                y, t, k, e = T.axis.remap("SSRR", [line, thread, i, v])
                T.where(i * wide.plan.threads + thread < wide.chunks)
                partial[y, t] += T.float32(held[k, e]) * T.float32(held[k, e])


@T.inline
def _normalise(wide, line, thread, squares, held, scale):
    """held = held / sqrt(mean of the squares + epsilon) * scale.

    In place: TVM would let a result in registers of its own share the place of `squares`, which it then puts in shared
    memory, where all threads of a row would write to the same element.
    """
    for i in T.unroll(wide.per_thread):
        for v in T.unroll(wide.plan.vector):
            with T.sblock("normalise"):
                y, k, e = T.axis.remap("SSS", [line, i, v])
                T.where(i * wide.plan.threads + thread < wide.chunks)
                mean = T.meta_var(squares[y] * T.float32(1.0 / wide.hidden_size))
                inverse = T.meta_var(T.rsqrt(mean + T.float32(wide.epsilon)))
                norm = T.meta_var(inverse * T.float32(held[k, e]) * T.float32(scale[k, e]))
                held[k, e] = T.cast(norm, wide.dtype)


# --- dispatch -------------------------------------------------------------------------------------


def threads_per_block(target: Target) -> int:
    """Return how many threads a block may have on `target`, at most MAX_THREADS; 0 if the target has no threads."""
    limits = [target.attrs.get(key) for key in ("max_num_threads", "max_threads_per_block")]
    return min(MAX_THREADS, max((int(limit) for limit in limits if limit is not None), default=0))


def kernel_kind(pair: AddNorm, target: Target) -> str:
    """Return which kernel serves `pair` on `target`: "cpu", "wide", "row", or "" if none does.

    CUDA gets the wide kernel, other targets with threads get row_kernel, and LLVM gets the schedule for a CPU. Long
    rows are an exception. If a thread holds more than 64 bytes of its row, the wide kernel's copies of weight and
    result no longer fit into registers, and CUDA gets row_kernel too. Above 512 bytes there is no kernel: most of the
    row would be spilled to memory, which is the traffic that fusing should save.
    """
    limit = threads_per_block(target)
    if math.isfinite(pair.epsilon) and abs(pair.epsilon) > FLOAT32_MAX:
        return ""  # float32 has inf and nan, but not this number
    if target.kind.name == "llvm":
        return "cpu"
    if limit < WARP:
        return ""
    held_bytes = pair.hidden_size * ITEM_BYTES[pair.dtype] / (limit - limit % WARP)
    if held_bytes > 512:
        return ""
    return "wide" if target.kind.name == "cuda" and held_bytes <= 64 else "row"


def kernel_name(shape: list[tvm.ir.Expr]) -> str:
    """Return the kernel's name: …_prefill for (1, positions, hidden), …_decode for (rows, 1, hidden), else …_rows.

    All of them have one block per row, counted over all leading dimensions.
    """
    names = {(True, False): "fuse_add_norm_prefill", (False, True): "fuse_add_norm_decode"}
    return names.get(unit_dimensions(shape), "fuse_add_norm_rows")


# --- rewrite --------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Site:
    """Where the kernel of a pair goes: before the binding of `before`, which is the first reader of the sum.

    same_block: whether the norm is bound in the same binding block as `before`. If not, the kernel's results must be
    visible outside the block of `before`.
    """

    pair: AddNorm
    before: relax.Var
    same_block: bool


def find_sites(func: relax.Function, match: Match) -> list[Site]:
    """Return the pairs of `func` that can be fused, each with the place of its kernel.

    The kernel goes before the first binding that reads the sum: the norm or an earlier one. So every reader finds the
    sum, and the add is no longer needed. A pair is not fused if one of these holds:
      * weight is not bound yet at that place, or is itself the sum of another pair;
      * a binding between the add and the norm may write to memory that one of them reads.
    """
    sites = []
    for scope in scopes(func):
        bindings = bindings_of(scope)
        place = {binding.var: i for i, binding in enumerate(bindings)}
        block_of = {b.var: block for block in scope.blocks for b in block.bindings}
        pairs = list(_pairs_of(bindings, match))
        moving = {pair.total for _, pair in pairs}
        for last, pair in pairs:
            between = range(place[pair.total] + 1, last)
            # free_vars also sees what is used inside a branch or a nested function
            used = ((i, relax.analysis.free_vars(bindings[i].value)) for i in between)
            first = next((i for i, variables in used if pair.total in variables), last)
            known = place.get(pair.weight, -1) if isinstance(pair.weight, relax.Var) else -1
            if known >= first or pair.weight in moving:
                continue
            if any(may_write(bindings[i].value) for i in between):
                continue
            before = bindings[first].var
            sites.append(Site(pair, before, block_of[before].same_as(block_of[pair.norm])))
    return sites


def _pairs_of(bindings: list[relax.Binding], match: Match) -> Iterator[tuple[int, AddNorm]]:
    """Yield the pairs among the bindings of one scope, each with the position of its norm. A sum is in one pair."""
    bound: dict[relax.Var, relax.Expr] = {}
    taken: set[relax.Var] = set()
    for position, binding in enumerate(bindings):
        if not isinstance(binding, relax.VarBinding):
            continue
        pair = match(binding.var, binding.value, bound)
        if pair and pair.total not in taken:
            taken.add(pair.total)
            yield position, pair
        bound[binding.var] = binding.value


class SiteRewriter(PyExprMutator):
    """Visits the bindings of each function that has sites. A subclass defines kernel_of(pair) and put_kernels(before).

    sites: the sites of the current function. results: the new value of each norm, by the norm's variable.
    """

    def __init__(self, mod: tvm.IRModule, target: Target, match: Match):
        super().__init__(mod)
        self.mod, self.target, self.match = mod, target, match
        self.sites: list[Site] = []
        self.results: dict[relax.Var, relax.Expr] = {}

    def transform(self) -> tvm.IRModule:
        """Return the module with a kernel call for each pair that can be fused, or self.mod itself if there is none."""
        changed = False
        for gvar, func in self.mod.functions_items():
            if isinstance(func, relax.Function):
                self.sites = [s for s in find_sites(func, self.match) if self._can_serve(s.pair)]
                self.results = {}
                if self.sites:
                    self.builder_.update_func(gvar, self.visit_expr(func))
                    changed = True
        return self.builder_.get() if changed else self.mod

    def _can_serve(self, pair: AddNorm) -> bool:
        """Whether there is a kernel for `pair`, and the tensors of the pair are on the target's device."""
        device = pair.total.ty.vdevice
        there = device is None or device.target.kind.name == self.target.kind.name
        return there and self.kernel_of(pair) is not None

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        """Put the kernels that belong before `binding`. Then drop a fused add, bind a norm to its result, or copy."""
        self.put_kernels(binding.var)
        if any(binding.var.same_as(site.pair.total) for site in self.sites):
            return
        value = self.results.get(binding.var)
        if value is None:
            super().visit_var_binding_(binding)
        else:
            self.bind(binding.var, value)

    def visit_match_cast_(self, binding: relax.MatchCast) -> None:
        """Put the kernels that belong before `binding`. A MatchCast is never part of a pair, but it may read a sum."""
        self.put_kernels(binding.var)
        super().visit_match_cast_(binding)

    def bind(self, var: relax.Var, value: relax.Expr) -> None:
        """Emit `var = value` for a variable that exists already."""
        self.builder_.emit_normalized(relax.VarBinding(var, self.builder_.normalize(value)))
