"""Chapter 4: FuseAddRMSNorm. `total = add(x1, x2); norm = rms_norm(total, weight)` becomes one kernel with two results.

The file follows the lesson: how a pair is found (match); a kernel with one block of threads per row; which kernel
serves a pair (dispatch); the pass, which puts the call where the sum is first read (rewrite); and the bytes that it
saves (measure). `given.py` in the same folder has the wide kernel and the search for that place.
"""

import math
from collections.abc import Mapping

import tvm
from tvm import relax, tirx
from tvm.relax.expr_functor import mutator
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T
from tvm.target import Target

from chapters.ch04_add_rms_norm.given import (
    AddNorm,
    SiteRewriter,
    fit_threads,
    is_call,
    kernel_kind,
    kernel_name,
    plan_threads,
    same_tensor_type,
    threads_per_block,
    wide_kernel,
)
from chapters.kit.cpu.add_norm_on_cpu import cpu_kernel
from chapters.kit.gpu.limits import ITEM_BYTES
from chapters.kit.ir.row_index import row_dimensions, row_index, unit_dimensions
from chapters.runner.earlier import earlier

# --- match ----------------------------------------------------------------------------------------


def match_add_norm(
    norm: relax.Var, value: relax.Expr, bound: Mapping[relax.Var, relax.Expr]
) -> AddNorm | None:
    """Return the pair that ends in the binding `norm = value`, or None if no kernel can serve it.

    bound: the value of each earlier variable of the same scope. A parameter of the function is not in it.
    It is a pair if all of this holds:
      * value is `rms_norm(total, weight, axes=[the last axis])`, and total is bound to `add(x1, x2)`;
      * x1, x2 and total have the same shape, so nothing is broadcast, and the same dtype, a key of ITEM_BYTES;
      * the hidden size is a number above 0; leading dimensions: any count, symbolic or numbers, but none is 0;
      * weight has the shape (hidden size,) and the same dtype, and is not total itself.
    """
    # BEGIN exercise 4.1 (about 18 lines): look at the norm, the add beneath it, and the types of all
    if not is_call(value, "relax.nn.rms_norm"):
        return None
    total, weight = value.args
    add = bound.get(total) if isinstance(total, relax.Var) else None
    if not is_call(add, "relax.add") or weight.same_as(total):
        return None
    x1, x2 = add.args
    if not same_tensor_type(x1.ty, x2.ty) or not same_tensor_type(x1.ty, total.ty):
        return None
    *leading, hidden_size = total.ty.shape.values or [0]
    known = isinstance(hidden_size, tirx.IntImm) and int(hidden_size) > 0
    if not known or any(isinstance(n, tirx.IntImm) and int(n) == 0 for n in leading):
        return None
    one_row = relax.TensorType([hidden_size], total.ty.dtype)
    axes = [int(axis) % total.ty.ndim for axis in value.attrs.axes]
    if axes != [total.ty.ndim - 1] or not same_tensor_type(weight.ty, one_row):
        return None
    if str(total.ty.dtype) not in ITEM_BYTES:
        return None
    return AddNorm(x1, x2, weight, total, norm, float(value.attrs.epsilon))
    # END exercise 4.1


# --- the kernel -----------------------------------------------------------------------------------


def elements_per_thread(hidden_size: int, threads: int) -> int:
    """Return how many elements of a row a thread holds at most. `threads` need not divide hidden_size."""
    # BEGIN exercise 4.2 (1 line): round up
    return math.ceil(hidden_size / threads)
    # END exercise 4.2


