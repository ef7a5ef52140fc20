"""Code that chapter 11 provides: careless readers of a block, questions about kernels, and the frame of its passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.ir import Call, Expr, GlobalVar, IRModule, Op, TensorLoad
from tvm.ir.transform import Pass
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.script import tirx as T
from tvm.script.ir_builder import tirx as I

from chapters.kit.bench.results import load
from chapters.kit.draw.table import Table
from chapters.kit.ir.relax_effects import calls_in, offloaded
from chapters.kit.ir.tensor_ir import innermost_blocks, loads, nodes, uses_pointers
from chapters.kit.quantized.dequantize import NAME, match_dequantize
from chapters.kit.quantized.dot_products import dot_products
from chapters.kit.quantized.int8_product import Tile, int8_product
from chapters.kit.quantized.weight_blocks import PackedLayout

# --- a block of Q4_1, and three careless readers of it ----------------------------------------------


def _parts(block: np.ndarray) -> tuple[np.float32, np.float32, np.ndarray]:
    """Return (scale, minimum, codes) of a block, read correctly."""
    scale, minimum = np.ascontiguousarray(block[:4]).view("<f2").astype("float32")
    return scale, minimum, np.concatenate([block[4:] & 15, block[4:] >> 4])


def unpack(block: np.ndarray) -> np.ndarray:
    """Return the 32 weights, float32 (32,), of a block of the type Q4_1, uint8 (20,)."""
    scale, minimum, codes = _parts(block)
    return scale * codes + minimum


def neighbours(block: np.ndarray) -> np.ndarray:
    """Reads the two codes of a byte as neighboring weights."""
    scale, minimum, codes = _parts(block)
    return scale * codes.reshape(2, 16).T.reshape(32) + minimum


def without_minimum(block: np.ndarray) -> np.ndarray:
    """Forgets the minimum."""
    scale, _, codes = _parts(block)
    return scale * codes


def signed(block: np.ndarray) -> np.ndarray:
    """Reads a code as a signed number of 4 bits, from -8 to 7."""
    scale, minimum, codes = _parts(block)
    return scale * (codes.astype("int8") - 16 * (codes > 7)) + minimum


CARELESS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "order": neighbours,
    "minimum": without_minimum,
    "sign": signed,
}

# --- questions about calls and kernels --------------------------------------------------------------

CALL_TIR = Op.get("relax.call_tir")


def is_kernel_call(value: Expr) -> bool:
    """Whether `value` calls a kernel with at least one tensor (call_tir)."""
    return isinstance(value, Call) and value.op == CALL_TIR and len(value.args[1]) > 0


def kernel_calls(func: relax.Function) -> list[Call]:
    """The kernel calls of a function, in order."""
    return [call for call in calls_in(func) if is_kernel_call(call)]


def arguments(call: Call) -> list[Expr]:
    """The tensors that a kernel call passes, in order."""
    return list(call.args[1])


def unpacks(mod: IRModule, call: Call) -> bool:
    """Whether the kernel of `call` unpacks a matrix of codes into floats. Compares the kernel's body, not its name."""
    return match_dequantize(mod[call.args[0]]) is not None


def takes_rows(func: tirx.PrimFunc) -> bool:
    """Whether `func` (matrix, numbers, result) copies the rows of a matrix that the tensor `numbers` names."""
    blocks = innermost_blocks(func.body)
    if len(func.params) != 3 or len(blocks) != 1:
        return False
    block = blocks[0][1].block
    if block.init is not None or not block.iter_vars or uses_pointers(block.body):
        return False
    found = loads(block.body, func.params[0])
    in_vectors = bool(nodes(block.body, tirx.Ramp))
    return len(found) == 1 and bool(nodes(found[0].indices[0], TensorLoad)) and not in_vectors


# --- the frame of both passes -----------------------------------------------------------------------

Rule = Callable[[tirx.PrimFunc, tirx.PrimFunc], "tirx.PrimFunc | None"]
Fusible = Callable[
    [IRModule, relax.DataflowBlock, Callable[[Call, Call], bool]], Mapping[Call, Call]
]


@mutator
class _Fuse(PyExprMutator):
    """Replaces the calls of one Relax function that the rule `name` serves."""

    def __init__(self, mod: IRModule, name: str, rules: Mapping[str, Rule], fusible: Fusible):
        super().__init__(mod)
        self.mod, self.name, self.fusible = mod, name, fusible
        self.rules = rules
        self.known: dict[tuple[GlobalVar, GlobalVar], dict[str, tirx.PrimFunc]] = {}
        self.found: Mapping[Call, Call] = {}
        self.fused = False

    def joined(self, unpack: Call, reader: Call) -> dict[str, tirx.PrimFunc]:
        """Return {name of a rule: the kernel that it makes of both}; empty if no rule serves this pair of kernels."""
        names = unpack.args[0], reader.args[0]
        if names not in self.known:
            kernels = [self.mod[name] for name in names]
            made = {name: rule(*kernels) for name, rule in self.rules.items()}
            self.known[names] = {name: one for name, one in made.items() if one is not None}
        return self.known[names]

    def visit_dataflow_block_(self, block: relax.DataflowBlock) -> relax.DataflowBlock:
        outer = self.found
        self.found = self.fusible(self.mod, block, lambda *calls: bool(self.joined(*calls)))
        new = super().visit_dataflow_block_(block)
        self.found = outer
        return new

    def visit_function_(self, func: relax.Function) -> relax.Function:
        return func if offloaded(func) else super().visit_function_(func)

    def visit_call_(self, call: Call) -> Expr:
        unpack = self.found.get(call)
        kernel = None if unpack is None else self.joined(unpack, call).get(self.name)
        if kernel is None:
            return super().visit_call_(call)
        self.fused = True
        name = f"{NAME}_{call.args[0].name_hint}"
        tensors = [self.visit_expr(one) for one in [*arguments(unpack), *arguments(call)[1:]]]
        return relax.call_tir(self.builder_.add_func(kernel, name), tensors, call.ty_args[0])


