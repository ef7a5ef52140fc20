"""The checks of chapter 11: blocks of 4-bit weights, passes that move their unpacking, integers, bytes, seconds."""

from __future__ import annotations

import itertools
import struct

import numpy as np
import tvm
from tvm import relax

from chapters.ch11_a_real_model import given
from chapters.ch11_a_real_model.check_programs import (
    FIRES,
    KEPT,
    READERS,
    function,
    two_matrices,
)
from chapters.checking import expect
from chapters.checking.expect import Section
from chapters.kit.cpu.nt_matmul import is_nt_matmul

LESSON = "chapters/ch11_a_real_model/lesson.md"
BLOCK = Section(LESSON, "A block of Q4_1")
MISREAD = Section(LESSON, "Three ways to misread a block")
BYTES = Section(LESSON, "What a token costs")
BOTH = Section(LESSON, "One kernel for both")
READ_BY = Section(LESSON, "Who reads the matrix")
ROW = Section(LESSON, "A row of the embedding")
INTEGERS = Section(LESSON, "The product with integers")
EIGHT = Section(LESSON, "Which matrices deserve 8 bits")
FIRST = Section(LESSON, "Before the first token")
RATES = Section(LESSON, "What a token costs")

LIMITS = {"test_11_6_passes": 60}

# --- 11.2 -----------------------------------------------------------------------------------------


