"""Chapter 10: models that others wrote. An imported graph gets the forms that the other chapters' passes look for.

From top to bottom in the order in which a model meets them: a rule that recognizes a norm, a rule that gives a constant
weight its layout, and the phase that runs them; then three questions to a compiled model: does the code for a GPU use
its tensor cores, which kernel is slow and why, and how do two compilers compare.
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
from chapters.kit.models.drop_no_ops import DropNoOps
from chapters.kit.models.expand_powers import ExpandPowers
from chapters.kit.models.keep_leading_dims import KeepLeadingDims
from chapters.kit.models.recognize_patches import RecognizePatches
from chapters.kit.models.rewriting import (
    Matched,
    apply_rules,
    either,
    is_positive,
    known_shape,
    scalar,
)

# --- a norm, spelled out --------------------------------------------------------------------------

X = wildcard()
TWO, MINUS_HALF, EPSILON = is_const(), is_const(), is_const()
SQUARE = is_op("relax.power")(X, TWO) | is_op("relax.multiply")(X, X) | is_op("relax.square")(X)
MEAN = is_op("relax.mean")(SQUARE)
SUM = either("relax.add", MEAN, EPSILON)
SCALE = is_op("relax.rsqrt")(SUM) | is_op("relax.power")(SUM, MINUS_HALF)
NORMALIZED = either("relax.multiply", X, SCALE) | is_op("relax.divide")(X, is_op("relax.sqrt")(SUM))


def normalized(expr: Expr, found: Matched) -> Expr:
    """`expr`, a match of NORMALIZED, as rms_norm(x, ones); `expr` itself where the two are not the same.

    found: part of the pattern -> the expression that it matched; TWO and MINUS_HALF are there only if the model spells
    them. The norm divides each row of x, its last axis, by the root of the mean of its squares plus one number. It is
    float32, of two dimensions or more, and the size of a row is known. TVM's rms_norm computes nothing else.
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
    """Replaces each RMSNorm that a dataflow block spells out by `relax.nn.rms_norm`, where numbers stay equal."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return apply_rules(mod, [(NORMALIZED, normalized), *given.RULES_AFTER_THE_NORM])


def looks_like_one() -> tvm.IRModule:
    """A module that `given.CarelessRMSNorm` takes for an RMSNorm, and whose numbers it changes.

    Its function `main` takes float32 tensors of constant shapes and returns one tensor. Before and after the pass the
    results are finite, and they differ by more than a hundredth of the largest.
    """
    # BEGIN exercise 10.2 (about 7 lines): five operators, one of them not the norm's
    return relax_module("""
def main(x: (4, 6)):
    mean = R.mean(R.power(x, R.const(2.0)), axis=[0], keepdims=True)
    out = R.multiply(x, R.rsqrt(R.add(mean, R.const(0.01))))
""")
    # END exercise 10.2


# --- a weight in the wrong layout -----------------------------------------------------------------


def transposed(expr: Expr, found: Matched) -> Expr:
    """matmul(x, w) with a constant matrix w (k, n) as matmul(x, permute_dims(rows)), with a new constant rows (n, k).

    expr: a match of `given.PRODUCT`; `constant_operand(found)` gives w, after the reshapes and transposes between the
    constant and the product. The result has the type of `expr`: its shape, and its dtype, `expr.attrs.out_dtype`.
    Anything but one matrix (`is_one_matrix`) stays as it is. So does a w of three dimensions or more if x has fewer.
    """
    # BEGIN exercise 10.3 (about 6 lines): which constants are one matrix; then the other layout
    x, w = found[ROWS], constant_operand(found)
    if w is None or not is_one_matrix(w) or w.ndim > max(2, x.ty.ndim):
        return expr
    rows = tvm.runtime.tensor(w.reshape(w.shape[-2:]).T)
    own = relax.op.permute_dims(relax.const(rows))
    return relax.op.matmul(x, own, expr.attrs.out_dtype)
    # END exercise 10.3


@tvm.transform.module_pass(opt_level=0, name="RecognizeLinear")
class RecognizeLinear:
    """Gives each product with a constant matrix, in a dataflow block, the form matmul(x, permute_dims(w))."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return apply_rules(mod, [(given.PRODUCT, transposed)])


def canonicalize() -> Pass:
    """One pass: no-ops out of the way, then norms and linear layers, then the reshapes between them."""
    recognize = [RecognizeRMSNorm(), ExpandPowers(), RecognizeLinear(), RecognizePatches()]
    passes = [DropNoOps(), *recognize, KeepLeadingDims(), DropNoOps()]
    return tvm.transform.Sequential(passes, name="canonicalize")


# --- what became of it ----------------------------------------------------------------------------

INSTRUCTION = "mma_sync"  # how the CUDA C++ of this release calls the tensor cores
FIRST_WITH_TENSOR_CORES = 70  # compute capability


def on_tensor_cores(
    func: tirx.PrimFunc, target: Target, rules: Sequence[ScheduleRule]
) -> ScheduleRule:
    """The first rule whose code for `target` uses tensor cores; the last rule of `rules` if there is none.

    func: a kernel without a schedule. target: for CUDA. A rule that declines `func`, or raises ScheduleError, is passed
    over. A GPU below compute capability 7.0 has no tensor cores, whatever the code says.
    """
    # BEGIN exercise 10.4 (about 13 lines): schedule, look whether the rule took it, generate, read
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
    """For each of the chapter's five layers (layers.py): the kernel that moves most bytes, and why it is slow or not.

    Keys: "projection", "head", "similarity", "scores", "feed forward". The reason is one word. Three mean slow: "size",
    a size of the weight is not known; "epilogue", the epilogue reads other sums than its own; "row", there is one row,
    and no matrix of constant size whose rows lie along the sum. Two mean fast: "scheduled", by ScheduleMatmuls;
    "tiled", by TileProducts.
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
    """The median time of each call, on a machine that others use too and whose clock rate drifts.

    Every call runs once without being timed. Then there are `rounds` rounds; in each, every call is timed once. Each
    round has a new order, so that no call always follows the same one. Returns seconds by name.
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
