"""The checks of chapter 11: blocks of 4-bit weights, passes that move their unpacking, integers, bytes, seconds."""

from __future__ import annotations

import itertools
import statistics
import struct
from collections.abc import Callable

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, te, tirx
from tvm.s_tir import SBlockRealize

from chapters.ch11_a_real_model import given
from chapters.ch11_a_real_model.check_programs import (
    FIRES,
    FORM,
    KEPT,
    READERS,
    K,
    N,
    float_copies,
    function,
    random_codes,
    two_matrices,
)
from chapters.checking import expect
from chapters.checking.expect import Section
from chapters.checking.judge import judge_pass
from chapters.checking.programs import run_kernel
from chapters.kit.cpu.nt_matmul import is_nt_matmul
from chapters.kit.ir.tensor_ir import count, nodes
from chapters.kit.quantized.blocks import pack
from chapters.kit.quantized.dequantize import kernel
from solutions.ch03_transpose_matmul.fuse_transpose_matmul import nt_matmul

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

# --- 11.1 -----------------------------------------------------------------------------------------


def block(scale: float, minimum: float, codes) -> np.ndarray:
    """A block of Q4_1: uint8 (20,), for 32 codes."""
    low, high = np.asarray(codes, "uint8").reshape(2, 16)
    return np.frombuffer(
        struct.pack("<ee", scale, minimum) + bytes(low | high << 4), "uint8"
    ).copy()


