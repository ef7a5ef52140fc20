"""The checks of chapter 11: blocks of 4-bit weights, bytes per token, who may unpack a matrix, a kernel for codes."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
import struct
import time
from collections.abc import Set

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.target import codegen

from chapters.ch11_a_real_model import given
from chapters.ch11_a_real_model.check_programs import (
    FIRES,
    KEPT,
    floats,
    function,
    times,
)
from chapters.checking import expect
from chapters.checking.expect import Section
from chapters.kit.cases.guard_zones import compile_once
from chapters.kit.cpu.nt_matmul import is_nt_matmul
from chapters.kit.cpu.vector_registers import vector_registers
from chapters.kit.machine import llvm_host
from chapters.kit.quantized.dot_products import dot_products, in_vectors
from chapters.kit.quantized.int8_product import int8_product
from chapters.kit.quantized.weight_blocks import PackedLayout, QuantizedRows, pack

LESSON = "chapters/ch11_a_real_model/lesson.md"
BLOCK = Section(LESSON, "A block of Q4_1")
MISREAD = Section(LESSON, "Three ways to misread a block")
BYTES = Section(LESSON, "What a token costs")
READ_BY = Section(LESSON, "Who reads the matrix")
KERNEL = Section(LESSON, "The loop that answers")
EIGHT = Section(LESSON, "Which matrices deserve 8 bits")

LIMITS = {"test_11_4_numbers": 60, "test_11_4_fast": 60}

# --- 11.1 -----------------------------------------------------------------------------------------


def read_weights(raw: np.ndarray) -> np.ndarray:
    """The weights of a block in float64, one after the other."""
    scale, minimum = struct.unpack("<ee", raw.tobytes()[:4])
    codes = [raw[4 + i % 16] >> (4 * (i // 16)) & 15 for i in range(32)]
    return np.array([scale * int(code) + minimum for code in codes])


def find_fooled(raw: np.ndarray) -> list[str]:
    """The careless readers that give other weights for a block."""
    right = read_weights(raw).astype(
        "float32"
    )  # the scale may be tiny, so rounded once and compared exactly
    return [
        name
        for name, read in given.CARELESS.items()
        if not np.array_equal(read(raw).astype("float32"), right)
    ]


def read_blocks(impl) -> dict[str, np.ndarray]:
    found = impl.telling_blocks()
    expect.has_keys(found, given.CARELESS, "`telling_blocks` does not return one block per reader.")
    for name, raw in found.items():
        what = f"The block for “{name}” is not a block of Q4_1."
        yours = f"{type(raw).__name__} {getattr(raw, 'dtype', '')} {getattr(raw, 'shape', '')}"
        right = isinstance(raw, np.ndarray) and (raw.shape, str(raw.dtype)) == ((20,), "uint8")
        BLOCK.that(right, what, expected="a NumPy array uint8 (20,)", yours=yours)
        what = f"The block for “{name}” has weights that are infinite or NaN."
        why = "With an infinite or NaN scale or minimum, all readers give the same useless weights."
        BLOCK.that(bool(np.isfinite(read_weights(raw)).all()), what, why=why)
    return found


def test_11_1_alone(impl) -> None:
    """each reader alone misreads its block"""
    for name, raw in read_blocks(impl).items():
        fooled = find_fooled(raw)
        what = f"The reader “{name}” reads your block for “{name}” correctly."
        why = "Look at the block's scale, minimum and codes. With these values the reader's fault has no effect."
        wanted = f"a block that the reader “{name}” misreads"
        MISREAD.that(name in fooled, what, expected=wanted, why=why)
        others = [other for other in fooled if other != name]
        what = f"Another reader misreads your block for “{name}” as well: {', '.join(others)}."
        why = "If several readers misread a block, it does not tell which fault a program has."
        MISREAD.that(
            not others, what, expected="the other two readers give the right weights", why=why
        )


def observe_11_1(impl):
    def describe() -> str:
        return str({name: find_fooled(raw) for name, raw in read_blocks(impl).items()})

    return [describe, lambda: str(sorted(impl.telling_blocks()))]


# --- 11.2 -----------------------------------------------------------------------------------------


def count_bytes() -> dict[str, int]:
    """What one token of TinyLlama reads, from its sizes."""
    hidden, inner, layers, vocabulary, kv = 2048, 5632, 22, 32000, 256
    layer = (hidden + 2 * kv) * hidden + hidden * hidden + 2 * inner * hidden + hidden * inner
    coded, head = layers * layer, vocabulary * hidden
    in_file = coded * 18 / 32 + head * 210 / 256
    return {
        "float16": round((coded + head) * 2 / 1e6),
        "file": round(in_file / 1e6),
        "tokens": int(40e9 / in_file),
    }


def test_11_2_counted(impl) -> None:
    """megabytes and tokens per second, counted from the sizes of the matrices"""
    BYTES.each_predicted(
        impl.predicted_decode(),
        count_bytes(),
        "`predicted_decode`",
        "Your number for “{}” is wrong.",
        why="List the matrices that one token reads whole, with their rows and columns. The embedding does not "
        "count, because a token reads one row of it. Multiply by the bytes per weight. Keep all digits until the "
        "last step. There round megabytes to the nearest, and tokens down.",
    )


def observe_11_2(impl):
    return [lambda key=key: str(impl.predicted_decode()[key]) for key in count_bytes()]


# --- 11.3 -----------------------------------------------------------------------------------------


def serves(mod: tvm.IRModule, _unpack: relax.Call, reader: relax.Call) -> bool:
    """What the chapter's two rules say."""
    kernel = mod[reader.args[0]]
    return is_nt_matmul(kernel) or given.takes_rows(kernel)


