"""Chapter 10: models that others wrote. A phase rewrites an imported graph into the forms that other passes look for.

The file follows the lesson: a rule that recognizes a norm, a rule that changes the layout of a constant weight, and the
phase that runs them. Then three questions to a compiled model: does its GPU code use the tensor cores, which kernel is
slow and why, and how do two compilers compare?
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import tvm
from tvm import relax, tirx
from tvm.ir import Expr
from tvm.ir.transform import Pass
from tvm.relax.dpl import is_const, is_op, wildcard
from tvm.relax.op.nn import rms_norm
from tvm.s_tir import ScheduleError
from tvm.s_tir import dlight as dl
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.target import Target

from chapters.ch10_imported_models import given
from chapters.ch10_imported_models.given import ROWS, constant_operand, is_last, is_one_matrix, ones
from chapters.kit.cases.relax_text import relax_module
from chapters.kit.gpu.targets import compute_capability
from chapters.kit.models.apply_rules import (
    Matched,
    apply_rules,
    either,
    is_positive,
    known_shape,
    scalar,
)
from chapters.kit.models.drop_no_ops import DropNoOps
from chapters.kit.models.expand_powers import ExpandPowers
from chapters.kit.models.keep_leading_dims import KeepLeadingDims
from chapters.kit.models.recognize_patches import RecognizePatches

# --- a norm, spelled out --------------------------------------------------------------------------

X = wildcard()
TWO, MINUS_HALF, EPSILON = is_const(), is_const(), is_const()
SQUARE = is_op("relax.power")(X, TWO) | is_op("relax.multiply")(X, X) | is_op("relax.square")(X)
MEAN = is_op("relax.mean")(SQUARE)
SUM = either("relax.add", MEAN, EPSILON)
SCALE = is_op("relax.rsqrt")(SUM) | is_op("relax.power")(SUM, MINUS_HALF)
NORMALIZED = either("relax.multiply", X, SCALE) | is_op("relax.divide")(X, is_op("relax.sqrt")(SUM))


def normalized(expr: Expr, found: Matched) -> Expr:
    """Return rms_norm(x, ones) for `expr`, a match of NORMALIZED, or `expr` itself if it computes something else.

    found: for each part of the pattern the expression that it matched. TWO and MINUS_HALF are in it only if the model's
    spelling has them. It is a norm if it divides each row of x (its last axis) by the root of the mean of its squares
    plus one number. x must be float32, with two dimensions or more, and its row must have a known size above 0.
    """
    # BEGIN exercise 10.1 (about 13 lines): six questions, then the norm
    x, epsilon = found[X], scalar(found[EPSILON])
    shape, mean = known_shape(x), found[MEAN].attrs
    formula = {TWO: 2.0, MINUS_HALF: -0.5}
    if (
        len(shape or []) < 2  # TVM cannot lower rms_norm of a vector
        or x.ty.dtype != "float32"
        or not is_positive(shape[-1])
        or not (mean.keepdims and is_last(mean.axis, len(shape)))
        or any(scalar(found[part]) != value for part, value in formula.items() if part in found)
        or epsilon is None
    ):
        return expr
    return rms_norm(x, ones(shape[-1], "float32"), [-1], epsilon)
    # END exercise 10.1


@tvm.transform.module_pass(opt_level=0, name="RecognizeRMSNorm")
class RecognizeRMSNorm:
    """Replaces each RMSNorm that is spelled out in a dataflow block by `relax.nn.rms_norm`. The numbers stay equal."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return apply_rules(mod, [(NORMALIZED, normalized), *given.RULES_AFTER_THE_NORM])


def looks_like_one() -> tvm.IRModule:
    """Return a module that `given.CarelessRMSNorm` takes for an RMSNorm, and whose numbers it changes.

    Its function `main` takes float32 tensors of constant shapes and returns one tensor. The results before and after
    the pass are finite, and differ by more than a hundredth of the largest.
    """
    # BEGIN exercise 10.2 (about 7 lines): the operators of a norm, one of them changed
    return relax_module("""
def main(x: (4, 6)):
    mean = R.mean(R.power(x, R.const(2.0)), axis=[0], keepdims=True)
    out = R.multiply(x, R.rsqrt(R.add(mean, R.const(0.01))))
""")
    # END exercise 10.2


# --- a weight in the wrong layout -----------------------------------------------------------------


