"""Recognizes the kernels that the CPU schedules serve: x times w transposed, with a matrix w of constant size.

A block's name proves nothing: any block may be called NT_matmul. A kernel is recognized if it equals a template, which
is the product built again for the shapes and dtypes of the kernel's parameters.
"""

from __future__ import annotations

from tvm import te, tirx
from tvm.ir import Expr
from tvm.s_tir import SBlock, SBlockRealize
from tvm_ffi import structural_equal, structural_map

from chapters.kit.cpu.vector_registers import fills_vectors
from chapters.kit.ir.tensor_ir import (
    innermost_blocks,
    loads,
    mentions,
    nodes,
    substitute,
    variables_of,
    with_fields,
)

NAME = "NT_matmul"
OTHER_FORM = (
    "an NT_matmul of another form or dtype than chapter 5's schedules recognize. They take the sum over k of x[…, k] * "
    "w[j, k], each factor cast to the dtype of the sum, with one loop per dimension and the loop over k innermost"
)


def product_of(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The block NT_matmul of `func` as a kernel without other blocks: (w, x, result).

    Raises ValueError if `func` has no such block or several, or if the block does not read two buffers.
    """
    found = [(loops, at) for loops, at in innermost_blocks(func.body) if at.block.name_hint == NAME]
    if len(found) != 1 or not found[0][0] or len(found[0][1].block.reads) != 2:
        raise ValueError(f"This kernel does not have one block {NAME} that reads x and w.")
    ((nest, *_), realize), root = found[0], func.body.block
    x, w = operands_of(realize.block)
    body = with_fields(root, body=nest, alloc_buffers=[])
    result = realize.block.writes[0].source
    return tirx.PrimFunc([w, x, result], SBlockRealize([], True, body))


def position_of_x(block: SBlock) -> int:
    """Which of the two regions that an NT_matmul reads is x's, 0 or 1.

    The result's last axis indexes w and not x. The regions are in the order of the factors: either may be first.
    """
    columns = variables_of(list(block.writes[0].region)[-1:])
    return int(any(mentions(block.reads[0].region, axis) for axis in columns))


def operands_of(block: SBlock) -> tuple[tirx.Var, tirx.Var]:
    """(x, w): the buffers that an NT_matmul reads."""
    at = position_of_x(block)
    return block.reads[at].source, block.reads[1 - at].source


def has_product(func: tirx.PrimFunc) -> bool:
    """Whether one of the blocks of `func` is an NT_matmul that a schedule can take."""
    try:
        return is_nt_matmul(product_of(func))
    except ValueError:
        return False


def has_other_form(func: tirx.PrimFunc) -> bool:
    """Whether `func` has an NT_matmul with a matrix of known size that chapter 5's schedules do not recognize."""

    def could_fit(block: SBlock) -> bool:
        if block.name_hint != NAME or len(block.reads) < 2:
            return False
        w, result = operands_of(block)[1], block.writes[0].source
        known = len(w.shape) == 2 and all(isinstance(n, tirx.IntImm) for n in w.shape)
        return known and not any(_equals(n, 0) for n in [*w.shape, *result.shape])

    return any(map(could_fit, nodes(func.body, SBlock))) and not has_product(func)


def reads_only_its_own(block: SBlock, buffer: tirx.Buffer) -> bool:
    """Whether `block` is elementwise, and computes each of its elements from that of `buffer` with the same index.

    Its result has the shape of `buffer`: the elements of a larger one would be computed nowhere if the block is moved
    into the loops of `buffer`.
    """
    stores, found = nodes(block.body, tirx.BufferStore), loads(block.body, buffer)
    elementwise = block.init is None and len(stores) == 1
    same_index = all(
        structural_equal(list(load.indices), list(stores[0].indices)) for load in found
    )
    whole = structural_equal([list(store.buffer.shape) for store in stores], [list(buffer.shape)])
    return elementwise and same_index and bool(found) and whole


def weight_shape(func: tirx.PrimFunc) -> tuple[int, int]:
    """(n, k) of the weight of the NT_matmul in `func`.

    Raises ValueError if it is not a matrix of known size: such a kernel has no schedule here.
    """
    shape = product_of(func).params[0].shape
    if len(shape) != 2 or not all(isinstance(extent, tirx.IntImm) for extent in shape):
        raise ValueError(
            f"The weight of this kernel has shape {list(shape)}; its schedules need a matrix of constant size. "
            "relax.transform.BindSymbolicVars gives a symbolic size its value."
        )
    return int(shape[0]), int(shape[1])


def is_nt_matmul(func: tirx.PrimFunc) -> bool:
    """Whether `func` is (w, x, out) with one block, NT_matmul, which sums x[…, k] * w[j, k] over k, from 0 on.

    Each axis has its own serial loop over a whole dimension, in the order of the axes. The factors may come in either
    order, each cast to the dtype of out. w has constant size, rows of x may be symbolic, and no size is 0. TVM can
    compile vectors of all dtypes (`fills_vectors`).
    """
    if not _has_operands(func) or not _has_one_block(func):
        return False
    found = _normalize(func)
    templates = (_build_template(func, order) for order in ("xw", "wx"))
    return any(structural_equal(found, _normalize(one)) for one in templates)


def _has_operands(func: tirx.PrimFunc) -> bool:
    """Whether the parameters are three buffers that an NT_matmul may have, so that a template can be made for them."""
    if len(func.params) != 3 or not all(tirx.is_buffer_var(param) for param in func.params):
        return False
    w, x, out = func.params
    return (
        len(w.shape) == 2
        and all(isinstance(extent, tirx.IntImm) for extent in w.shape)
        and len(x.shape) > 0
        and structural_equal(x.shape[-1], w.shape[-1])
        and not any(_equals(extent, 0) for param in (w, x, out) for extent in param.shape)
        and all(fills_vectors(param) for param in func.params)
    )


def _has_one_block(func: tirx.PrimFunc) -> bool:
    """Whether there is one block, NT_matmul, which reads x and w as `operands_of` tells them apart."""
    blocks = [at.block for at in nodes(func.body, SBlockRealize) if at.block.name_hint != "root"]
    if [block.name_hint for block in blocks] != ["NT_matmul"]:
        return False
    w, x, _ = func.params
    if len(blocks[0].reads) != 2:
        return False
    return all(map(tirx.Var.same_as, operands_of(blocks[0]), (x, w)))


def _build_template(func: tirx.PrimFunc, order: str) -> tirx.PrimFunc:
    """The NT_matmul for parameters like those of `func`; order: "xw" or "wx", the order of the factors."""
    w, x = (te.placeholder(p.shape, p.dtype, p.name) for p in func.params[:2])
    k = te.reduce_axis((0, w.shape[1]), name="k")
    dtype = str(func.params[2].dtype)

    def element(*index: tirx.Var) -> Expr:
        *rows, j = index
        factors = {"x": x(*rows, k).astype(dtype), "w": w(j, k).astype(dtype)}
        first, second = (factors[name] for name in order)
        return te.sum(first * second, axis=k)

    out = te.compute((*x.shape[:-1], w.shape[0]), element, name="NT_matmul")
    return te.create_prim_func([w, x, out], str(func.params[0].shape[0].ty.dtype))


def _normalize(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func` without the parts that do not change its result: attributes, declared regions, axes of extent 1."""

    def plain(block: SBlock) -> SBlock:
        single = {axis.var: axis.dom.min for axis in block.iter_vars if _equals(axis.dom.extent, 1)}
        init, body = (part and substitute(part, single) for part in (block.init, block.body))
        return with_fields(block, reads=[], writes=[], init=init, body=body)

    return tirx.PrimFunc(func.params, structural_map(func.body, (SBlock, plain)))


def _equals(extent: Expr, number: int) -> bool:
    return isinstance(extent, tirx.IntImm) and int(extent) == number