def find_block(mod: tvm.IRModule) -> relax.DataflowBlock:
    """The dataflow block of "main" that reads the matrix: the last."""
    return [b for b in mod["main"].body.blocks if isinstance(b, relax.DataflowBlock)][-1]


def find_readers(impl, mod: tvm.IRModule) -> list[str]:
    """The kernels of the calls that `fusible` finds, in order."""
    block = find_block(mod)
    asked: list[tuple[relax.Call, relax.Call]] = []

    def ask(unpack: relax.Call, reader: relax.Call) -> bool:
        what = "`fusible` asks `serves` about something that is not a kernel call."
        right = given.is_kernel_call(unpack) and given.is_kernel_call(reader)
        READ_BY.that(right, what, yours=f"{unpack} and {reader}")
        asked.append((unpack, reader))
        return serves(mod, unpack, reader)

    found = impl.fusible(mod, block, ask)
    unpacked: dict[relax.Var, relax.Call] = {}
    for binding in block.bindings:  # a second name of a matrix may be followed
        call = unpacked.get(binding.value, binding.value)
        if given.is_kernel_call(call):
            unpacked[binding.var] = call
    what = "`fusible` asks `serves` about two calls, but the second does not read the result of the first."
    for unpack, reader in asked:
        matrices = [unpacked.get(one) for one in given.arguments(reader)]
        right = any(one is not None and one.same_as(unpack) for one in matrices)
        READ_BY.that(right, what, yours=f"{unpack} and {reader}")
    READ_BY.returns(found, dict, "`fusible`", "a dict of calls")
    calls = [binding.value for binding in block.bindings]
    what = (
        "In the result of `fusible`, keys and values are exchanged: the keys are calls that unpack."
    )
    swapped = any(given.is_kernel_call(key) and given.unpacks(mod, key) for key in found)
    READ_BY.that(not swapped, what, expected="{reader: the call that unpacks its matrix}")
    for reader, unpack in found.items():
        here = [any(call.same_as(one) for call in calls) for one in (reader, unpack)]
        here.append(given.is_kernel_call(reader))
        what = "The result of `fusible` contains something that is not a kernel call of this block."
        READ_BY.that(all(here), what, expected="{reader: the call that unpacks its matrix}")
        own = unpacked.get(reader.args[1][0])
        what = "`fusible` pairs a reader with a call that does not unpack its first argument."
        right = own is not None and own.same_as(unpack)
        READ_BY.that(right, what, yours=f"{reader} with {unpack}")
    return [one.args[0].name_hint for one in calls if any(one.same_as(r) for r in found)]