def weights_of(raw: np.ndarray) -> np.ndarray:
    """The weights of a block in float64, one after the other."""
    scale, minimum = struct.unpack("<ee", raw.tobytes()[:4])
    codes = [raw[4 + i % 16] >> (4 * (i // 16)) & 15 for i in range(32)]
    return np.array([scale * int(code) + minimum for code in codes])


def readers_fooled(raw: np.ndarray) -> list[str]:
    """The careless readers that give other weights for a block."""
    right = weights_of(raw)
    return [
        name
        for name, read in given.CARELESS.items()
        if not np.allclose(read(raw), right, atol=1e-3)
    ]


def telling_blocks(impl) -> dict[str, np.ndarray]:
    found = impl.telling_blocks()
    expect.has_keys(found, given.CARELESS, "`telling_blocks` does not return one block per reader.")
    for name, raw in found.items():
        what = f"The block for “{name}” is not a block of Q4_1."
        yours = f"{type(raw).__name__} {getattr(raw, 'dtype', '')} {getattr(raw, 'shape', '')}"
        right = isinstance(raw, np.ndarray) and (raw.shape, str(raw.dtype)) == ((20,), "uint8")
        BLOCK.that(right, what, expected="a NumPy array uint8 (20,)", yours=yours)
        what = f"The block for “{name}” has weights that are infinite or NaN."
        why = "With an infinite or NaN scale or minimum, all readers give the same useless weights."
        BLOCK.that(bool(np.isfinite(weights_of(raw)).all()), what, why=why)
    return found


def test_11_2_alone(impl) -> None:
    """each reader alone misreads its block"""
    for name, raw in telling_blocks(impl).items():
        fooled = readers_fooled(raw)
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


def observe_11_2(impl):
    def fooled() -> str:
        return str({name: readers_fooled(raw) for name, raw in telling_blocks(impl).items()})

    return [fooled, lambda: str(sorted(impl.telling_blocks()))]


# --- 11.3 -----------------------------------------------------------------------------------------


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


def test_11_3_counted(impl) -> None:
    """megabytes and tokens per second, counted from the sizes of the matrices"""
    BYTES.each_predicted(
        impl.predicted_decode(),
        count_bytes(),
        "`predicted_decode`",
        "Your number for “{}” is wrong.",
        why="List the matrices that one token reads whole, with their rows and columns. The embedding does not "
        "count, because a token reads one row of it. Multiply by the bytes per weight. Keep all digits until the "
        "last step, and round there.",
    )


def observe_11_3(impl):
    return [lambda key=key: str(impl.predicted_decode()[key]) for key in count_bytes()]


# --- 11.5 -----------------------------------------------------------------------------------------


def serves(mod: tvm.IRModule, _unpack: relax.Call, reader: relax.Call) -> bool:
    """What the chapter's two rules say."""
    kernel = mod[reader.args[0]]
    return is_nt_matmul(kernel) or given.takes_rows(kernel)


def block_of(mod: tvm.IRModule) -> relax.DataflowBlock:
    """The dataflow block of "main" that reads the matrix: the last."""
    return [b for b in mod["main"].body.blocks if isinstance(b, relax.DataflowBlock)][-1]


def found_in(impl, mod: tvm.IRModule) -> list[str]:
    """The kernels of the calls that `fusible` finds, in order."""
    block = block_of(mod)
    asked: list[tuple[relax.Call, relax.Call]] = []

    def ask(unpack: relax.Call, reader: relax.Call) -> bool:
        asked.append((unpack, reader))
        return serves(mod, unpack, reader)

    found = impl.fusible(mod, block, ask)
    unpacked = {b.var: b.value for b in block.bindings if given.is_kernel_call(b.value)}
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
        here = [any(one.same_as(call) for call in calls) for one in (reader, unpack)]
        what = "The result of `fusible` contains something that is not a call of this block."
        READ_BY.that(all(here), what, expected="{reader: the call that unpacks its matrix}")
        matrix = reader.args[1][0]
        bound = next(b for b in block.bindings if b.value.same_as(unpack)).var
        what = "`fusible` pairs a reader with a call that unpacks another matrix."
        READ_BY.that(matrix.same_as(bound), what, yours=f"{reader} with {unpack}")
    return [one.args[0].name_hint for one in calls if any(one.same_as(r) for r in found)]


def test_11_5_readers(impl) -> None:
    """finds products and lookups that can unpack their matrix"""
    for name, (step, _) in FIRES.items():
        what = f"In a block with {name}, `fusible` finds the wrong calls."
        why = "Only a write between the two calls matters." if "write" in name else ""
        READ_BY.equal(found_in(impl, function(step)), READERS[name], what, why=why)


def test_11_5_must_stay(impl) -> None:
    """finds none where the floats are needed, or where something may be written in between"""
    for name, (step, _) in KEPT.items():
        what = f"`fusible` must find no call here, but finds some: {name}."
        why = WHY_KEPT.get(
            name, "There is no kernel that unpacks for this user, so it needs the floats in memory."
        )
        Section(LESSON, "When it must not fire").equal(
            found_in(impl, function(step)), [], what, why=why
        )


WRITTEN = (
    "The fused kernel reads the codes later: at the place of the product, not of the unpacking. A write in "
    "between may change the codes."
)
WHY_KEPT = {name: WRITTEN for name in KEPT if "write" in name or "written" in name} | {
    "the matrix is both factors": "The fused kernel would get one factor as codes and the other as floats. So the "
    "floats are still needed.",
}


def test_11_5_other_blocks(impl) -> None:
    """a matrix that another block unpacks, or that leaves its block"""
    why = "`fusible` sees one dataflow block. Only there does it know all users of a DataflowVar, and all writes."
    for where, said in (
        ("two blocks", "unpacked in another block"),
        ("an output", "an output of the block, which other code may read"),
    ):
        mod = function(FIRES["a product"][0], where)
        what = f"`fusible` finds a product whose matrix is {said}."
        READ_BY.equal(found_in(impl, mod), [], what, why=why)


def test_11_5_asks(impl) -> None:
    """asks `serves` about each pair, and believes it"""
    mod = function(FIRES["two products and a lookup"][0])
    block = block_of(mod)
    found = impl.fusible(mod, block, lambda unpack, reader: False)
    what = "`fusible` finds calls, but `serves` returned False for all of them."
    READ_BY.equal(len(found), 0, what)
    only_products = lambda unpack, reader: is_nt_matmul(mod[reader.args[0]])  # noqa: E731
    what = "`fusible` finds products of a matrix, but `serves` returned False for another user, a lookup."
    why = "The lookup needs the floats in memory, and the products can read them there."
    READ_BY.equal(len(impl.fusible(mod, block, only_products)), 0, what, why=why)


def test_11_5_one_of_two(impl) -> None:
    """a matrix whose floats are needed does not keep the others from being unpacked by their readers"""

    def step(builder, matrix, x, codes, scales, **_):
        first, second = two_matrices(builder, matrix, x, codes, scales)
        return [first, second, relax.op.negative(matrix)]

    what = "One of two matrices has a second user, `negative`. `fusible` must find the other one's product only."
    READ_BY.equal(found_in(impl, function(step)), ["NT_matmul"], what)


def observe_11_5(impl):
    cases = {**FIRES, **KEPT}
    programs = [lambda step=step: str(found_in(impl, function(step))) for step, _ in cases.values()]
    outside = [function(FIRES["a product"][0], where) for where in ("two blocks", "an output")]
    return [*programs, *(lambda mod=mod: str(found_in(impl, mod)) for mod in outside)]


# --- 11.7 -----------------------------------------------------------------------------------------


def weights(codes: np.ndarray, scale: float, minimum: float) -> np.ndarray:
    return scale * codes.astype("float64") + minimum


def product(impl, codes, scale: float, minimum: float, x) -> float:
    """What `group_product` returns, a number; its arrays stay as they are."""
    codes, x = np.asarray(codes, "uint8"), np.asarray(x, "float32")
    before = codes.copy(), x.copy()
    try:
        with np.errstate(divide="raise", invalid="raise"):
            found = impl.group_product(codes, scale, minimum, x)
    except FloatingPointError as error:
        what = "`group_product` divides by zero or computes NaN."
        why = "If all x are 0, so is the step. And a float32 as small as 1e-43, divided by 127, becomes 0."
        raise INTEGERS.failed(what, yours=f"{error}, for x = {x[:4].tolist()}", why=why) from error
    what = "`group_product` does not return a number."
    INTEGERS.that(np.ndim(found) == 0 and found is not None, what, yours=type(found).__name__)
    what = "`group_product` changed an array that it was given."
    same = np.array_equal(codes, before[0]) and np.array_equal(x, before[1])
    INTEGERS.that(same, what)
    return float(found)


def same_number(found: float, wanted: float, what: str, atol: float = 1e-6, **more) -> None:
    """Within a ten-thousandth, and `atol` for sums near zero: the scales are floats, all else is exact."""
    INTEGERS.close(np.float64(found), np.float64(wanted), what, rtol=1e-4, atol=atol, **more)


def given_as(codes, x) -> str:
    """ "codes [3, 5], x [127.0, 2.0]", for a message; of a long group, how it begins."""
    first, more = slice(4), f" and {len(x) - 4} more" * (len(x) > 4)
    return f"codes {codes[first]}{more}, x {x[first]}{more}"


# x that 8 bits represent exactly, because its largest element is 127 times a power of two: name -> codes, scale,
# minimum, x
WHOLE = {
    "one code": ([1], 1.0, 0.0, [127.0]),
    "a minimum": ([0, 0], 1.0, 2.0, [127.0, 1.0]),
    "a negative scale": ([3, 5], -0.5, 0.25, [127.0, 2.0]),
    "a scale of one half": ([2, 6], 0.5, 0.0, [127.0, -3.0]),
    "a negative element as the largest": ([1, 2, 3], 1.0, 1.0, [-127.0, 5.0, 2.0]),
    "small numbers": ([4, 9], 1.0, -1.0, [127 / 1024, -64 / 1024]),
    "very small numbers": ([15, 15], 1.0, 0.0, [127 * 2.0**-140, 2.0**-140]),
    "a thousand large products": ([15] * 1000, 1.0, 0.0, [127.0] * 1000),
    "a thousand negative ones": ([15] * 1000, 1.0, -3.0, [-127.0] * 1000),
    "nothing but zeros": ([7, 8, 9], 1.0, 5.0, [0.0, 0.0, 0.0]),
}
# the elements between the integers go to the nearest, in both sums; the step is 1, and so is the scale
BETWEEN = [  # codes, minimum, x, the integers
    ([1, 10, 3, 5], 0.0, [127.0, 0.6, -0.6, -2.4], [127, 1, -1, -2]),
    ([1, 10, 3, 5], 0.0, [-127.0, 0.6, -0.7, -2.4], [-127, 1, -1, -2]),
    ([1, 10, 3, 5], -20.0, [127.0, 0.6, -0.2, 2.7], [127, 1, 0, 3]),
]


def test_11_7_exact(impl) -> None:
    """no error where 8 bits represent x"""
    for name, (codes, scale, minimum, x) in WHOLE.items():
        found = product(impl, codes, scale, minimum, x)
        wanted = float(weights(np.array(codes), scale, minimum) @ np.array(x, "float64"))
        what = f"With {name} the product is wrong, although 8 bits represent each x exactly: {given_as(codes, x)}, "
        what += f"scale {scale}, minimum {minimum}."
        why = "The result is step * (scale * sum(code * q) + minimum * sum(q)), where the largest |q| is 127. A code "
        why += "is up to 15, so products and sums need int32."
        same_number(found, wanted, what, why=why, atol=1e-6 * (abs(wanted) or 1.0))


def test_11_7_rounded(impl) -> None:
    """elements between two integers go to the nearest one"""
    why = "`astype` cuts off the digits behind the point, and `floor` rounds down. And the integers belong into both "
    why += "sums: x itself is in neither."
    for codes, minimum, x, integers in BETWEEN:
        what = f"The largest |x| is 127 here, so each x must become the nearest integer: {given_as(codes, x)}, "
        what += f"scale 1, minimum {minimum}."
        wanted = float(weights(np.array(codes), 1.0, minimum) @ np.array(integers))
        same_number(product(impl, codes, 1.0, minimum, x), wanted, what, why=why)


def test_11_7_random(impl) -> None:
    """random x: the error is at most half a step per weight"""
    random = np.random.default_rng(7)
    for k in (32, 64):
        codes = random.integers(0, 16, k)
        x = random.standard_normal(k).astype("float32")
        found = product(impl, codes, 0.25, -1.5, x)
        w = weights(codes, 0.25, -1.5)
        bound = float(np.abs(x).max()) / 254 * np.abs(w).sum()
        exact = float(w @ x.astype("float64"))
        what = "On random numbers your error is larger than rounding x to 8 bits can explain."
        right = abs(found - exact) <= bound * 1.001
        INTEGERS.that(right, what, expected=f"{exact:.6g} within {bound:.3g}", yours=f"{found:.6g}")


def observe_11_7(impl):
    def look(codes, scale, minimum, x) -> str:
        return f"{product(impl, codes, scale, minimum, x):.6g}"

    between = [(codes, 1.0, minimum, x) for codes, minimum, x, _ in BETWEEN]
    return [lambda case=case: look(*case) for case in (*WHOLE.values(), *between)]


# --- 11.8 -----------------------------------------------------------------------------------------

NEAR = 0.97  # of the best that the budget allows, so that a choice that is nearly as good passes


def cost(kinds) -> float:
    """Megabytes per token that 8 bits add for `kinds`."""
    return sum(given.KINDS[kind].in_8_bits - given.KINDS[kind].in_4_bits for kind in kinds)


def gain(kinds) -> float:
    """The loss that 8 bits save for `kinds`."""
    return sum(given.KINDS[kind].loss for kind in kinds)


def best() -> tuple[str, ...]:
    """The choice within the budget that saves most."""
    sizes = range(len(given.KINDS) + 1)
    choices = [c for size in sizes for c in itertools.combinations(given.KINDS, size)]
    return max((c for c in choices if cost(c) <= given.BUDGET), key=gain)


def chosen(impl) -> list[str]:
    found = impl.kept_in_8_bits()
    right = isinstance(found, set | frozenset | list | tuple) and set(found) <= set(given.KINDS)
    what = "`kept_in_8_bits` does not return a set of kinds."
    EIGHT.that(right, what, expected="a set of " + ", ".join(given.KINDS), yours=repr(found)[:200])
    return sorted(found)


def test_11_8_within_budget(impl) -> None:
    """the choice costs no more than the budget"""
    kinds = chosen(impl)
    what = f"Your choice adds {cost(kinds):.1f} MB per token, and the budget is {given.BUDGET} MB."
    why = "A kind costs the difference of its last two columns in the table."
    EIGHT.that(cost(kinds) <= given.BUDGET, what, why=why)


def test_11_8_best(impl) -> None:
    """no other choice within the budget saves clearly more"""
    kinds = chosen(impl)
    what = (
        f"You chose {', '.join(kinds) or 'nothing'}. Another choice within the budget saves more."
    )
    why = "Divide the loss of each kind by the megabytes that 8 bits add. Fill the budget from the top, and see "
    why += "whether a smaller kind fits into what is left."
    EIGHT.that(gain(kinds) >= NEAR * gain(best()), what, why=why)


def observe_11_8(impl):
    return [lambda: str(chosen(impl)), lambda: str(cost(chosen(impl)) <= given.BUDGET)]