def transposed(expr: Expr, found: Matched) -> Expr:
    """Return matmul(x, permute_dims(rows)) for `expr`, which is matmul(x, w); rows is a new constant, equal to w.T.

    expr: a match of `given.PRODUCT`. `constant_operand(found)` is w (k, n), after the reshapes and transposes between
    the constant and the product. The result has the type of `expr`: its shape, and the dtype `expr.attrs.out_dtype`.
    Return `expr` if w is None or is not one matrix (`is_one_matrix`), or has three dimensions or more and more than x.
    """
    # BEGIN exercise 10.3 (about 6 lines): ask whether w is one matrix, then build the product
    x, w = found[ROWS], constant_operand(found)
    if w is None or not is_one_matrix(w) or w.ndim > max(2, x.ty.ndim):
        return expr
    rows = tvm.runtime.tensor(w.reshape(w.shape[-2:]).T)
    own = relax.op.permute_dims(relax.const(rows))
    return relax.op.matmul(x, own, expr.attrs.out_dtype)
    # END exercise 10.3


@tvm.transform.module_pass(opt_level=0, name="RecognizeLinear")
class RecognizeLinear:
    """Rewrites each product with a constant matrix in a dataflow block to matmul(x, permute_dims(w))."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return apply_rules(mod, [(given.PRODUCT, transposed)])


def canonicalize() -> Pass:
    """Return the whole phase: remove no-ops, recognize norms and linear layers, move the reshapes between them."""
    recognize = [RecognizeRMSNorm(), ExpandPowers(), RecognizeLinear(), RecognizePatches()]
    passes = [DropNoOps(), *recognize, KeepLeadingDims(), DropNoOps()]
    return tvm.transform.Sequential(passes, name="canonicalize")


# --- what became of it ----------------------------------------------------------------------------

INSTRUCTION = "mma_sync"  # the name of the tensor-core instruction in CUDA C++
FIRST_WITH_TENSOR_CORES = 70  # compute capability 7.0


def on_tensor_cores(
    func: tirx.PrimFunc, target: Target, rules: Sequence[ScheduleRule]
) -> ScheduleRule:
    """Return the first rule whose code for `target` uses tensor cores, or the last rule if there is none.

    func: a kernel without a schedule. target: a CUDA target. Skip a rule that declines `func` or raises ScheduleError.
    A GPU below compute capability 7.0 has no tensor cores: return the last rule without looking at code.
    """
    # BEGIN exercise 10.4 (about 13 lines): schedule, ask whether the rule took the kernel, generate the code, read it
    *candidates, last = rules
    if compute_capability(target) < FIRST_WITH_TENSOR_CORES:
        return last
    for rule in candidates:
        try:
            with target:
                mod = dl.ApplyDefaultSchedule(rule)(tvm.IRModule({"main": func}))
        except ScheduleError:
            continue
        took_it = "tirx.is_scheduled" in (mod["main"].attrs or {})
        if took_it and INSTRUCTION in given.cuda_source(mod, target):
            return rule
    return last
    # END exercise 10.4


def why_slow() -> dict[str, tuple[str, str]]:
    """Return for each of the five layers in layers.py the kernel that moves most bytes, and the reason, as one word.

    Keys: "projection", "head", "similarity", "scores", "feed forward". Three words mean slow: "size" (a size of the
    weight is unknown), "epilogue" (the epilogue reads sums other than its own), "row" (there is one row, and the second
    factor is not one matrix (n, k) of constant size). Two mean fast: "scheduled" (by ScheduleMatmuls), "tiled" (by
    TileProducts).
    """
    # BEGIN exercise 10.5 (about 7 lines): a kernel and a reason for each
    return {
        "projection": ("matmul", "tiled"),
        "head": ("NT_matmul", "size"),
        "similarity": ("similarity", "epilogue"),
        "scores": ("NT_matmul", "row"),
        "feed forward": ("fused_NT_matmul_add_gelu", "scheduled"),
    }
    # END exercise 10.5


def interleaved(
    calls: Mapping[str, Callable[[], object]],
    rounds: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Return the median time of each call in seconds, by name. The machine may change its speed in the meantime.

    Run every call once without timing it. Then take `rounds` rounds, and time every call once in each. Each round has a
    new order, so that no call always follows the same other call. `clock()` returns the current time in seconds.
    """
    # BEGIN exercise 10.6 (about 10 lines): warm up, then round by round
    for call in calls.values():
        call()
    taken: dict[str, list[float]] = {name: [] for name in calls}
    draw = random.Random(0)
    for _ in range(rounds):
        for name in draw.sample(list(calls), len(calls)):
            start = clock()
            calls[name]()
            taken[name].append(clock() - start)
    return {name: statistics.median(times) for name, times in taken.items()}
    # END exercise 10.6