def test_11_3_readers(impl) -> None:
    """finds products and lookups that can unpack their matrix"""
    for name, (step, readers) in FIRES.items():
        what = f"In a block with {name}, `fusible` finds the wrong calls."
        why = "Only a write between the two calls matters." if "write" in name else ""
        READ_BY.equal(find_readers(impl, function(step)), readers, what, why=why)


def test_11_3_must_stay(impl) -> None:
    """finds none where the floats are needed, or where something may be written in between"""
    for name, step in KEPT.items():
        what = f"`fusible` must find no call here, but finds some: {name}."
        why = WHY_KEPT.get(
            name, "Not every user of this matrix can unpack it, so the floats must be in memory."
        )
        Section(LESSON, "When it must not fire").equal(
            find_readers(impl, function(step)), [], what, why=why
        )


WRITTEN = (
    "The fused kernel reads the codes later: at the place of the product, not of the unpacking. A write in "
    "between may change the codes."
)
WHY_KEPT = {name: WRITTEN for name in KEPT if "write" in name or "written" in name} | {
    "the matrix is both factors": "The fused kernel would get one factor as codes and the other as floats. So the "
    "floats are still needed.",
    "the kernel only looks like dequantize": "The kernel computes other weights, so `given.unpacks` is False for its "
    "call.",
}


def test_11_3_outputs(impl) -> None:
    """finds none if the matrix leaves its block"""
    why = "`fusible` sees one dataflow block. Only there does it know all users of a DataflowVar, and all writes."
    mod = function(FIRES["a product"][0], "an output")
    what = "`fusible` finds a product whose matrix is an output of the block, which other code may read."
    READ_BY.equal(find_readers(impl, mod), [], what, why=why)


def test_11_3_asks(impl) -> None:
    """asks `serves` about each pair, and believes it"""
    mod = function(FIRES["two products and a lookup"][0])
    block = find_block(mod)
    found = impl.fusible(mod, block, lambda unpack, reader: False)
    what = "`fusible` finds calls, but `serves` returned False for all of them."
    READ_BY.equal(len(found), 0, what)
    only_products = lambda unpack, reader: is_nt_matmul(mod[reader.args[0]])  # noqa: E731
    what = "`fusible` finds products of a matrix, but `serves` returned False for another user, a lookup."
    why = "The lookup needs the floats in memory, and the products can read them there."
    READ_BY.equal(len(impl.fusible(mod, block, only_products)), 0, what, why=why)


def test_11_3_one_of_two(impl) -> None:
    """a matrix whose floats are needed does not keep the others from being unpacked by their readers"""

    def step(builder, matrix, x, codes, scales, **_):
        other = floats(builder, codes, scales)
        return [times(x, matrix), times(matrix, other)]

    what = "NT_matmul1 reads two unpacked matrices, and NT_matmul reads the second one too. `fusible` must find "
    what += "NT_matmul1 only."
    why = "A reader unpacks its first argument only. NT_matmul1 needs the floats of its second one in memory."
    READ_BY.equal(find_readers(impl, function(step)), ["NT_matmul1"], what, why=why)


def observe_11_3(impl):
    steps = [*(step for step, _ in FIRES.values()), *KEPT.values()]
    programs = [lambda step=step: str(find_readers(impl, function(step))) for step in steps]
    mod = function(FIRES["a product"][0], "an output")
    return [*programs, lambda: str(find_readers(impl, mod))]


# --- 11.4 -----------------------------------------------------------------------------------------

