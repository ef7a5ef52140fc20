"""Products that unpack their own matrix: right numbers on every shape of x, and the instructions of each processor.

References are NumPy in float64. Results start as NaN between guard zones, which `GuardedArray` puts around each array.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import prod

import numpy as np
import pytest
import tvm
from tvm import te, tirx
from tvm.ir import Call
from tvm.s_tir import SBlockRealize
from tvm.script import tirx as T
from tvm.target import Target, codegen
from tvm_ffi import structural_map

from chapters.kit.cases.guard_zones import QUICK_HERE, GuardedArray
from chapters.kit.cpu import vnni
from chapters.kit.ir.tensor_ir import nodes, with_fields
from chapters.kit.quantized.dequantize import int64s, kernel
from chapters.kit.quantized.dot_products import dot_products
from chapters.kit.quantized.schedule_quantized_matmuls import match_quantized_matmul, schedule
from chapters.kit.quantized.weight_blocks import PackedLayout, QuantizedRows, pack
from solutions.ch03_transpose_matmul.fuse_transpose_matmul import nt_matmul
from solutions.ch11_a_real_model.quantized import joined, multiply_codes
from tests.support.kernels import compile_kernels
from tests.support.quantized import (
    M,
    assert_close,
    draw_quantized,
    draw_rows,
    gated_epilogue,
    quantized_matmul,
)

N, K = 48, 96  # three panels of 16 rows; three groups of 32 steps
HERE = dot_products(QUICK_HERE)
LANES = HERE.lanes if HERE else 16


def forms(lanes: int) -> dict[str, PackedLayout]:
    """The forms of the types of files, by the name of one of those types."""
    return {
        "Q4_1": PackedLayout(4, 32, True, "float16", lanes),
        "Q4_0": PackedLayout(4, 32, False, "float16", lanes),
        "Q8_0": PackedLayout(8, 32, False, "float16", lanes),
        "Q6_K": PackedLayout(8, 16, False, "float32", lanes),
        "Q4_K": PackedLayout(4, 32, True, "float32", lanes),
    }


FORMS = forms(LANES)
# the shape of x without its last dimension; the rows of M are 1 and 13
SHAPES = [(), (1,), (3,), (8,), (9,), (100,), (M,), (1, 5), (1, M), (9, 1), (M, 1), (2, 5)]
WITH_EPILOGUE = [(1,), (9,), (1, M), (2, 5)]
# the other forms differ from these inside a group only, so they run on fewer shapes
ALL_SHAPES = ["Q4_1"]
FEW_SHAPES = [(1,), (3,), (9,), (M,)]


def name_of(value) -> str:
    if isinstance(value, tuple):
        return "x".join(map(str, value))
    return str(value)


# --- kernels, and what they compute ---------------------------------------------------------------


def buffers(func: tirx.PrimFunc) -> list[tirx.Buffer]:
    """The buffers of `func` that are not parameters."""
    found = dict.fromkeys(var for var in nodes(func.body, tirx.Var) if tirx.is_buffer_var(var))
    return [buffer for buffer in found if buffer not in func.params]


def rounds_x(func: tirx.PrimFunc) -> bool:
    """Whether a kernel stores x in 8 bits."""
    return any(str(buffer.dtype) == "int8" for buffer in buffers(func))


def schedule_kernel(func: tirx.PrimFunc, exact: bool, target: Target = QUICK_HERE) -> tirx.PrimFunc:
    """`func` after its schedule, in which no buffer holds the floats of the matrix."""
    parts = match_quantized_matmul(func)
    found = schedule(func, target, multiply_codes, exact)
    assert "tirx.is_scheduled" in found.attrs
    dots = dot_products(target)
    assert rounds_x(found) is (not exact and bool(dots) and dots.lanes == parts.form.lanes)
    floats = prod(int(extent) for extent in parts.weights.shape)
    for buffer in buffers(found):
        shape = [int(one) for one in buffer.shape if isinstance(one, tirx.IntImm)]
        assert not (str(buffer.dtype).startswith("float") and prod(shape) == floats), buffer
    return found


def run_guarded(
    function, matrix: QuantizedRows, form: PackedLayout, x: np.ndarray, *others: np.ndarray
) -> np.ndarray:
    """What a kernel writes into an array of NaN. It writes into no other array, nor beside one."""
    shape = (*x.shape[:-1], len(matrix.codes))
    inputs = [*pack(matrix, form), x, *others]
    guarded = [GuardedArray(array) for array in [*inputs, np.full(shape, np.nan, "float32")]]
    function(*(one.tensor for one in guarded))
    assert all(one.intact() for one in guarded)
    for before, after in zip(inputs, guarded, strict=False):
        assert before.tobytes() == after.array.tobytes()
    return guarded[-1].array


def draw_representable(group: int, *shape: int) -> np.ndarray:
    """x whose elements 8 bits represent: integers times a power of two, the largest of each group 127 or -127."""
    random = np.random.default_rng(sum(shape))
    integers = random.integers(-127, 128, (*shape[:-1], shape[-1] // group, group))
    place = random.integers(0, group, (*integers.shape[:-1], 1))
    np.put_along_axis(integers, place, random.choice([-127, 127], place.shape), -1)
    powers = 2.0 ** random.integers(-9, -5, place.shape)
    return (integers * powers).reshape(shape).astype("float32")


def multiply_exactly(x: np.ndarray, matrix: QuantizedRows) -> np.ndarray:
    return x.astype("float64") @ matrix.floats().astype("float64").T


def bound_rounding(x: np.ndarray, matrix: QuantizedRows) -> np.ndarray:
    """How far 8 bits for x may move each result: an element by half a step, 1/127 of the largest one of its group.

    A group whose elements are all below 1e-30 counts as zeros.
    """
    group = matrix.codes.shape[1] // matrix.scales.shape[1]
    groups = np.abs(x.astype("float64")).reshape(*x.shape[:-1], -1, group)
    largest = groups.max(axis=-1)
    off = np.repeat(np.where(largest < 1e-30, largest, largest / 254), group, axis=-1)
    return off @ np.abs(matrix.floats().astype("float64")).T


def check_numbers(
    function, form: PackedLayout, matrix: QuantizedRows, rows: tuple, exact: bool
) -> None:
    """The numbers of a kernel: for x that 8 bits represent, and for any x within what rounding it explains."""
    shape = (*rows, matrix.codes.shape[1])
    x = draw_representable(form.group, *shape)
    assert_close(run_guarded(function, matrix, form, x), multiply_exactly(x, matrix))
    x = draw_rows(*shape)
    found = run_guarded(function, matrix, form, x)
    assert_close(found, multiply_exactly(x, matrix), 0.0 if exact else bound_rounding(x, matrix))


# --- on this machine ------------------------------------------------------------------------------


def list_cases(shapes: list[tuple]) -> list:
    """(rows, kind, exact) for a test."""
    return [
        pytest.param(
            rows, kind, exact, id=f"{name_of(rows)}-{kind}-{'floats' if exact else 'bytes'}"
        )
        for kind in FORMS
        for rows in shapes
        if kind in ALL_SHAPES or rows in FEW_SHAPES
        for exact in (True, False)
    ]


@cache
def compile_here(kind: str, exact: bool) -> dict:
    """(rows, what is behind the sums or None) -> the compiled kernel, for one form."""
    wanted = [(one, None) for one in SHAPES] + [(one, gated_epilogue) for one in WITH_EPILOGUE]
    return compile_kernels(
        {
            (rows, behind): schedule_kernel(
                quantized_matmul(FORMS[kind], rows, behind=behind), exact
            )
            for rows, behind in wanted
            if kind in ALL_SHAPES or rows in FEW_SHAPES
        }
    )


def concrete_shapes(rows: tuple) -> list[tuple]:
    """The shapes with which a kernel for `rows` runs."""
    if M not in rows:
        return [rows]
    return [tuple(m if one is M else one for one in rows) for m in (1, 13)]


@pytest.mark.parametrize(("rows", "kind", "exact"), list_cases(SHAPES))
def test_a_product(rows, kind, exact):
    form, function = FORMS[kind], compile_here(kind, exact)[rows, None]
    for shape in concrete_shapes(rows):
        check_numbers(function, form, draw_quantized(form), shape, exact)


@pytest.mark.parametrize(("rows", "kind", "exact"), list_cases(WITH_EPILOGUE))
def test_an_epilogue_is_computed_from_the_sums(rows, kind, exact):
    form, function = FORMS[kind], compile_here(kind, exact)[rows, gated_epilogue]
    matrix = draw_quantized(form)
    for shape in concrete_shapes(rows):
        x = draw_representable(form.group, *shape, K) / np.float32(
            64
        )  # so that the results are about 1
        bias, gate, residual = (
            draw_rows(N),
            draw_rows(*shape, N),
            draw_rows(*shape, N) + np.float32(1),
        )
        found = run_guarded(function, matrix, form, x, bias, gate, residual)
        y = multiply_exactly(x, matrix) + bias
        assert_close(found, y / (1 + np.exp(-y)) * gate + residual)


def test_an_empty_x_has_no_results():
    """A symbolic number of rows may be 0."""
    for exact in (True, False):
        function = compile_here("Q4_1", exact)[(M,), None]
        form = FORMS["Q4_1"]
        assert (
            run_guarded(function, draw_quantized(form), form, np.zeros((0, K), "float32")).size == 0
        )


@pytest.mark.parametrize("exact", [True, False], ids=["floats", "bytes"])
@pytest.mark.parametrize("kind", ["Q4_1", "Q6_K"])
def test_a_matrix_that_several_threads_multiply(kind, exact):
    form, n, k = FORMS[kind], 512, 256
    assert form.bytes_of(n, k) > 1 << 16
    matrix = draw_quantized(form, n, k)
    here = Target({"kind": "llvm", "mcpu": codegen.llvm_get_system_cpu()})  # optimized
    kernels = {
        rows: schedule_kernel(quantized_matmul(form, rows, n=n, k=k), exact, here)
        for rows in [(1,), (1, M)]
    }
    for rows, function in compile_kernels(kernels, here).items():
        check_numbers(function, form, matrix, concrete_shapes(rows)[-1], exact)


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("kind", ["Q4_1", "Q6_K"])
def test_a_form_with_other_lanes_is_multiplied_in_floats(kind, lanes):
    """Such as the matrix of a vocabulary with an odd number of tokens: its rows fill no vector."""
    if HERE and lanes == HERE.lanes:
        pytest.skip("this processor's own number of lanes")
    form, n = forms(lanes)[kind], 5 * lanes
    kernels = {
        rows: schedule_kernel(quantized_matmul(form, rows, n=n), False) for rows in [(9,), (1, M)]
    }
    for rows, function in compile_kernels(kernels).items():
        for shape in concrete_shapes(rows):
            check_numbers(function, form, draw_quantized(form, n), shape, exact=True)


@pytest.mark.parametrize("kind", FORMS)
def test_each_element_is_rounded_to_the_nearest_step(kind):
    """Each row of the matrix has one weight that is not 0, so no error of one element hides that of another."""
    form, function = FORMS[kind], compile_here(kind, False)[(9,), None]
    scales = np.full((N, K // form.group), 0.5, form.scale)
    codes = np.full((N, K), 0 if form.has_minimum else form.zero, "u1")
    codes[range(N), np.arange(N) * 2 + 1] += 5
    matrix = QuantizedRows(form.bits, codes, scales, scales * 0 if form.has_minimum else None)
    x = draw_rows(9, K)
    error = np.abs(
        run_guarded(function, matrix, form, x) - multiply_exactly(x, matrix)
    ) / bound_rounding(x, matrix)
    assert error.max() <= 1 + 1e-4
    if HERE:
        assert error.max() >= 0.9  # x is rounded, and no finer than `rounding` says


# --- x that is unusual ----------------------------------------------------------------------------

SMALLEST = np.float32(1e-45)  # a subnormal number
UNUSUAL = {
    "a group of zeros": lambda x: np.put(x, range(32), 0),
    "only zeros": lambda x: np.multiply(x, 0, x),
    "a group of subnormal numbers": lambda x: np.put(x, range(32), 1e-40),
    "only subnormal numbers": lambda x: np.multiply(x, SMALLEST, x),
    "negligible numbers": lambda x: np.multiply(x, np.float32(1e-33), x),
    "tiny numbers": lambda x: np.multiply(x, np.float32(1e-25), x),
    "huge numbers": lambda x: np.multiply(x, np.float32(1e30), x),
    "groups of different size": lambda x: np.multiply(x, np.logspace(-12, 12, K, dtype="f4"), x),
    "NaN": lambda x: np.put(x, 40, np.nan),
    "minus NaN": lambda x: np.put(x, 40, -np.float32(np.nan)),
    "infinity": lambda x: np.put(x, 40, np.inf),
    "minus infinity": lambda x: np.put(x, 95, -np.inf),
    "both infinities": lambda x: np.put(x, [40, 41], [np.inf, -np.inf]),
    "NaN beside infinity": lambda x: np.put(x, [40, 41], [np.nan, np.inf]),
    "NaN and infinity": lambda x: np.put(x, [3, 40], [np.nan, np.inf]),
}


@pytest.mark.parametrize("exact", [True, False], ids=["floats", "bytes"])
@pytest.mark.parametrize("kind", FORMS)
@pytest.mark.parametrize("rows", [9, M], ids=name_of)
def test_an_unusual_row_has_no_influence_on_the_others(rows, kind, exact):
    """All rows of UNUSUAL and usual ones between them, 9 at a time."""
    form, function = FORMS[kind], compile_here(kind, exact)[(rows,), None]
    matrix = draw_quantized(form)
    names = [one for name in UNUSUAL for one in (name, "usual")]
    names += ["usual"] * (-len(names) % 9)
    for first in range(0, len(names), 9):
        x, some = draw_rows(9, K), names[first : first + 9]
        for row, name in zip(x, some, strict=True):
            UNUSUAL.get(name, lambda row: None)(row)
        found = run_guarded(function, matrix, form, x)
        for row, name, y in zip(x, some, found, strict=True):
            if "NaN" in name:
                assert np.isnan(y).all(), name
            elif "infinit" in name:
                assert not np.isfinite(y).any(), name
            else:
                # products of subnormal numbers are rounded to multiples of the smallest
                more = 0.0 if exact else bound_rounding(row, matrix)
                assert_close(y, multiply_exactly(row, matrix), more + K * 255 * SMALLEST)


# --- the instructions of each processor -----------------------------------------------------------

TARGETS = {
    "haswell": {"mcpu": "haswell"},
    "cascadelake": {"mcpu": "cascadelake"},
    "alderlake": {"mcpu": "alderlake"},
    "cortex-a76": {"mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a76"},
    "x86-64": {"mtriple": "x86_64-linux-gnu", "mcpu": "x86-64"},
    "cortex-a72": {"mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a72"},
}
# target -> lanes, and the instructions in its assembly for 4 and for 8 bits
EXPECTED = {
    "haswell": (8, ["vpmaddubsw", "vpmaddwd"], ["vpmaddwd"]),
    "cascadelake": (16, ["vpdpbusd", "%zmm"], ["vpdpbusd", "%zmm"]),
    "alderlake": (8, ["vpdpbusd", "%ymm"], ["vpdpbusd", "%ymm"]),
    "cortex-a76": (4, ["sdot", ".16b"], ["sdot", ".16b"]),
}


def target_of(name: str) -> Target:
    """A target of TARGETS. Skips the test if this LLVM writes no code for it."""
    attributes = TARGETS[name]
    if "aarch64" in attributes.get("mtriple", ""):
        if "aarch64" not in codegen.llvm_get_targets():
            pytest.skip("this LLVM writes no ARM code")
    elif not vnni.compiles_here():
        pytest.skip("this LLVM writes no x86 code")
    return Target({"kind": "llvm", **attributes})


@pytest.mark.parametrize("kind", FORMS)
@pytest.mark.parametrize("name", EXPECTED)
def test_the_instruction_is_in_the_assembly(name, kind):
    target = target_of(name)
    lanes, four, eight = EXPECTED[name]
    assert dot_products(target).lanes == lanes
    form = forms(lanes)[kind]
    func = schedule_kernel(quantized_matmul(form, (1,)), False, target).with_attr(
        "global_symbol", "main"
    )
    lines = tvm.compile(func, target).mod.inspect_source("asm").splitlines()
    instruction, *others = four if form.bits == 4 else eight
    found = [line for line in lines if instruction in line]
    operands = [one for one in others if not one.startswith("vp")]
    assert found and all(one in line for one in operands for line in found)
    for other in others:
        assert any(other in line for line in lines)
    if name == "alderlake":
        assert not any("%zmm" in line for line in lines)


@pytest.mark.parametrize("name", ["x86-64", "cortex-a72"])
def test_a_processor_without_the_instruction_has_no_dot_products(name):
    assert dot_products(target_of(name)) is None


def runs_here(*features: str) -> bool:
    return vnni.compiles_here() and all(
        codegen.llvm_cpu_has_features(feature, QUICK_HERE) for feature in features
    )


RUN = {
    "haswell": (["avx2"], TARGETS["haswell"]),
    # of Alder Lake's features those that the kernels use: a processor that has these may lack others
    "alderlake": (["avx2", "avxvnni"], {"mcpu": "haswell", "mattr": ["+avxvnni"]}),
    "x86-64": (["sse2"], TARGETS["x86-64"]),
}


@cache
def compile_for(name: str) -> tuple[dict[str, PackedLayout], dict]:
    """The forms for a target of RUN, and its compiled kernels, which this machine can run."""
    features, attributes = RUN[name]
    if not runs_here(*features):
        pytest.skip(f"this processor is none of x86 with {features}")
    target = Target({"kind": "llvm", "opt-level": 0, **attributes})
    dots = dot_products(target)
    own = forms(dots.lanes if dots else 16)
    kernels = {
        (kind, rows): schedule_kernel(quantized_matmul(form, rows), False, target)
        for kind, form in own.items()
        for rows in [(9,), (1, M)]
    }
    return own, compile_kernels(kernels, target)


@pytest.mark.parametrize("kind", FORMS)
@pytest.mark.parametrize("name", RUN)
def test_the_numbers_of_other_processors(name, kind):
    own, kernels = compile_for(name)
    for rows in [(9,), (1, M)]:
        for shape in concrete_shapes(rows):
            function = kernels[kind, rows]
            check_numbers(
                function, own[kind], draw_quantized(own[kind]), shape, exact=name == "x86-64"
            )


@pytest.mark.parametrize("kind", FORMS)
@pytest.mark.parametrize("name", ["here", *RUN])
def test_the_largest_sums_do_not_overflow(name, kind):
    """All codes are the largest, and x is 127 and -127 in groups: the largest sums of products there can be."""
    if name == "here":
        form, function = FORMS[kind], compile_here(kind, False)[(9,), None]
    else:
        own, kernels = compile_for(name)
        form, function = own[kind], kernels[kind, (9,)]
    largest = np.full((N, K), (1 << form.bits) - 1, "u1")
    scales = np.ones((N, K // form.group), form.scale)
    for codes in (largest, largest * 0, largest * (np.arange(K) % 2).astype("u1")):
        matrix = QuantizedRows(form.bits, codes, scales, scales * 0 if form.has_minimum else None)
        x = np.full((9, K), 127, "float32")
        x[1::2] *= -1
        x[2::3, : K // 2] *= -1
        found = run_guarded(function, matrix, form, x)
        assert_close(
            found, multiply_exactly(x, matrix), 1e-3
        )  # where the sum is 0, its parts are up to 10**6


# --- ARM's instruction, computed by others --------------------------------------------------------


def without_sdot(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func` with shifts and products in the place of each sdot, so that every processor can run it."""
    number = T.llvm_lookup_intrinsic_id("llvm.aarch64.neon.sdot")
    calls = []

    def byte(words, at: int):
        left, right = (T.broadcast(T.int32(shift), 4) for shift in (24 - 8 * at, 24))
        return (words << left) >> right  # with its sign

    def replaced(call: Call):
        if not call.op.same_as(tvm.ir.Op.get("tirx.call_llvm_pure_intrin")):
            return call
        if int(call.args[0]) != int(number):
            return call
        calls.append(call)
        sums, codes, x = call.args[-3:]
        codes, x = (T.reinterpret("int32x4", one) for one in (codes, x))
        for one in range(4):
            sums = sums + byte(codes, one) * byte(x, one)
        return sums

    found = func.with_body(structural_map(func.body, (Call, replaced)))
    assert calls
    return found


