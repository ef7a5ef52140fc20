"""Chapter 11: a real model with 4-bit weights, which are unpacked inside the kernels that read them.

From top to bottom in the order of the page: three ways to misread a block of weights, the bytes that a token costs, the
passes that move the unpacking into a product and into a lookup, the loop that multiplies codes by integers, and which
matrices deserve 8 bits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
from tvm import relax, tirx
from tvm.ir import Call, IRModule
from tvm.ir.transform import Pass
from tvm.s_tir import SBlockRealize, Schedule
from tvm.script import tirx as T
from tvm.script.ir_builder import tirx as I

from chapters.ch11_a_real_model import given
from chapters.kit.cpu.nt_matmul import is_nt_matmul
from chapters.kit.ir.relax_effects import may_write
from chapters.kit.ir.tensor_ir import substitute, with_fields
from chapters.kit.quantized.int8_product import Tile

# --- one block ------------------------------------------------------------------------------------


def telling_blocks() -> dict[str, np.ndarray]:
    """Return {name of a reader in `given.CARELESS`: a block that this reader alone misreads}.

    A block is uint8 (20,). The other two readers give its correct weights, which are finite.
    """

    # BEGIN exercise 11.1 (about 8 lines): which codes and which minimum does each reader get wrong?
    def block(low: int, high: int, minimum: float) -> np.ndarray:
        numbers = np.array([1, minimum], "<f2").view("uint8")
        return np.concatenate([numbers, np.full(16, low | high << 4, "uint8")])

    return {
        "order": block(low=1, high=2, minimum=0),
        "minimum": block(low=3, high=3, minimum=5),
        "sign": block(low=9, high=9, minimum=0),
    }
    # END exercise 11.1


def predicted_decode() -> dict[str, int]:
    """Return the megabytes that one token of TinyLlama reads, and the most tokens per second at 40 GB/s.

    Keys: "float16" and "file", megabytes (10^6 bytes), rounded to the nearest; "tokens", rounded down.
    """
    # BEGIN exercise 11.2 (about 1 line): which matrices does one token read, and how many bytes has a weight?
    return {"float16": 2069, "file": 599, "tokens": 66}
    # END exercise 11.2


# --- one kernel for both --------------------------------------------------------------------------


def joined(first: tirx.PrimFunc, second: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return one kernel that runs `first` and then `second`. The first parameter of `second` is the result of `first`.

    Parameters: those of `first` without its last (the result), then those of `second` without its first. The result of
    `first` becomes a buffer inside the kernel. The attributes are those of `second`.
    """
    *inputs, result = first.params
    matrix, *others = second.params
    one, two = first.body.block, substitute(second.body.block, {matrix: result})
    inside = [result, *one.alloc_buffers, *two.alloc_buffers]
    root = with_fields(two, body=tirx.SeqStmt([one.body, two.body]), alloc_buffers=inside)
    return tirx.PrimFunc([*inputs, *others], SBlockRealize([], True, root), attrs=second.attrs)


def fusible(
    mod: IRModule, block: relax.DataflowBlock, serves: Callable[[Call, Call], bool]
) -> dict[Call, Call]:
    """Return {reader: the call that unpacks its matrix now}, for the calls in `block` that can unpack it themselves.

    serves(unpack, reader): whether there is one kernel for both calls. The matrix is the reader's first argument, and
    no other argument. If one user of a matrix cannot unpack it, none of its users is in the result, because the floats
    must be in memory anyway. No call between the two calls may write to a tensor.
    """
    # BEGIN exercise 11.3 (about 20 lines): in order, what is unpacked and who reads it; then who else uses it
    ready: dict[relax.Var, Call] = {}  # unpacked, and nothing has been written since
    unpacked: dict[relax.Var, Call] = {}
    readers: dict[relax.Var, dict[relax.Var, Call]] = {}
    for binding in block.bindings:
        var, call = binding.var, binding.value
        if may_write(call):
            ready.clear()
        if not given.is_kernel_call(call):
            continue
        matrix, *others = given.arguments(call)
        if isinstance(var, relax.DataflowVar) and given.unpacks(mod, call):
            ready[var] = unpacked[var] = call
        elif matrix in ready and matrix not in others and serves(ready[matrix], call):
            readers.setdefault(matrix, {})[var] = call
    users = relax.analysis.udchain(block)
    return {
        call: unpacked[matrix]
        for matrix, found in readers.items()
        if set(found) == set(users[matrix])
        for call in found.values()
    }
    # END exercise 11.3


