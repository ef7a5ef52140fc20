"""FuseTransposeMatmul: matmul(x, permute_dims(w)) becomes one kernel that reads w as it is stored.

The pass has two steps. `group` lets FuseOpsByPattern move each matmul and its transpose into a function of their
own, a composite. `generate` replaces each call of a composite by a call of a PrimFunc, `NT_matmul`. Before both,
`own_transposes` gives each of these matmuls a transpose that nothing else uses.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tvm
from tvm import relax, te, tirx
from tvm.ir import Call, Expr, GlobalVar, IRModule
from tvm.relax.dpl import DFPattern, is_op, wildcard
from tvm.relax.expr_functor import PyExprMutator, mutator

from chapters.ch03_transpose_matmul.given import (
    Fires,
    TransposesInSight,
    batch_index,
    broadcast,
    calls_any,
    following_values,
    is_claimed,
    is_constant,
    is_typed,
    operands,
)

COMPOSITE = "transpose_matmul_fuse"

# --- the pair to look for -------------------------------------------------------------------------


def transpose_matmul_pattern() -> tuple[DFPattern, dict[str, DFPattern]]:
    """Return the pattern matmul(x, permute_dims(w)), and names for its parts.

    The second result is {"x": …, "w": …, "transpose": …, "product": …}: any expression x, any expression w, the call
    of permute_dims, the call of matmul. A check finds by these names what each part matched.
    """
    # BEGIN exercise 3.1 (about 5 lines): the pattern and its four parts
    x, w = wildcard(), wildcard()
    transpose = is_op("relax.permute_dims")(w)
    product = is_op("relax.matmul")(x, transpose)
    return product, {"x": x, "w": w, "transpose": transpose, "product": product}
    # END exercise 3.1


def may_fuse(transpose: Call, product: Call) -> bool:
    """Return whether the kernel may replace transpose = permute_dims(w, axes) and product = matmul(x, transpose).

    It may if the axes exchange the last two dimensions of w and leave all others in place. `axes` is None (all
    dimensions reversed), or one number per dimension, which may be negative (-1 is the last dimension). The types
    of w, x and the product must be known (`is_typed`), because TVM cannot make a PrimFunc for an unknown shape or
    dtype. `ndim` is -1 if the rank is unknown.
    """
    w, x = transpose.args[0], product.args[0]
    # BEGIN exercise 3.2 (about 6 lines): are the types known, and do the axes exchange the last two dimensions?
    if not all(is_typed(expr.ty) for expr in (w, x, product)) or w.ty.ndim < 2:
        return False
    dims = list(range(w.ty.ndim))
    axes = transpose.attrs.axes
    order = dims[::-1] if axes is None else [int(axis) % len(dims) for axis in axes]
    return order == [*dims[:-2], dims[-1], dims[-2]]
    # END exercise 3.2


# --- step 1: move each pair into a function of its own --------------------------------------------


def group(mod: IRModule, fires: Fires) -> IRModule:
    """Return `mod` with each pair that `fires` accepts moved into a private function, a composite.

    A pair is a permute_dims and the matmul that uses it, if the matmul is the next binding in the same dataflow
    block. The pattern alone would also match with other bindings between the two, and w would be read too late.
    """
    following = following_values(mod)

    def check(context: relax.transform.PatternCheckContext) -> bool:
        transpose, product = (context.annotated_expr[name] for name in ("transpose", "product"))
        behind = following.get(context.value_to_bound_var.get(transpose))
        return product.same_as(behind) and fires(transpose, product)

    pattern = (COMPOSITE, *transpose_matmul_pattern(), check)
    return relax.transform.FuseOpsByPattern([pattern], bind_constants=False)(mod)


# --- step 2: replace each composite by a kernel ---------------------------------------------------


def nt_matmul(w: te.Tensor, x: te.Tensor, out_dtype: str) -> te.Tensor:
    """Return the TE compute of x times w transposed. It reads w as it is stored: the reduction axis comes last.

    w: (*batch of w, n, k). x: (*batch of x, m, k), or (k,), which is one row. Batch dimensions are aligned from the
    right; one that is the constant 1, or missing, is repeated along the other operand's. Dimensions may be symbolic.
    Returns (*batch, m, n) of `out_dtype`, called NT_matmul; (*batch, n) if x is one row. The operands are cast to
    `out_dtype` before they are multiplied. If k is the constant 0, every element is an empty sum, 0.
    """
    batch = broadcast(x.shape[:-2], w.shape[:-2])
    m, n, length = x.shape[-2:-1], w.shape[-2], x.shape[-1]  # m: [rows of x], or [] if x is one row
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


@mutator
class GenerateKernels(PyExprMutator):
    """Replaces each call of one of `composites` by a call of its kernel.

    composites: the functions that `group` made, by name.
    """

    def __init__(self, mod: IRModule, composites: dict[str, relax.Function]):
        super().__init__(mod)
        self.composites = composites

    def visit_call_(self, call: Call) -> Expr:
        """Return the call_te of nt_matmul on (w, x) for a call of a composite; name the kernel NT_matmul."""
        if not isinstance(call.op, GlobalVar) or call.op.name_hint not in self.composites:
            return super().visit_call_(call)
        composite = self.composites[call.op.name_hint]
        # BEGIN exercise 3.4 (about 4 lines): return the call_te that computes what the composite computes
        w, x = (self.visit_expr(operand) for operand in operands(composite, call))
        dtype = str(composite.ret_ty.dtype)
        return self.builder_.call_te(nt_matmul, w, x, dtype, primfunc_name_hint="NT_matmul")
        # END exercise 3.4


def generate(mod: IRModule, composites: dict[str, relax.Function]) -> IRModule:
    """Return `mod` with each call of one of `composites` replaced by a call of its kernel, and without `composites`."""
    for gvar, func in mod.functions_items():
        if isinstance(func, relax.Function) and calls_any(func, composites):
            generator = GenerateKernels(mod, composites)  # one per function: two may share a Var
            generator.builder_.update_func(gvar, generator.visit_expr(func))
            mod = generator.builder_.get()
    # BEGIN exercise 3.4 (about 2 lines): delete the composites, which nothing calls any more
    for name in composites:
        del mod[name]
    # END exercise 3.4
    return mod


# --- before both: give every matmul its own transpose ---------------------------------------------


@mutator
class OwnTransposes(TransposesInSight):
    """Rewrites one Relax function for `own_transposes`. `given` counts the new transposes."""

    given = 0

    def may_move(self, transpose: Call, call: Call) -> bool:
        """Return whether a copy of `transpose`, right before the matmul `call`, would give the same tensor."""
        # BEGIN exercise 3.5 (about 2 lines): in which programs is it another tensor, or none?
        w = transpose.args[0]
        return self.in_sight(w) and not self.order.may_write_between(transpose, call)
        # END exercise 3.5

    def visit_call_(self, call: Call) -> Expr:
        """Return a matmul with a permute_dims of its own, for a matmul whose transpose may be copied."""
        transpose = self.transpose_in(call)
        if transpose is None:
            return super().visit_call_(call)
        self.given += 1
        # BEGIN exercise 3.5 (about 4 lines): emit a permute_dims for this matmul alone, and multiply by it
        x, w = self.visit_expr(call.args[0]), self.visit_expr(transpose.args[0])
        own = self.builder_.emit(relax.op.permute_dims(w, transpose.attrs.axes))
        return relax.op.matmul(x, own, call.attrs.out_dtype)
        # END exercise 3.5


def own_transposes(mod: IRModule, fires: Fires) -> IRModule:
    """Return `mod` with a permute_dims of its own for each matmul that `fires(transpose, product)` accepts.

    FuseOpsByPattern moves a matched pair into a composite. If something else uses the transpose too, the composite
    returns the transpose as a second result, and `generate` expects one result. After this step, every transpose of
    a pair has one user.

    A transpose that has lost its last user is removed; one that is still used stays where it was. A module in
    which `fires` accepts no matmul is returned as it is.
    """
    changed = {}
    for gvar, func in mod.functions_items():
        if isinstance(func, relax.Function) and not is_claimed(func):
            owner = OwnTransposes(mod, func, fires)
            rewritten = owner.visit_expr(func)
            if owner.given:
                # BEGIN exercise 3.5 (about 1 line): remove the transposes that have lost their last user
                changed[gvar] = relax.analysis.remove_all_unused(rewritten)
                # END exercise 3.5
    if changed:
        mod = mod.clone()
        mod.update(changed)
    return mod


# --- the pass -------------------------------------------------------------------------------------


def fuse(mod: IRModule, fires: Fires) -> IRModule:
    """Return `mod` with each pair that `fires` accepts replaced by a kernel. `mod` itself does not change."""
    owned = own_transposes(mod, fires)
    owned = own_transposes(owned, fires)  # of what is left: an update that nobody read is gone
    grouped = group(owned, fires)
    old = {gvar.name_hint for gvar in mod.get_global_vars()}
    functions = {gvar.name_hint: func for gvar, func in grouped.functions_items()}
    composites = {name: func for name, func in functions.items() if name not in old}
    return generate(grouped, composites) if composites else mod


@tvm.transform.module_pass(opt_level=0, name="FuseTransposeMatmul")
class FuseTransposeMatmul:
    """Fuse permute_dims and matmul, in dataflow blocks, into kernels that read w as it is stored.

    Run it before LegalizeOps. It raises no error on a well-formed module; a pair that it cannot fuse stays as it is.
    """

    def transform_module(self, mod: IRModule, _ctx: tvm.transform.PassContext) -> IRModule:
        return fuse(mod, may_fuse)


# --- break a careless check -----------------------------------------------------------------------


def careless(transpose: Call, product: Call) -> bool:
    """A hasty `may_fuse`: of the axes, it only asks whether the second to last dimension of w comes last."""
    w, x = transpose.args[0], product.args[0]
    axes = transpose.attrs.axes
    return all(is_typed(expr.ty) for expr in (w, x, product)) and (
        axes is None or int(axes[-1]) % w.ty.ndim == w.ty.ndim - 2
    )


def deceives_careless() -> tuple[IRModule, list[np.ndarray]]:
    """Return a module on which `fuse(mod, careless)` gives wrong numbers, and arguments for its function `main`.

    The module is well-formed. After the careless pass, `main` has the same types, raises no error, and returns other
    numbers than before.
    """
    # BEGIN exercise 3.6 (about 10 lines): a permutation that moves more dimensions than careless looks at
    x = relax.Var("x", relax.TensorType((4, 3), "float32"))
    w = relax.Var("w", relax.TensorType((3, 5, 3), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, w]):
        with builder.dataflow():
            wt = builder.emit(relax.op.permute_dims(w, [2, 0, 1]))
            out = builder.emit_output(relax.op.matmul(x, wt))
        builder.emit_func_output(out)
    random = np.random.default_rng(0)
    return builder.get(), [random.standard_normal(s).astype("float32") for s in ((4, 3), (3, 5, 3))]
    # END exercise 3.6


# --- what it saves --------------------------------------------------------------------------------


def bytes_saved(weights: Sequence[tuple[int, int]], itemsize: int) -> int:
    """Return how many bytes fewer one run moves if each weight is multiplied as it is stored.

    weights: the shape (n, k) of each. itemsize: bytes per element. A kernel moves the bytes that it reads and the
    bytes that it writes, each tensor once.
    """
    # BEGIN exercise 3.7 (1 line): compare the kernels that run before the pass and after it
    return sum(2 * n * k for n, k in weights) * itemsize
    # END exercise 3.7