def fuse_pass(name: str, rules: Mapping[str, Rule], fusible: Fusible) -> Pass:
    """Return the pass `name`. It replaces the calls that `fusible` finds and that the rule `name` serves.

    The pass runs after LegalizeOps and AnnotateTIROpPattern and before FuseOps, which then adds epilogues to the new
    kernel. The users of a matrix unpack it only if every user is served by one of the rules.
    """

    @tvm.transform.module_pass(opt_level=0, name=name)
    def transform(mod: IRModule, _ctx: tvm.transform.PassContext) -> IRModule:
        for gvar, func in mod.functions_items():
            if isinstance(func, relax.Function) and not offloaded(func):
                fuse = _Fuse(mod, name, rules, fusible)
                new = fuse.visit_expr(func)
                if fuse.fused:
                    fuse.builder_.update_func(gvar, relax.analysis.remove_all_unused(new))
                    mod = fuse.builder_.get()
        return mod

    return transform


# a processor whose instruction the page shows; the exercise is for the processor at hand
VNNI = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "icelake-server"}

# --- a product with integers, one weight at a time ----------------------------------------------------


def multiply_one_by_one(tile: Tile) -> None:
    """Fill the sums of a tile: unpack a weight, multiply it by an element of x, add. Right for any form, and slow."""
    form = tile.form
    # the codes of the first steps of a group lie in the low bits of their byte
    half = form.group * form.bits // 8
    for one, row in enumerate(tile.rows):
        with I.serial(form.lanes) as lane:
            I.buffer_store(tile.sums, T.float32(0), [one, lane])
            with I.serial(tile.groups) as group, I.serial(form.group) as step:
                word = tile.codes[tile.panel, group, step % half // 4, lane]
                code = (word >> (step % 4 * 8 + step // half * 4)) & ((1 << form.bits) - 1)
                code = code if form.has_minimum else code - form.zero
                weight = T.cast(tile.scales[tile.panel, group, 0, lane], "float32") * T.cast(
                    code, "float32"
                )
                if form.has_minimum:
                    weight = weight + T.cast(tile.scales[tile.panel, group, 1, lane], "float32")
                integer = T.cast(tile.integers[row, group * form.group + step], "float32")
                total = tile.sums[one, lane] + weight * (tile.steps[row, group] * integer)
                I.buffer_store(tile.sums, total, [one, lane])


def tile_kernel(multiply: Callable[[Tile], None], rows: int = 1) -> tirx.PrimFunc:
    """Return the product of a Q4_1 matrix (16, 64) with x (rows, 64), whose tiles `multiply` computes: to print it."""
    form, target = PackedLayout(4, 32, True, "float16", 16), tvm.target.Target(VNNI)
    shape = [tirx.IntImm("int64", rows), tirx.IntImm("int64", 64)]
    return int8_product(form, 16, 64, shape, dot_products(target), multiply)


# --- what the kinds of matrices lose in 4 bits -------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """All matrices of one kind. loss: how much the log perplexity grows if only this kind is in 4 bits."""

    in_4_bits: float  # megabytes per token
    in_8_bits: float
    loss: float


def _read_kinds(alone: Mapping[str, dict]) -> dict[str, Kind]:
    """The kinds, of what was measured of each alone."""
    sizes = {name: one["bytes_of_kind"] for name, one in alone.items()}
    return {
        name: Kind(sizes[name]["Q4_0"] / 1e6, sizes[name]["Q8_0"] / 1e6, one["loss"])
        for name, one in alone.items()
    }


KINDS = _read_kinds(load("ch11_perplexity")["measured"]["alone"])
BUDGET = 14.0  # megabytes per token for 8 bits


def kinds_table(alone: Mapping[str, dict] | None = None) -> Table:
    """KINDS as a table, or what was measured of each kind alone."""
    kinds = KINDS if alone is None else _read_kinds(alone)
    rows = [
        (name, f"{kind.loss:.4f}", f"{kind.in_4_bits:.2f}", f"{kind.in_8_bits:.2f}")
        for name, kind in kinds.items()
    ]
    return Table(("kind", "loss in 4 bits", "MB in 4 bits", "MB in 8 bits"), rows)


def token_bytes(measured: dict) -> dict[str, int]:
    """The bytes of weights that one token of the chat model reads, by how they are stored."""
    variants = measured["variants"]
    floats = variants["float32"]["bytes"]
    return {
        "float32": floats,
        "float16": floats // 2,
        "8 bits (Q8_0)": variants["Q8_0, x in 8 bits"]["bytes"],
        "the file (Q4_1, Q8_0)": variants["file, x in 8 bits"]["bytes"],
    }


def bytes_table() -> Table:
    """What one token of the chat model reads, by how its weights are stored."""
    sizes = token_bytes(load("ch11_perplexity")["measured"])
    rows = [
        (name, f"{size / 1e6:.0f} MB", f"{size / sizes['float32']:.0%}")
        for name, size in sizes.items()
    ]
    return Table(("weights in", "read per token", "of float32"), rows)