@pytest.mark.parametrize("kind", FORMS)
def test_the_numbers_of_sdot(kind):
    """The kernels for ARM, with sdot spelled out, on any processor."""
    target, form = target_of("cortex-a76"), forms(4)[kind]
    function = compile_kernels(
        {0: without_sdot(schedule_kernel(quantized_matmul(form, (3,)), False, target))}
    )[0]
    check_numbers(function, form, draw_quantized(form), (3,), exact=False)


# --- kernels that stay ----------------------------------------------------------------------------


def with_block_behind(element: Callable) -> tirx.PrimFunc:
    """A square product with one block behind it, whose element (i, j) is element(y, w, i, j)."""

    def behind(y, bias, gate, residual, w):
        def added(i, j):
            return element(y, w, i, j) + bias[j] + gate[i, j] + residual[i, j]

        return te.compute(y.shape, added, "behind")

    return quantized_matmul(FORMS["Q4_1"], (N,), behind=behind)


def summed(y, bias, gate, residual, _w) -> te.Tensor:
    """An epilogue that sums over the results of a row."""
    j = te.reduce_axis((0, tirx.IntImm("int64", N)), "j")
    total = te.compute(y.shape[:-1], lambda i: te.sum(y[i, j], axis=j), "total")

    def element(i, j):
        return y[i, j] / total[i] + bias[j] + gate[i, j] + residual[i, j]

    return te.compute(y.shape, element, "normed")


