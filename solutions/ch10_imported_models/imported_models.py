"""Chapter 10: models that others wrote. A phase rewrites an imported graph into the forms that other passes look for.

The file follows the lesson: a rule that recognizes a norm, a rule that changes the layout of a constant weight, and the
phase that runs them. Then two questions to a compiled model: does its GPU code use the tensor cores, and how do two
compilers compare?
"""

from __future__ import annotations

from collections.abc import Sequence

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
    Rule,
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


def norm_rules() -> list[Rule]:
    """Return rules that replace a norm that is spelled out by rms_norm(x, ones), each a pattern and its function.

    A norm is x / sqrt(mean(x²) + epsilon), with the mean over the rows (the last axis) and epsilon one number that is
    added. x is float32, has two dimensions or more, and its row has a known size above 0. A function gets a match and
    its parts, and returns the match itself if it computes something else.
    """
    # BEGIN exercise 10.1 (about 28 lines): what a candidate looks like, and which candidates are norms
    x, (two, minus_half, one, count, epsilon) = wildcard(), (is_const() for _ in range(5))
    square = is_op("relax.power")(x, two) | is_op("relax.multiply")(x, x) | is_op("relax.square")(x)
    averaged, summed = is_op("relax.mean")(square), is_op("relax.sum")(square)
    total = either("relax.add", averaged | is_op("relax.divide")(summed, count), epsilon)
    root = is_op("relax.sqrt")(total)
    scale = (
        is_op("relax.rsqrt")(total)
        | is_op("relax.power")(total, minus_half)
        | is_op("relax.divide")(one, root)
    )

    def normalized(expr: Expr, found: Matched) -> Expr:
        shape, added = known_shape(found[x]) or [], scalar(found[epsilon])
        if len(shape) < 2 or not is_positive(shape[-1]) or found[x].ty.dtype != "float32":
            return expr
        over = found[averaged if averaged in found else summed].attrs
        formula = {two: 2.0, minus_half: -0.5, one: 1.0, count: int(shape[-1])}
        numbers = [(scalar(found[part]), value) for part, value in formula.items() if part in found]
        if (
            not (over.keepdims and is_last(over.axis, len(shape)))
            or any(number != value for number, value in numbers)
            or added is None
        ):
            return expr
        return rms_norm(found[x], ones(shape[-1], "float32"), [-1], added)

    return [(either("relax.multiply", x, scale) | is_op("relax.divide")(x, root), normalized)]
    # END exercise 10.1


@tvm.transform.module_pass(opt_level=0, name="RecognizeRMSNorm")
class RecognizeRMSNorm:
    """Replaces each RMSNorm that is spelled out in a dataflow block by `relax.nn.rms_norm`. The numbers stay equal."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return apply_rules(mod, [*norm_rules(), *given.RULES_AFTER_THE_NORM])


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
    x, w = found[ROWS], constant_operand(found)
    if w is None or not is_one_matrix(w) or w.ndim > max(2, x.ty.ndim):
        return expr
    rows = tvm.runtime.tensor(w.reshape(w.shape[-2:]).T)
    own = relax.op.permute_dims(relax.const(rows))
    return relax.op.matmul(x, own, expr.attrs.out_dtype)


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
    # BEGIN exercise 10.3 (about 13 lines): schedule, ask whether the rule took the kernel, generate the code, read it
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
    # END exercise 10.3