def weights_of(raw: np.ndarray) -> np.ndarray:
    """The weights of a block in float64, one after the other."""
    scale, minimum = struct.unpack("<ee", raw.tobytes()[:4])
    codes = [raw[4 + i % 16] >> (4 * (i // 16)) & 15 for i in range(32)]
    return np.array([scale * int(code) + minimum for code in codes])


def random_blocks() -> list[np.ndarray]:
    random = np.random.default_rng(11)
    return [
        block(random.uniform(0.5, 2), random.uniform(-9, 9), random.integers(0, 16, 32))
        for _ in range(3)
    ]


UP, SAME = np.arange(32) % 16, np.full(32, 3)
ONE_THING = {  # what a block shows -> the block
    "codes 0 to 15, twice": block(1, 0, UP),
    "codes 0 in the low halves and 15 in the high halves": block(1, 0, np.arange(32) // 16 * 15),
    "scale 0.5": block(0.5, 0, SAME),
    "minimum -2": block(1, -2, SAME),
    "a scale of 1.001": block(1.001, 0.3, UP),
    "scale 0": block(0, 7, UP),
    "scale -1": block(-1, 3, UP),
}


def unpacked(impl, raw: np.ndarray) -> np.ndarray:
    """What `unpack` returns, a float32 array (32,), and `raw` stays as it is."""
    before = raw.copy()
    found = impl.unpack(raw)
    BLOCK.returns(found, np.ndarray, "`unpack`", "an array", expected="float32 (32,)")
    what = "`unpack` changed the block that it was given."
    why = "The block may be a part of a file that is mapped into memory. Then your write changes the file."
    BLOCK.that(np.array_equal(raw, before), what, why=why)
    what = "`unpack` returns an array of a wrong shape or dtype."
    BLOCK.equal((found.shape, str(found.dtype)), ((32,), "float32"), what)
    return found


def test_11_1_parts(impl) -> None:
    """each part of a block has its effect: order, scale, minimum"""
    for name, raw in ONE_THING.items():
        what = f"`unpack` gives wrong weights for a block with {name}."
        why = "A weight is scale * code + minimum; byte 4 + i holds the codes of the weights i and 16 + i."
        BLOCK.close(unpacked(impl, raw), weights_of(raw), what, why=why)


def test_11_1_random(impl) -> None:
    """random blocks"""
    for raw in random_blocks():
        BLOCK.close(
            unpacked(impl, raw), weights_of(raw), "`unpack` gives wrong weights for a random block."
        )


def observe_11_1(impl):
    def look(raw: np.ndarray) -> str:
        found = impl.unpack(raw.copy())
        return f"{found.dtype} {np.round(found, 4).tolist()}"

    return [lambda raw=raw: look(raw) for raw in (*ONE_THING.values(), *random_blocks())]


# --- 11.2 -----------------------------------------------------------------------------------------


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


# --- 11.4 -----------------------------------------------------------------------------------------


def func(inputs: list[te.Tensor], out: te.Tensor) -> tirx.PrimFunc:
    return te.create_prim_func([*inputs, out], "int64").without_attr("global_symbol")


def two_kernels() -> tuple[tirx.PrimFunc, tirx.PrimFunc]:
    """(a, b, result) and (result, c, sums): both have a buffer inside; attributes differ."""
    a, b = te.placeholder((3, 5), name="a"), te.placeholder((3, 5), name="b")
    twice = te.compute((3, 5), lambda i, j: a[i, j] * 2.0, name="twice")
    first = func([a, b], te.compute((3, 5), lambda i, j: twice[i, j] - b[i, j], name="minus"))
    m, c = te.placeholder((3, 5), name="m"), te.placeholder((5,), name="c")
    moved = te.compute((3, 5), lambda i, j: m[i, j] + c[j], name="moved")
    k = te.reduce_axis((0, 5), name="k")
    second = func(
        [m, c], te.compute((3,), lambda i: te.sum(moved[i, k] * m[i, k], axis=k), name="s")
    )
    return first.with_attr("op_pattern", 2), second.with_attr("op_pattern", 4)


def matrix_and_product() -> tuple[tirx.PrimFunc, tirx.PrimFunc]:
    """A kernel that unpacks, and an NT_matmul with two rows."""
    shape = [tirx.IntImm("int64", one) for one in (N, K)]
    w, x = te.placeholder(shape, name="w"), te.placeholder((2, shape[1]), name="x")
    return kernel(FORM, (N, K)), func([w, x], nt_matmul(w, x, "float32"))


def joined(impl, first: tirx.PrimFunc, second: tirx.PrimFunc) -> tirx.PrimFunc:
    found = impl.joined(first, second)
    BOTH.returns(found, tirx.PrimFunc, "`joined`", "a PrimFunc")
    shapes = [
        (list(map(int, one.shape)), str(one.dtype))
        for one in found.params
        if tirx.is_buffer_var(one)
    ]
    wanted = [
        (list(map(int, one.shape)), str(one.dtype))
        for one in (*first.params[:-1], *second.params[1:])
    ]
    what = "The joined kernel has the wrong parameters."
    why = "Callers pass the inputs of the first kernel, then the other parameters of the second, the result last."
    BOTH.equal(shapes, wanted, what, why=why)
    body = found.body
    what = "The body of the joined kernel is not one root block."
    why = "Passes and schedules expect one root block, which contains the blocks of both kernels."
    BOTH.that(isinstance(body, SBlockRealize), what, why=why)
    shared = first.params[-1]
    here = [b for b in body.block.alloc_buffers if tuple(b.shape) == tuple(shared.shape)]
    what = "The joined kernel's root block does not allocate the result of the first kernel."
    why = "The result is no longer a parameter, so the root block must allocate it."
    BOTH.that(bool(here), what, expected="one more buffer in alloc_buffers", why=why)
    return found


def lost_buffers(found: tirx.PrimFunc) -> list[str]:
    """The buffers that a kernel uses and that are neither parameters nor allocated."""
    used = dict.fromkeys(v for v in nodes(found.body, tirx.Var) if tirx.is_buffer_var(v))
    known = [*found.params, *found.body.block.alloc_buffers]
    return [one.name for one in used if not any(one.same_as(other) for other in known)]


def test_11_4_one_kernel(impl) -> None:
    """parameters, buffers and attributes of the joined kernel"""
    for first, second in (two_kernels(), matrix_and_product()):
        found = joined(impl, first, second)
        roots = [b for b in nodes(found.body, tvm.s_tir.SBlock) if b.name_hint == "root"]
        what = "The joined kernel has a root block inside its root block."
        why = "Join the bodies of the two root blocks, `func.body.block.body`, and not the bodies of the kernels."
        BOTH.that(len(roots) == 1, what, expected="one root block", yours=f"{len(roots)}", why=why)
        own = second.params[0]
        what = f"The second kernel still reads its own variable `{own.name}`, which no block fills."
        why = "Each kernel has its own variable for the matrix. Replace the second kernel's by the first kernel's."
        BOTH.that(count(found.body, own) == 0, what, why=why)
        what = "The joined kernel uses buffers that are neither parameters nor allocated."
        why = "alloc_buffers must list the buffers of both kernels, and the matrix that they share."
        lost = lost_buffers(found)
        BOTH.that(not lost, what, yours=", ".join(lost), expected="none", why=why)
        what = "The joined kernel does not have the attributes of the second kernel."
        why = "FuseOps reads the attribute op_pattern to decide which epilogues it may add to the product."
        same = tvm_ffi.structural_equal(found.attrs, second.attrs)
        BOTH.that(same, what, expected=str(second.attrs), yours=str(found.attrs), why=why)


def test_11_4_numbers(impl) -> None:
    """the joined kernel gives the numbers of both"""
    random = np.random.default_rng(4)
    a, b, c = (random.standard_normal(s).astype("float32") for s in ((3, 5), (3, 5), (5,)))
    m = 2 * a.astype("float64") - b
    exact = ((m + c) * m).sum(axis=1)
    found = run_kernel(joined(impl, *two_kernels()), a, b, c, np.full(3, np.nan, "float32"))
    BOTH.close(
        found,
        exact,
        "The joined kernel gives other numbers than the two kernels, run one after the other.",
        atol=1e-5,
    )
    codes = random_codes()
    x = random.standard_normal((2, K)).astype("float32")
    arrays = [*pack(codes, FORM), x, np.full((2, N), np.nan, "float32")]
    exact = x.astype("float64") @ codes.floats().astype("float64").T
    what = "The unpacking and the product give other numbers when they are joined."
    found = run_kernel(joined(impl, *matrix_and_product()), *arrays)
    BOTH.close(found, exact, what, atol=1e-5 * np.abs(exact).max())


def observe_11_4(impl):
    def look(kernels: Callable) -> str:
        found = impl.joined(*kernels())
        allocated = [(b.name, list(map(int, b.shape))) for b in found.body.block.alloc_buffers]
        names = [one.name for one in found.params]
        blocks = [one.name_hint for one in nodes(found.body, tvm.s_tir.SBlock)]
        return f"{names} {allocated} {blocks} {lost_buffers(found)} {found.attrs}"

    def numbers() -> str:
        a, b, c = (np.full(s, v, "float32") for s, v in (((3, 5), 3), ((3, 5), 1), ((5,), 2)))
        found = run_kernel(impl.joined(*two_kernels()), a, b, c, np.full(3, np.nan, "float32"))
        return "right" if np.allclose(found, 175) else "wrong"

    return [lambda: look(two_kernels), lambda: look(matrix_and_product), numbers]


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


# --- 11.6 -----------------------------------------------------------------------------------------


def take_rows() -> tirx.PrimFunc:
    """The kernel (matrix, numbers, result) that copies three rows of a matrix, as TVM writes it."""
    builder = relax.BlockBuilder()
    matrix = relax.Var("matrix", relax.TensorType((N, K), "float32"))
    numbers = relax.Var("numbers", relax.TensorType((3,), "int32"))
    with builder.function("main", [matrix, numbers]):
        with builder.dataflow():
            rows = builder.emit_output(relax.op.take(matrix, numbers, axis=0, mode="clip"))
        builder.emit_func_output(rows)
    mod = relax.transform.LegalizeOps()(builder.get())
    return next(f for f in mod.functions.values() if isinstance(f, tirx.PrimFunc))


def test_11_6_no_matrix(impl) -> None:
    """the kernel has no buffer of the size of the matrix, and takes codes, scales and numbers"""
    found = impl.unpacks_rows(kernel(FORM, (N, K)), take_rows())
    ROW.returns(found, tirx.PrimFunc, "`unpacks_rows`", "a PrimFunc")
    buffers = [list(map(int, one.shape)) for one in found.body.block.alloc_buffers]
    what = "The kernel still has a buffer for the whole matrix."
    why = f"It unpacks {N} rows to copy 3. Inline the unpacking: then each weight is computed where it is read."
    ROW.that([N, K] not in buffers, what, yours=str(buffers), expected="no buffer", why=why)
    what = "The kernel does not have the attributes of `take`."
    ROW.that(tvm_ffi.structural_equal(found.attrs, take_rows().attrs), what, yours=str(found.attrs))
    what = "The kernel has the wrong parameters."
    shapes = [list(map(int, one.shape)) for one in found.params]
    wanted = [list(shape) for shape, _ in FORM.shapes(N, K)] + [[3], [3, K]]
    ROW.equal(shapes, wanted, what)


def test_11_6_numbers(impl) -> None:
    """the rows have the numbers of NumPy; a number outside is clipped as before"""
    found = impl.unpacks_rows(kernel(FORM, (N, K)), take_rows())
    codes, numbers = random_codes(), np.array([N - 1, 0, 99], "int32")
    out = run_kernel(found, *pack(codes, FORM), numbers, np.full((3, K), np.nan, "float32"))
    exact = codes.floats().astype("float64")[np.clip(numbers, 0, N - 1)]
    ROW.close(
        out, exact, "The rows that the kernel copies have wrong numbers.", rtol=1e-6, atol=1e-6
    )


def other_readers() -> dict[str, tirx.PrimFunc]:
    """Kernels whose first parameter is a matrix, and that do not copy rows of it."""
    shape = [tirx.IntImm("int64", one) for one in (N, K)]
    m, numbers = te.placeholder(shape, name="m"), te.placeholder((K,), "int32", "numbers")
    k = te.reduce_axis((0, K), name="k")
    at = lambda i: te.max(te.min(numbers[i], K - 1), 0)  # noqa: E731
    return {
        "a product": matrix_and_product()[1],
        "the sums of rows": func([m], te.compute((N,), lambda i: te.sum(m[i, k], axis=k))),
        "a copy of columns": func([m, numbers], te.compute(shape, lambda i, j: m[i, at(j)])),
        "a product with each row's own number": func(
            [m, numbers], te.compute((K, K), lambda i, j: m[i % N, j] * numbers[i])
        ),
    }


def test_11_6_others(impl) -> None:
    """a kernel that does not copy rows is not served"""
    for name, reader in other_readers().items():
        found = impl.unpacks_rows(kernel(FORM, (N, K)), reader)
        what = f"`unpacks_rows` returns a kernel for {name}."
        why = "This kernel may read a weight many times. With an inlined expression, it would unpack it each time."
        ROW.that(found is None, what, expected="None", yours=type(found).__name__, why=why)


def test_11_6_passes(impl) -> None:
    """both passes on a model: no float copy is left, and the numbers are those of NumPy"""
    both = tvm.transform.Sequential([impl.FuseDequantizeTake(), impl.FuseDequantizeMatmul()])
    whose, copies = "FuseDequantizeTake, then FuseDequantizeMatmul,", "float copies of the matrix"
    step, title = FIRES["two products and a lookup"][0], "two products and a lookup"
    looks = {"calls": {copies: 0}, "count": lambda mod: {copies: float_copies(mod)}, "read": ROW}
    why = "The products and the lookup can unpack the matrix themselves, so no kernel unpacks it alone."
    judge_pass(both, function(step), whose, title, why=why, **looks)
    step, title = KEPT["a second product does not transpose the matrix"][0], "such a model"
    why = (
        "One user of the matrix, a product that does not transpose it, needs the floats in memory."
    )
    read = Section(LESSON, "When it must not fire")
    judge_pass(both, function(step), whose, title, stays=True, why=why, read=read)


def observe_11_6(impl):
    def look(reader: tirx.PrimFunc) -> str:
        found = impl.unpacks_rows(kernel(FORM, (N, K)), reader)
        if found is None:
            return "None"
        buffers = [one.name for one in found.body.block.alloc_buffers]
        return f"{buffers} {found.attrs} {len(found.params)}"

    readers = [take_rows(), *other_readers().values()]
    return [lambda reader=reader: look(reader) for reader in readers]


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


# --- 11.9 -----------------------------------------------------------------------------------------


TAKES = {"compile": 9.0, "load": 0.5}


class Simulated:
    """A model on a machine with its own clock: it says what was called, and the clock moves on."""

    def __init__(self, steps=(0.25, 0.02, 0.02, 0.5, 0.03), per_token: float = 0.125):
        self.now, self.asked, self.log = 1000.0, 0, []
        self.steps, self.per_token = list(steps), per_token

    def clock(self) -> float:
        self.asked += 1
        self.now += 1e-6
        return self.now

    def compile(self) -> None:
        self.log.append("compile")
        self.now += TAKES["compile"]

    def load(self) -> None:
        self.log.append("load")
        self.now += TAKES["load"]

    def feed(self, tokens) -> int:
        if not isinstance(tokens, list | tuple | np.ndarray):
            raise TypeError(f"`feed` takes a list of tokens, and was given {tokens!r}")
        self.log.append(list(tokens))
        count = sum(isinstance(one, list) for one in self.log)
        self.now += self.per_token * len(tokens) if count == 1 else self.steps[(count - 2) % 5]
        return 100 + count


PROMPT = [7, 8, 9]


def timed(impl, **machine) -> tuple[dict, Simulated]:
    model, prompt = Simulated(**machine), list(PROMPT)
    found = impl.time_to_first_token(model, prompt, 5, model.clock)
    what = "`time_to_first_token` does not return the four times."
    expect.has_keys(found, ("compile", "load", "prompt", "step"), what)
    FIRST.equal(prompt, PROMPT, "`time_to_first_token` changed the prompt that it was given.")
    what = "`time_to_first_token` never calls the `clock` that it is given."
    why = (
        "The check simulates a machine with its own clock. `time.perf_counter` is only the default."
    )
    FIRST.that(model.asked > 0, what, why=why)
    return found, model


def test_11_9_order(impl) -> None:
    """compiled, loaded, the prompt at once, then one token per step"""
    _, model = timed(impl)
    FIRST.equal(
        model.log[:2], ["compile", "load"], "The first calls must be `compile()` and then `load()`."
    )
    what = "The prompt must be fed in one call, as a whole."
    why = "If you feed it token by token, the model reads all weights once for each token."
    FIRST.equal(model.log[2:3], [PROMPT], what, why=why)
    what = (
        "With steps=5 there must be exactly five calls of `feed` after the prompt, and all count."
    )
    FIRST.equal(len(model.log[3:]), 5, what)
    what = "A step does not feed the token that the call before it returned."
    FIRST.equal(model.log[3:], [[101], [102], [103], [104], [105]], what)


def test_11_9_times(impl) -> None:
    """each part has its own time, in seconds; a step is the median of all steps"""
    found, model = timed(impl)
    wanted = {**TAKES, "prompt": 3 * model.per_token, "step": statistics.median(model.steps)}
    said = {
        "compile": "Ask the clock right before and right after the call; the difference is in seconds.",
        "load": "Loading begins when compiling has ended.",
        "prompt": "This is the time of the one call that feeds the prompt, without any step.",
        "step": "Some step may be slow, because it touches new memory or is interrupted. The median of all steps, the "
        "first included, ignores that; a mean does not.",
    }
    for part, seconds in wanted.items():
        what = f"Your time for “{part}” is wrong."
        FIRST.close(np.float64(found[part]), np.float64(seconds), what, atol=1e-4, why=said[part])


def test_11_9_number_of_steps(impl) -> None:
    """as many steps as asked for"""
    model = Simulated(steps=(0.1, 0.4, 0.1, 0.4, 0.4))
    found = impl.time_to_first_token(model, PROMPT, 3, model.clock)
    what = "Of three steps that take 0.1, 0.4 and 0.1 seconds, your median is wrong."
    FIRST.close(np.float64(found["step"]), np.float64(0.1), what, atol=1e-4)
    FIRST.equal(
        len(model.log), 6, "With steps=3 there must be exactly three steps after the prompt."
    )
    model = Simulated(steps=(0.1, 0.4, 0.1, 0.2, 9.0))
    found = impl.time_to_first_token(model, PROMPT, 4, model.clock)
    what = "Of four steps that take 0.1, 0.4, 0.1 and 0.2 seconds, your median is wrong."
    FIRST.close(np.float64(found["step"]), np.float64(0.15), what, atol=1e-4)


def observe_11_9(impl):
    def look(steps: int) -> str:
        model = Simulated()
        found = impl.time_to_first_token(model, list(PROMPT), steps, model.clock)
        return f"{ {part: round(float(time), 3) for part, time in found.items()} } {model.log}"

    return [lambda: look(5), lambda: look(3)]


# --- 11.10 ----------------------------------------------------------------------------------------


class Machine:
    """A machine with its own clock, on which reading and steps take given times, one call after the other."""

    def __init__(self, reads=(0.045, 0.04, 0.05, 0.9, 0.06), steps=(0.021, 0.03, 0.02, 0.02, 0.8)):
        self.now, self.log = 1000.0, []
        self.reads, self.steps = list(reads), list(steps)

    def clock(self) -> float:
        return self.now

    def read(self) -> None:
        self._pass("read", self.reads)

    def step(self) -> int:
        self._pass("step", self.steps)
        return 7

    def _pass(self, what: str, seconds: list[float]) -> None:
        self.now += seconds[self.log.count(what) % len(seconds)]
        self.log.append(what)


STEP_BYTES, READ_BYTES = 97_000_000, 150_000_000


def rates(impl, repeats: int = 4, **times) -> tuple[dict, Machine]:
    machine = Machine(**times)
    calls = machine.step, machine.read
    found = impl.predicted_and_measured(*calls, STEP_BYTES, READ_BYTES, repeats, machine.clock)
    what = "`predicted_and_measured` does not return the two rates."
    expect.has_keys(found, ("predicted", "measured"), what)
    return found, machine


def test_11_10_turns(impl) -> None:
    """reading and steps take turns, once more than they are counted"""
    for repeats in (4, 2):
        _, machine = rates(impl, repeats)
        what = f"With repeats={repeats} the calls are not the expected ones."
        why = "Another program may use the memory for a while. If both take turns, it slows both down, and the "
        why += "comparison stays fair. The first call of each touches memory that is new, so it does not count."
        RATES.equal(machine.log, ["read", "step"] * (repeats + 1), what, why=why)


def test_11_10_measured(impl) -> None:
    """steps per second, by the median of those that count"""
    found, _ = rates(impl)
    what = (
        "Four steps that count take 0.03, 0.02, 0.02 and 0.8 seconds, and your “measured” is wrong."
    )
    why = "The first call, 0.021 seconds, does not count. The median of the others is 0.025 seconds per token, so the "
    why += "rate is 1 / 0.025 = 40 tokens per second. A mean would let one interruption decide."
    RATES.close(np.float64(found["measured"]), np.float64(1 / 0.025), what, atol=1e-6, why=why)


def test_11_10_predicted(impl) -> None:
    """the bandwidth of reading, divided by the bytes that a step reads"""
    found, _ = rates(impl)
    what = "Reading 150 MB takes 0.04, 0.05, 0.9 and 0.06 seconds, a token reads 97 MB, and your “predicted” is wrong."
    why = "The first call, 0.045 seconds, does not count. The median of the others is 0.055 seconds, and 150 MB in "
    why += "0.055 seconds are 2.7 GB/s. Divide that by the bytes per token: 28.1 tokens per second."
    wanted = READ_BYTES / 0.055 / STEP_BYTES
    RATES.close(np.float64(found["predicted"]), np.float64(wanted), what, atol=1e-6, why=why)


def observe_11_10(impl):
    def look(repeats: int) -> str:
        found, machine = rates(impl, repeats)
        return f"{ {name: round(float(rate), 3) for name, rate in found.items()} } {machine.log}"

    return [lambda: look(4), lambda: look(1)]