def unpacks_and_multiplies(unpack: tirx.PrimFunc, product: tirx.PrimFunc) -> tirx.PrimFunc | None:
    """One kernel for both, if `product` is an NT_matmul (w, x, result); None for another kernel."""
    return joined(unpack, product) if is_nt_matmul(product) else None


def unpacks_rows(unpack: tirx.PrimFunc, take: tirx.PrimFunc) -> tirx.PrimFunc | None:
    """Return one kernel that unpacks only the rows that `take` copies, or None if `take` does not copy rows.

    The kernel has no buffer for the matrix. Its attributes are those of `take`.
    """
    if not given.takes_rows(take):
        return None
    sch = Schedule(joined(unpack, take))
    unpacking, _taking = sch.get_child_blocks(sch.get_sblock("root"))
    sch.compute_inline(unpacking)
    return sch.mod["main"]


def FuseDequantizeMatmul() -> Pass:
    """Fuses the unpacking of a matrix with the products that multiply by it transposed."""
    return given.fuse_pass("FuseDequantizeMatmul", RULES, fusible)


def FuseDequantizeTake() -> Pass:
    """Fuses the unpacking of a matrix with the lookups that copy rows of it."""
    return given.fuse_pass("FuseDequantizeTake", RULES, fusible)


RULES = {"FuseDequantizeMatmul": unpacks_and_multiplies, "FuseDequantizeTake": unpacks_rows}

# --- the product with integers --------------------------------------------------------------------


def multiply_codes(tile: Tile) -> None:
    """Write the loops that compute the results of one tile of a matrix of codes, with TVM's builder `I`.

    They fill `tile.sums`, float32 (rows of x, lanes), with what `given.multiply_one_by_one` computes. The codes stay
    integers: those of a group are multiplied by the integers of x, and the sum becomes a float once per group.
    """
    # BEGIN exercise 11.4 (about 22 lines): group by group, a vector of codes against four integers of each row of x
    form, floats = tile.form, f"float32x{tile.form.lanes}"
    spread = functools.partial(T.broadcast, lanes=form.lanes)
    for one in range(len(tile.rows)):
        I.buffer_store(tile.sums, spread(T.float32(0)), [one, tile.every])
    with I.serial(tile.groups) as group:
        tile.fetch(group)
        codes = [tile.codes[tile.panel, group, word, tile.every] for word in range(form.words)]
        if form.bits == 4:
            low, four = spread(T.int32(0x0F0F0F0F)), spread(T.int32(4))
            codes = [word & low for word in codes] + [(word >> four) & low for word in codes]
        scales = T.cast(tile.scales[tile.panel, group, 0, tile.every], floats)
        for one, row in enumerate(tile.rows):
            first, step = group * form.group, spread(tile.steps[row, group])
            fours = [tile.integers[row, I.ramp(first + 4 * at, 1, 4)] for at in range(len(codes))]
            pairs = [(c, T.reinterpret("int32", x)) for c, x in zip(codes, fours, strict=True)]
            start = T.int32(0) if form.has_minimum else tile.totals[row, group]
            exact = tile.dots.add(spread(start), pairs, form.bits)
            new = tile.sums[one, tile.every] + T.cast(exact, floats) * (scales * step)
            if form.has_minimum:
                minima = T.cast(tile.scales[tile.panel, group, 1, tile.every], floats)
                new = new + minima * spread(tile.totals[row, group])
            I.buffer_store(tile.sums, new, [one, tile.every])
    # END exercise 11.4


def kept_in_8_bits() -> set[str]:
    """Return the kinds of matrices (keys of `given.KINDS`) that get 8 bits. All others get 4 bits.

    Together the chosen kinds may add at most `given.BUDGET` megabytes per token.
    """
    # BEGIN exercise 11.5 (about 1 line): where does a megabyte buy most?
    return {"attn_q", "attn_k", "attn_v", "attn_output"}
    # END exercise 11.5