TARGET = llvm_host()["target"]
DOTS = dot_products(TARGET) or in_vectors(vector_registers(TARGET).lanes("float32"))
VNNI = any(codegen.llvm_cpu_has_features(one, TARGET) for one in ("avx512vnni", "avxvnni"))
# pmaddwd multiplies words, and LLVM writes it by itself: it counts only where `tile.dots.add` writes it
INSTRUCTIONS = re.compile(rf"\b(v?pdpbusd|v?pmaddubsw|{'' if VNNI else 'v?pmaddwd|'}[us]dot)\b")
FASTER = 4  # than one weight at a time, at least; the reference is more than twice that
FEW = 4 if DOTS.lanes > 4 else 8  # lanes of another processor than this one
FORMS = {  # type of a file -> its form
    "Q4_1": PackedLayout(4, 32, True, "float16", DOTS.lanes),
    "Q4_0": PackedLayout(4, 32, False, "float16", DOTS.lanes),
    "Q8_0": PackedLayout(8, 32, False, "float16", DOTS.lanes),
    "Q6_K": PackedLayout(8, 16, False, "float32", DOTS.lanes),
    f"another type, with {FEW} rows side by side": PackedLayout(4, 16, True, "float32", FEW),
}
CASES = {  # what is special -> codes, x, rows of x
    "random codes, and one row of x": ("random", "random", 1),
    "random codes, and three rows of x": ("random", "random", 3),
    "random codes, and more rows of x than a tile has": ("random", "random", DOTS.rows + 1),
    "one code that is not 0": ("one", "random", 1),
    "the largest codes, and the largest integers": ("largest", "largest", 2),
    "the largest codes, and the smallest integers": ("largest", "smallest", 2),
    "an x of zeros": ("random", "zeros", 1),
}


def product_kernel(multiply, form: PackedLayout, n: int, k: int, rows: int) -> tirx.PrimFunc:
    """The product of (n, k) codes with x (rows, k), whose tiles `multiply` computes."""
    shape = [tirx.IntImm("int64", one) for one in (rows, k)]
    dots = DOTS if form.lanes == DOTS.lanes else in_vectors(form.lanes)

    def add(sums, pairs, bits):
        what = f"Your multiply_codes tells `tile.dots.add` that a code has {bits} bits, for a form with {form.bits}."
        why = "The number decides how some processors add: in 16 bits, which a sum of 8-bit codes can exceed."
        KERNEL.that(int(bits) == form.bits, what, expected="`tile.form.bits`", why=why)
        return dots.add(sums, pairs, bits)

    return int8_product(form, n, k, shape, dataclasses.replace(dots, add=add), multiply)


def compile_kernels(kernels: dict[str, tirx.PrimFunc]) -> tvm.runtime.Module:
    mod = {name: func.with_attr("global_symbol", name) for name, func in kernels.items()}
    return compile_once(tvm.IRModule(mod), TARGET)


