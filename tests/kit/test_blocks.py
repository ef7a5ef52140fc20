"""Blocks of GGUF files give the gguf package's numbers, also packed and unpacked by a kernel; which kernels unpack."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
from tvm import te, tirx

from chapters.kit.cases.guard_zones import GuardedArray
from chapters.kit.quantized.dequantize import int64s, kernel, match_dequantize, weight
from chapters.kit.quantized.weight_blocks import (
    BLOCKS,
    PackedLayout,
    QuantizedRows,
    pack,
    read_floats,
    read_quantized_rows,
    stack_rows,
)
from tests.support.kernels import compile_kernels

# type -> where the float16 numbers of a block begin, and the integers per scale, bits and minima of our form
HALVES = {"Q4_0": [0], "Q4_1": [0, 2], "Q8_0": [0], "Q4_K": [0, 2], "Q6_K": [208]}
STORED = {
    "Q4_0": (4, 32, False, "float16"),
    "Q4_1": (4, 32, True, "float16"),
    "Q8_0": (8, 32, False, "float16"),
    "Q4_K": (4, 32, True, "float32"),
    "Q6_K": (8, 16, False, "float32"),
}
N, K = 48, 96  # a matrix of every form: 48 rows are a multiple of both numbers of lanes
FORMS = [
    PackedLayout(bits, group, minimum, scale, lanes)
    for bits, group, minimum, scale, lanes in product(
        (4, 8), (16, 32), (False, True), ("float16", "float32"), (1, 8)
    )
]


def random_bytes(kind: str, rows: int, blocks: int) -> np.ndarray:
    """Rows of random blocks. Their float16 numbers are finite and otherwise of any size, subnormal ones included."""
    size, random = BLOCKS[kind][1], np.random.default_rng(len(kind) + rows)
    raw = random.integers(0, 256, (rows, blocks, size), "u1")
    for at in HALVES[kind]:
        halves = random.integers(0, 1 << 16, (rows, blocks, 1), "u2")
        halves[(halves & 0x7C00) == 0x7C00] &= 0x83FF  # infinity or NaN: clear the exponent
        raw[..., at : at + 2] = halves.view("u1")
    return raw.reshape(rows, -1)


@pytest.mark.parametrize("kind", BLOCKS)
def test_random_blocks_are_the_numbers_of_the_gguf_package(kind):
    gguf = pytest.importorskip("gguf")
    raw = random_bytes(kind, rows=64, blocks=5)
    codes = read_quantized_rows(kind, raw)
    expected = gguf.dequantize(raw, gguf.GGMLQuantizationType[kind])
    np.testing.assert_array_equal(codes.floats(), expected, strict=True)
    bits, group, has_minimum, scale = STORED[kind]
    assert codes.form(16) == PackedLayout(bits, group, has_minimum, scale, 16)
    assert codes.codes.dtype == np.uint8 and codes.codes.max() < 1 << bits


@pytest.mark.parametrize("kind", BLOCKS)
def test_blocks_are_read_where_they_lie(kind):
    """Rows may be read-only, as those of a mapped file are, and need not be side by side."""
    raw = random_bytes(kind, rows=6, blocks=2)
    raw.flags.writeable = False
    found = read_quantized_rows(kind, raw[::2]).floats()
    np.testing.assert_array_equal(found, read_quantized_rows(kind, raw).floats()[::2])


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
def test_floats_are_the_numbers_of_the_gguf_package(kind):
    gguf = pytest.importorskip("gguf")
    size = 4 if kind == "F32" else 2
    raw = np.random.default_rng(size).integers(0, 256, (64, 32 * size), "u1")
    raw.flags.writeable = False
    found = read_floats(kind, raw[::2])
    expected = gguf.dequantize(raw[::2].copy(), gguf.GGMLQuantizationType[kind])
    assert not np.isfinite(expected).all()  # all patterns of bits occur, NaN among them
    np.testing.assert_array_equal(found, expected, strict=True)


def random_codes(form: PackedLayout, n: int = N, k: int = K, seed: int = 0) -> QuantizedRows:
    """A matrix in groups whose numbers are the same with and without a fused multiply-add.

    A scale in float32 is a float16 times an integer of 5 bits. Its product with a code has at most 11 + 5 + 8 bits,
    which float32 holds.
    """
    random = np.random.default_rng(seed)

    def numbers() -> np.ndarray:
        sizes = 2.0 ** random.integers(-20, 3, (n, k // form.group))  # subnormal ones among them
        halves = (random.standard_normal(sizes.shape) * sizes).astype("float16")
        if form.scale == "float16":
            return halves
        return halves * random.integers(0, 32, halves.shape).astype("float32")

    codes = random.integers(0, 1 << form.bits, (n, k), "u1")
    return QuantizedRows(form.bits, codes, numbers(), numbers() if form.has_minimum else None)


@pytest.fixture(scope="module")
def unpackers():
    """The kernels of all FORMS for an (N, K) matrix: form -> function."""
    return compile_kernels({form: kernel(form, (N, K)) for form in FORMS})


def name_of(form: PackedLayout) -> str:
    minimum = "minimum" if form.has_minimum else "zero"
    return f"{form.bits}-{form.group}-{minimum}-{form.scale}-{form.lanes}"


@pytest.mark.parametrize("form", FORMS, ids=name_of)
def test_packed_codes_are_the_same_numbers_in_a_kernel(form, unpackers):
    matrix = random_codes(form)
    assert matrix.form(form.lanes) == form
    packed = pack(matrix, form)
    assert [(one.shape, str(one.dtype)) for one in packed] == form.shapes(N, K)
    assert sum(one.nbytes for one in packed) == form.bytes_of(N, K)
    guarded = [*map(GuardedArray, [*packed, np.full((N, K), np.nan, "float32")])]
    unpackers[form](*(one.tensor for one in guarded))
    assert all(one.intact() for one in guarded)
    np.testing.assert_array_equal(guarded[-1].array, matrix.floats())


def test_what_a_word_holds():
    """The layout that PackedLayout describes, spelled out for one word of the second panel and the second group."""
    for bits in (4, 8):
        matrix = random_codes(form := PackedLayout(bits, 32, True, "float16", 4), 8, 64)
        codes, scales = pack(matrix, form)
        row, word = 4 + 3, 2  # lane 3 of panel 1; word 2
        first = 32 + 4 * word
        own = matrix.codes[row, first : first + 4]
        if bits == 4:
            own = own | matrix.codes[row, first + 16 : first + 20] << 4
        assert codes[1, 1, word, 3].tobytes() == own.tobytes()
        assert scales[1, 1, 0, 3] == matrix.scales[row, 1]
        assert scales[1, 1, 1, 3] == matrix.minima[row, 1]


@pytest.mark.parametrize(("n", "k"), [(48, 80), (40, 96), (1, 1)])
def test_sizes_that_do_not_divide_are_refused(n, k):
    with pytest.raises(ValueError) as refused:
        PackedLayout(4, 32, True, "float16", 16).shapes(n, k)
    assert str(refused.value) == (
        f"A matrix of shape ({n}, {k}) cannot be stored in groups of 32 steps and 16 rows: both must divide its shape."
    )
    with pytest.raises(ValueError):
        PackedLayout(4, 32, True, "float16", 16).bytes_of(n, k)


@pytest.mark.parametrize("has_minimum", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
def test_rows_are_put_together(bits, has_minimum):
    form = PackedLayout(bits, 16, has_minimum, "float16", 1)
    one, other = random_codes(form, n=6, seed=1), random_codes(form, n=5, seed=2)
    both = stack_rows([one, other])
    np.testing.assert_array_equal(both.floats(), np.concatenate([one.floats(), other.floats()]))
    assert both.form(1) == form
    np.testing.assert_array_equal(stack_rows([one]).floats(), one.floats())


# --- kernels that unpack, whatever their name -----------------------------------------------------

FORM = PackedLayout(4, 32, True, "float16", 16)

SOME_FORMS = [
    FORM,
    PackedLayout(4, 32, False, "float16", 8),
    PackedLayout(8, 32, False, "float16", 4),
    PackedLayout(8, 16, False, "float32", 1),
]


@pytest.mark.parametrize("name", ["dequantize", "another"])
@pytest.mark.parametrize("form", SOME_FORMS, ids=str)
def test_a_kernel_that_unpacks_is_recognized(form, name):
    func = kernel(form, (N, K))
    assert match_dequantize(func) == form
    assert (
        match_dequantize(func.with_attr("global_symbol", name).with_attr("op_pattern", 2)) == form
    )


def test_the_smallest_matrix_is_recognized():
    form = PackedLayout(8, 4, False, "float16", 1)
    assert match_dequantize(kernel(form, (1, 4))) == form


def unpacking_kernel(
    element: Callable, form: PackedLayout = FORM, *, words="int32", out="float32", shape=(N, K)
):
    """The kernel whose element (j, k) is element(codes, scales, j, k), under the name that `kernel` gives it."""
    (codes, _), (scales, dtype) = form.shapes(N, K)
    arrays = [
        te.placeholder(int64s(codes), words, "codes"),
        te.placeholder(int64s(scales), dtype, "scales"),
    ]
    made = te.compute(
        int64s(shape), lambda j, k: element(*arrays, j, k).astype(out), name="dequantize"
    )
    return te.create_prim_func([*arrays, made]).without_attr("global_symbol")


def elements_of(form: PackedLayout) -> Callable:
    """The elements of `form` as `unpacking_kernel` takes them."""
    return lambda codes, scales, j, k: weight(form, codes, scales, j, k)


WITHOUT = PackedLayout(4, 32, False, "float16", 16)
CHANGED = {  # one of each: in what is computed, and in each buffer's dtype and shape
    "twice as much": unpacking_kernel(lambda c, s, j, k: weight(FORM, c, s, j, k) * 2.0),
    "another zero": unpacking_kernel(lambda c, s, j, k: weight(WITHOUT, c, s, j, k) + 1.0, WITHOUT),
    "the scale as minimum": unpacking_kernel(
        lambda c, s, j, k: weight(WITHOUT, c, s, j, k) + s[j // 16, k // 32, 0, j % 16], FORM
    ),
    "lanes backwards": unpacking_kernel(lambda c, s, j, k: weight(FORM, c, s, N - 1 - j, k)),
    "the next group": unpacking_kernel(lambda c, s, j, k: weight(FORM, c, s, j, (k + 32) % K)),
    "float64": unpacking_kernel(elements_of(FORM), out="float64"),
    "float16": unpacking_kernel(elements_of(FORM), out="float16"),
    "unsigned words": unpacking_kernel(elements_of(FORM), words="uint32"),
    "half of the rows": unpacking_kernel(elements_of(FORM), shape=(N // 2, K)),
    "half of the steps": unpacking_kernel(elements_of(FORM), shape=(N, K // 2)),
    "transposed": unpacking_kernel(lambda c, s, j, k: weight(FORM, c, s, k, j), shape=(K, N)),
}


@pytest.mark.parametrize("form", SOME_FORMS, ids=str)
def test_the_kernel_written_out_is_recognized(form):
    """So the changes above are the reason why the others are not."""
    assert match_dequantize(unpacking_kernel(elements_of(form), form)) == form


@pytest.mark.parametrize("name", CHANGED)
def test_a_changed_kernel_is_not_recognized(name):
    assert match_dequantize(CHANGED[name]) is None


def test_other_kernels_are_not_recognized():
    n = te.placeholder((tirx.Var("n", "int64"), K))
    more = te.compute(n.shape, lambda *i: n(*i) + 1.0)
    for tensors in ([n, more], [n, n, more]):
        assert match_dequantize(te.create_prim_func(tensors)) is None
    scalar = tirx.Var("a", "int64")
    func = kernel(FORM, (N, K))
    assert match_dequantize(tirx.PrimFunc([*func.params, scalar], func.body)) is None
    assert match_dequantize(tirx.PrimFunc([*func.params[:2], scalar], func.body)) is None
    assert match_dequantize(tirx.PrimFunc(func.params, tirx.Evaluate(0))) is None