def padded(y, *_) -> te.Tensor:
    """The results and 16 columns more."""
    return te.compute(
        (9, N + 16), lambda i, j: tirx.if_then_else(j < N, y[i, j], tirx.const(7.0, "float32"))
    )


def float_matmul() -> tirx.PrimFunc:
    w, x = (te.placeholder(int64s((n, K)), name=name) for n, name in ((N, "w"), (3, "x")))
    return te.create_prim_func([w, x, nt_matmul(w, x, "float32")], "int64")


def matmul_that_returns_floats() -> tirx.PrimFunc:
    func = quantized_matmul(FORMS["Q4_1"], (3,))
    root = func.body.block
    (weights,) = root.alloc_buffers
    body = SBlockRealize([], True, with_fields(root, alloc_buffers=[]))
    return tirx.PrimFunc([*func.params, weights], body)


KEPT = {
    "the epilogue reads the floats": lambda: with_block_behind(
        lambda y, w, i, j: y[i, j] + w[j, 0]
    ),
    "the epilogue reads the transposed": lambda: with_block_behind(lambda y, w, i, j: y[j, i]),
    "the epilogue reads the next row": lambda: with_block_behind(
        lambda y, w, i, j: y[(i + 1) % N, j]
    ),
    "the epilogue reads two sums": lambda: with_block_behind(lambda y, w, i, j: y[i, j] + y[i, 0]),
    "the epilogue is a sum": lambda: quantized_matmul(FORMS["Q4_1"], (3,), behind=summed),
    "the floats are a result": matmul_that_returns_floats,
    "the matrix is in floats": float_matmul,
    "only the matrix is unpacked": lambda: kernel(FORMS["Q4_1"], (N, K)),
    # it cannot run on the tiles of the sums: the rest would be computed nowhere
    "the result has more columns": lambda: quantized_matmul(FORMS["Q4_1"], (9,), behind=padded),
}