def draw_codes(form: PackedLayout, kind: str, n: int, k: int) -> QuantizedRows:
    """Codes of one kind. Each group has a scale and a minimum of its own."""
    random = np.random.default_rng(form.bits)
    codes = random.integers(0, 1 << form.bits, (n, k), "u1")
    if kind == "largest":
        codes[...] = (1 << form.bits) - 1
    elif kind == "one":
        codes[...] = 0
        codes[np.arange(n), np.arange(n) * 7 % k] = 1 + np.arange(n) % ((1 << form.bits) - 1)
    scales = random.uniform(0.5, 1.5, (n, k // form.group)).astype(form.scale)
    minima = (-8 * random.uniform(0.5, 1.5, scales.shape)).astype(form.scale)
    return QuantizedRows(form.bits, codes, scales, minima if form.has_minimum else None)


def draw_whole(kind: str, group: int, rows: int, k: int) -> np.ndarray:
    """x (rows, k) that 8 bits represent: integers times a power of two, the largest of each group 127 or -127."""
    random = np.random.default_rng(rows)
    integers = random.integers(-127, 128, (rows, k // group, group))
    if kind != "random":
        integers[...] = {"largest": 127, "smallest": -127, "zeros": 0}[kind]
    else:
        np.put_along_axis(integers, random.integers(0, group, (rows, k // group, 1)), 127, -1)
    powers = 2.0 ** random.integers(-9, -5, (rows, k // group, 1))
    return (integers * powers).reshape(rows, k).astype("float32")


@functools.lru_cache(maxsize=2)  # for an answer: all checks of 11.4 run the same
def make_kernels(impl) -> tvm.runtime.Module:
    """A kernel for each form and each number of rows of x in CASES."""
    made = {}
    for name, form in FORMS.items():
        for rows in {rows for _, _, rows in CASES.values()}:
            size = 3 * form.lanes, 3 * form.group
            made[f"{name}_{rows}"] = product_kernel(impl.multiply_codes, form, *size, rows)
    return compile_kernels(made)


def compute(impl, name: str, case: str) -> tuple[np.ndarray, np.ndarray]:
    """(what the kernel computes for a case, what is right)."""
    form, (kind, x_kind, rows) = FORMS[name], CASES[case]
    n, k = 3 * form.lanes, 3 * form.group
    matrix, x = draw_codes(form, kind, n, k), draw_whole(x_kind, form.group, rows, k)
    out = tvm.runtime.tensor(np.full((rows, n), np.nan, "float32"))
    arrays = map(tvm.runtime.tensor, [*pack(matrix, form), x])
    make_kernels(impl)[f"{name}_{rows}"](*arrays, out)
    return out.numpy(), x.astype("float64") @ matrix.floats().astype("float64").T


def test_11_4_numbers(impl) -> None:
    """the sums are those of the integers, for each form, for few rows of x and for many"""
    why = "given.multiply_one_by_one computes the right sums, one weight at a time. Compare what each of your sums "
    why += "starts from, and which codes and integers your loops multiply."
    for name, form in FORMS.items():
        for case in CASES:
            found, exact = compute(impl, name, case)
            near = 1e-4 * max(np.abs(exact).max(), 1e-30)  # only a few floats are rounded
            wrong = np.argwhere(~np.isclose(found, exact, rtol=1e-4, atol=near))
            at = tuple(wrong[0]) if len(wrong) else (0, 0)
            what = f"With {case}, the kernel of multiply_codes gives wrong sums for a matrix in {name}: {form.bits} "
            what += f"bits, groups of {form.group}, {'with' if form.has_minimum else 'without'} minimum."
            yours = f"row {at[0]} of x with row {at[1]} of the matrix gives {found[at]:.6g}"
            KERNEL.that(not len(wrong), what, expected=f"{exact[at]:.6g}", yours=yours, why=why)


def has_instruction(impl, name: str) -> bool:
    """Whether the kernel for the type `name` multiplies bytes by the processor's instruction, if that has one."""
    form = FORMS[name]
    func = product_kernel(impl.multiply_codes, form, form.lanes, 2 * form.group, 1)
    text = compile_kernels({"main": func}).mod.inspect_source("asm")
    return not dot_products(TARGET) or bool(INSTRUCTIONS.search(text))


def test_11_4_instruction(impl) -> None:
    """the processor's instruction for products of bytes is in the code"""
    for name in ("Q4_1", "Q8_0"):
        what = f"The code of your kernel for {name} has no instruction that multiplies bytes and adds up the products."
        why = "tile.dots.add(sums, pairs, bits) writes this processor's instruction. Give it vectors of codes, and x "
        why += "as words of four integers."
        wanted = "vpdpbusd, vpmaddubsw or sdot"
        KERNEL.that(has_instruction(impl, name), what, expected=wanted, why=why)


def measure_speedup(impl) -> float:
    """How many times as fast as one weight at a time a product with one row of x is, measured in turns.

    The matrix is so small that it runs on one thread and stays in a cache. The fastest of many runs counts, because
    other programs make a run only slower.
    """
    form, n, k = FORMS["Q4_1"], 4 * DOTS.lanes, 1024
    ways = {"yours": impl.multiply_codes, "plain": given.multiply_one_by_one}
    built = compile_kernels(
        {name: product_kernel(one, form, n, k, 1) for name, one in ways.items()}
    )
    arrays = [*pack(draw_codes(form, "random", n, k), form), draw_whole("random", form.group, 1, k)]
    tensors = [tvm.runtime.tensor(one) for one in (*arrays, np.empty((1, n), "float32"))]
    calls = {name: built[name] for name in ways}
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(50):
        for name, call in calls.items():
            start = time.perf_counter()
            call(*tensors)
            taken[name].append(time.perf_counter() - start)
    return min(taken["plain"]) / min(taken["yours"])


def test_11_4_fast(impl) -> None:
    """the kernel is several times as fast as one weight at a time"""
    found = measure_speedup(impl)
    what = f"A product with one row of x is {found:.1f} times as fast as with given.multiply_one_by_one, in turns."
    why = "In a decode step, the chat runs this loop for all weights of the model. Keep the sums of a row of x in one "
    why += "vector, unpack a vector of codes with one operation, and make a float of a sum only once per group."
    KERNEL.that(found >= FASTER, what, expected=f"{FASTER} times as fast or more", why=why)


def observe_11_4(impl):
    def numbers(name: str, case: str) -> str:
        """The sums in hundredths of the largest: what is wrong looks alike only if the sums are the same."""
        found, exact = compute(impl, name, case)
        return str(np.round(100 * found / (np.abs(exact).max() or 1.0)).tolist())

    cases = itertools.product(FORMS, CASES)
    found = [lambda name=name, case=case: numbers(name, case) for name, case in cases]
    return [
        *found,
        *(lambda name=name: str(has_instruction(impl, name)) for name in ("Q4_1", "Q8_0")),
    ]


# --- 11.5 -----------------------------------------------------------------------------------------

NEAR = 0.97  # of the best that the budget allows, so that a choice that is nearly as good passes


def count_megabytes(kinds) -> float:
    """Megabytes per token that 8 bits add for `kinds`."""
    return sum(given.KINDS[kind].in_8_bits - given.KINDS[kind].in_4_bits for kind in kinds)


def sum_gain(kinds) -> float:
    """The loss that 8 bits save for `kinds`."""
    return sum(given.KINDS[kind].loss for kind in kinds)


def find_best() -> tuple[str, ...]:
    """The choice within the budget that saves most."""
    sizes = range(len(given.KINDS) + 1)
    choices = [c for size in sizes for c in itertools.combinations(given.KINDS, size)]
    return max((c for c in choices if count_megabytes(c) <= given.BUDGET), key=sum_gain)


def read_choice(impl) -> list[str]:
    found = impl.kept_in_8_bits()
    several = isinstance(found, Set | list | tuple)
    right = several and all(isinstance(kind, str) and kind in given.KINDS for kind in found)
    what = "`kept_in_8_bits` does not return a set of kinds."
    EIGHT.that(right, what, expected="a set of " + ", ".join(given.KINDS), yours=repr(found)[:200])
    return sorted(set(found))


def test_11_5_within_budget(impl) -> None:
    """the choice costs no more than the budget"""
    kinds = read_choice(impl)
    what = f"Your choice adds {count_megabytes(kinds):.1f} MB per token, and the budget is {given.BUDGET} MB."
    why = "A kind costs the difference of its last two columns in the table."
    EIGHT.that(count_megabytes(kinds) <= given.BUDGET, what, why=why)


def test_11_5_best(impl) -> None:
    """no other choice within the budget saves clearly more"""
    kinds = read_choice(impl)
    what = (
        f"You chose {', '.join(kinds) or 'nothing'}. Another choice within the budget saves more."
    )
    why = "Divide the loss of each kind by the megabytes that 8 bits add. Fill the budget from the top, and see "
    why += "whether a smaller kind fits into what is left."
    EIGHT.that(sum_gain(kinds) >= NEAR * sum_gain(find_best()), what, why=why)


def observe_11_5(impl):
    return [
        lambda: str(read_choice(impl)),
        lambda: str(count_megabytes(read_choice(impl)) <= given.BUDGET),
    ]