def row_kernel(
    dims: list[tvm.ir.Expr], hidden_size: int, dtype: str, epsilon: float, threads: int
) -> tirx.PrimFunc:
    """Return a kernel with one block of `threads` threads per row. Thread t has elements t, t + threads, … of a row.

    Parameters of the kernel: x1 and x2 (*dims, hidden_size), weight (hidden_size,), then the results norm and total,
    shaped like x1. All have `dtype`. norm and total may contain anything before. `threads` is a multiple of 32, and
    need not divide hidden_size. total is x1 + x2, rounded to dtype. norm is the RMSNorm of this *rounded* sum:
    squares, mean, root and the product with the weight are computed in float32, and rounded to dtype once, at the
    end.
    """
    per_thread = elements_per_thread(hidden_size, threads)
    rows = math.prod(dims, start=tirx.IntImm("int64", 1))
    shape, at = [*dims, hidden_size], lambda row: row_index(row, dims)
    mean_factor, eps = T.float32(1.0 / hidden_size), T.float32(epsilon)

    @T.prim_func(private=True, s_tir=True)
    def add_norm(
        p_x1: T.handle, p_x2: T.handle, p_weight: T.handle, p_norm: T.handle, p_total: T.handle
    ):
        T.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True})
        x1 = T.match_buffer(p_x1, shape, dtype)
        x2 = T.match_buffer(p_x2, shape, dtype)
        weight = T.match_buffer(p_weight, (hidden_size,), dtype)
        norm = T.match_buffer(p_norm, shape, dtype)
        total = T.match_buffer(p_total, shape, dtype)
        # BEGIN exercise 4.2 (about 45 lines): registers, then the loops of a block, in which T.where guards the tail
        held = T.sblock_alloc_buffer((per_thread,), dtype, scope="local")
        partial = T.sblock_alloc_buffer((threads,), "float32", scope="local")
        # in registers: each thread has its own copy of the sum, and needs no barrier to read it
        squares = T.sblock_alloc_buffer((1,), "float32", scope="local")
        for block in T.thread_binding(rows, thread="blockIdx.x"):
            for thread in T.thread_binding(threads, thread="threadIdx.x"):
                for i in T.unroll(per_thread):
                    with T.sblock("add"):
                        row = T.axis.spatial(rows, block)
                        h = T.axis.spatial(hidden_size, i * threads + thread)
                        T.where(i * threads + thread < hidden_size)
                        held[h // threads] = x1[(*at(row), h)] + x2[(*at(row), h)]
                for i in T.unroll(per_thread):
                    with T.sblock("write_total"):
                        row = T.axis.spatial(rows, block)
                        h = T.axis.spatial(hidden_size, i * threads + thread)
                        T.where(i * threads + thread < hidden_size)
                        total[(*at(row), h)] = held[h // threads]
                with T.sblock("start_at_zero"):
                    t = T.axis.spatial(threads, thread)
                    partial[t] = T.float32(0)
                for i in T.unroll(per_thread):
                    with T.sblock("sum_own_squares"):
                        t = T.axis.spatial(threads, thread)
                        k = T.axis.reduce(per_thread, i)
                        T.where(i * threads + thread < hidden_size)
                        partial[t] += T.float32(held[k]) * T.float32(held[k])
            for thread in T.thread_binding(threads, thread="threadIdx.x"):
                with T.sblock("sum_over_threads"):
                    t = T.axis.reduce(threads, thread)
                    with T.init():
                        squares[0] = T.float32(0)
                    squares[0] += partial[t]
            for thread in T.thread_binding(threads, thread="threadIdx.x"):
                for i in T.unroll(per_thread):
                    with T.sblock("normalise"):
                        row = T.axis.spatial(rows, block)
                        h = T.axis.spatial(hidden_size, i * threads + thread)
                        T.where(i * threads + thread < hidden_size)
                        norm[(*at(row), h)] = T.cast(
                            T.rsqrt(squares[0] * mean_factor + eps)
                            * T.float32(held[h // threads])
                            * T.float32(weight[h]),
                            dtype,
                        )
        # END exercise 4.2

    return add_norm


# --- dispatch -------------------------------------------------------------------------------------


def two_norms() -> tvm.IRModule:
    """Return a module for which `FuseAsUpstream` of as_upstream.py gives wrong numbers without any error.

    The module after that pass must be well-formed, compile and run; only its numbers are wrong. The module has one
    Relax function, main, on tensors of float32, float16 or bfloat16.
    """
    # BEGIN exercise 4.3 (about 20 lines): how can two norms differ so that only the numbers show it?

    @I.ir_module
    class TwoNorms:
        @R.function
        def main(
            x1: R.Tensor(("n", 1, 64), "float32"),
            x2: R.Tensor(("n", 1, 64), "float32"),
            weight: R.Tensor((64,), "float32"),
        ):
            with R.dataflow():
                first = R.nn.rms_norm(R.add(x1, x2), weight, axes=[-1], epsilon=1e-5)
                second = R.nn.rms_norm(R.add(first, x2), weight, axes=[-1], epsilon=0.5)
                R.output(second)
            return second

    return TwoNorms
    # END exercise 4.3


def kernel_key(pair: AddNorm) -> tuple:
    """Return everything that is compiled into the kernel of `pair`. Pairs with equal keys share one kernel.

    Two keys are equal exactly if one kernel serves both pairs. A kernel reads its number of rows when it is called.
    """
    # BEGIN exercise 4.4 (1 line): every fact that is compiled into a kernel
    return unit_dimensions(pair.shape), pair.hidden_size, pair.dtype, pair.epsilon
    # END exercise 4.4


def build_kernel(pair: AddNorm, target: Target) -> tirx.PrimFunc | None:
    """Return the kernel for `pair` on `target`, or None if there is none for this target."""
    facts = row_dimensions(pair.shape), pair.hidden_size, pair.dtype, pair.epsilon
    kind, limit = kernel_kind(pair, target), threads_per_block(target)
    if kind == "cpu":
        return cpu_kernel(*facts)
    if kind == "wide":
        return wide_kernel(*facts, plan_threads(pair.hidden_size, pair.dtype, limit))
    if kind == "row":
        return row_kernel(*facts, fit_threads(pair.hidden_size, limit))
    return None


# --- the pass -------------------------------------------------------------------------------------


@mutator
class Rewriter(SiteRewriter):
    """Rewrites the functions of a module. SiteRewriter visits the bindings; this class emits what replaces them."""

    def __init__(self, mod: tvm.IRModule, target: Target):
        super().__init__(mod, target, match_add_norm)
        # by key; None if the target has no kernel
        self.kernels: dict[tuple, tvm.ir.GlobalVar | None] = {}

    def kernel_of(self, pair: AddNorm) -> tvm.ir.GlobalVar | None:
        """Return the kernel that serves `pair`, or None. The first use of a kernel adds it to the module."""
        key = kernel_key(pair)
        if key not in self.kernels:
            kernel = build_kernel(pair, self.target)
            self.kernels[key] = kernel and self.builder_.add_func(kernel, kernel_name(pair.shape))
        return self.kernels[key]

    def put_kernels(self, before: relax.Var) -> None:
        """For every site whose `before` is this variable, emit the kernel call and bind the variable of the sum.

        The norm is bound later: store its value in self.results, under the norm's variable. The sum keeps its variable,
        so every later reader of the sum reads the kernel's second result.
        """
        # BEGIN exercise 4.5 (about 12 lines): call_tir, its two results, and which variable each is bound to
        for site in self.sites:
            if not site.before.same_as(before):
                continue
            pair = site.pair
            arguments = [self.visit_expr(arg) for arg in (pair.x1, pair.x2, pair.weight)]
            kernel = self.kernel_of(pair)
            call = relax.call_tir(kernel, arguments, out_ty=[pair.total.ty] * 2)
            leaves_block = self.builder_.current_block_is_dataflow() and not site.same_block
            emit = self.builder_.emit_output if leaves_block else self.builder_.emit
            both = emit(call, "add_norm")
            self.bind(pair.total, relax.TupleGetItem(both, 1))
            self.results[pair.norm] = relax.TupleGetItem(both, 0)
        # END exercise 4.5


@tvm.transform.module_pass(opt_level=0, name="FuseAddRMSNorm")
class FuseAddRMSNorm:
    """Replace every `rms_norm(add(x1, x2), weight)` that one kernel can serve by a call of that kernel.

    target: what the module will be compiled for. The pass never raises on a well-formed module. It leaves a pair alone
    if it has no kernel for it.
    """

    def __init__(self, target: Target):
        self.target = Target(target)

    def transform_module(
        self, mod: tvm.IRModule, _context: tvm.transform.PassContext
    ) -> tvm.IRModule:
        # a pair whose weight is the sum of another pair is fused one round after that pair
        while (fused := Rewriter(mod, self.target).transform()) is not mod:
            mod = fused
        return mod


# --- break it, and measure it ---------------------------------------------------------------------


def breaks_the_dispatch() -> tvm.IRModule:
    """Return a module that FuseAsUpstream turns into one that is ill-formed, or does not compile, or does not run.

    Before that pass it compiles and runs. The fault must be the choice between prefill and decode. The module has one
    Relax function, main, on tensors of rank 3.
    """
    # BEGIN exercise 4.6 (about 15 lines): which shape is neither a prefill nor a decode?

    @I.ir_module
    class SeveralSequences:
        @R.function
        def main(
            x1: R.Tensor((4, 3, 64), "float32"),
            x2: R.Tensor((4, 3, 64), "float32"),
            weight: R.Tensor((64,), "float32"),
        ):
            with R.dataflow():
                norm = R.nn.rms_norm(R.add(x1, x2), weight, axes=[-1], epsilon=1e-5)
                R.output(norm)
            return norm

    return SeveralSequences
    # END exercise 4.6


def bytes_moved(mod: tvm.IRModule, target: Target, sizes: dict[str, int]) -> tuple[int, int]:
    """Return the bytes that `main` of `mod` reads and writes: (as it is, after FuseAddRMSNorm for `target`).

    sizes: the value of each symbolic dimension by name, as for chapter 1's `binding_bytes`.
    """
    # BEGIN exercise 4.7 (about 5 lines): add up the rows of chapter 1's binding_bytes, for both modules
    count = earlier(1).binding_bytes

    def total(module: tvm.IRModule) -> int:
        return sum(row.read + row.written for row in count(module["main"], sizes))

    return total(mod), total(FuseAddRMSNorm(target)(mod))
    # END exercise 4.7