@pytest.mark.parametrize("exact", [True, False], ids=["floats", "bytes"])
@pytest.mark.parametrize("name", KEPT)
def test_other_kernels_stay_as_they_are(name, exact):
    func = KEPT[name]()
    assert schedule(func, QUICK_HERE, multiply_codes, exact).same_as(func)


@pytest.mark.parametrize("dtypes", [("float16", "float32"), ("float32", "float64")], ids=str)
def test_other_dtypes_are_multiplied_as_floats(dtypes):
    """Products in 8 bits are made for float32."""
    x_dtype, dtype = dtypes
    form = FORMS["Q4_1"]
    w = te.placeholder(int64s((N, K)), name="w")
    x = te.placeholder(int64s((3, K)), x_dtype, name="x")
    func = joined(
        kernel(form, (N, K)), te.create_prim_func([w, x, nt_matmul(w, x, dtype)], "int64")
    )
    func = schedule(func, QUICK_HERE, multiply_codes, exact=False)
    assert not rounds_x(func)
    matrix, given = draw_quantized(form), draw_representable(32, 3, K).astype(x_dtype)
    out = tvm.runtime.tensor(np.full((3, N), np.nan, dtype))
    arrays = [*pack(matrix, form), given]
    compile_kernels({0: func})[0](*map(tvm.runtime.tensor, arrays), out)
    assert_close(out.numpy().astype("float32"), multiply_exactly(given, matrix))
