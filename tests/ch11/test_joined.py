"""One kernel that unpacks a matrix and reads it: its parameters, its buffers, its attributes, its numbers."""

import numpy as np
import pytest
import tvm_ffi
from tvm import relax, te, tirx
from tvm.s_tir import SBlock, SBlockRealize

from chapters.ch11_a_real_model.check_programs import FORM, K, N
from chapters.checking.programs import run_kernel
from chapters.kit.ir.tensor_ir import nodes
from chapters.kit.quantized.blocks import pack
from chapters.kit.quantized.dequantize import kernel
from solutions.ch03_transpose_matmul.fuse_transpose_matmul import nt_matmul
from solutions.ch11_a_real_model.quantized import joined, unpacks_rows
from tests.kit.test_coded_products import random_codes

SHAPE = [tirx.IntImm("int64", one) for one in (N, K)]


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
    sums = te.compute((3,), lambda i: te.sum(moved[i, k] * m[i, k], axis=k), name="s")
    return first.with_attr("op_pattern", 2), func([m, c], sums).with_attr("op_pattern", 4)


def product() -> tirx.PrimFunc:
    w, x = te.placeholder(SHAPE, name="w"), te.placeholder((2, SHAPE[1]), name="x")
    return func([w, x], nt_matmul(w, x, "float32"))


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


@pytest.mark.parametrize("pair", [two_kernels(), (kernel(FORM, (N, K)), product())])
def test_joined(pair):
    first, second = pair
    found = joined(first, second)
    shapes = [list(map(int, one.shape)) for one in found.params]
    assert shapes == [list(map(int, p.shape)) for p in (*first.params[:-1], *second.params[1:])]
    assert isinstance(found.body, SBlockRealize)
    assert [b.name_hint for b in nodes(found.body, SBlock)].count("root") == 1
    used = [v for v in nodes(found.body, tirx.Var) if tirx.is_buffer_var(v)]
    known = [*found.params, *found.body.block.alloc_buffers]
    assert all(any(one.same_as(other) for other in known) for one in used)
    assert tvm_ffi.structural_equal(found.attrs, second.attrs)


def test_joined_gives_the_numbers_of_both():
    random = np.random.default_rng(4)
    a, b, c = (random.standard_normal(s).astype("float32") for s in ((3, 5), (3, 5), (5,)))
    m = 2 * a.astype("float64") - b
    found = run_kernel(joined(*two_kernels()), a, b, c, np.full(3, np.nan, "float32"))
    np.testing.assert_allclose(found, ((m + c) * m).sum(axis=1), rtol=1e-5, atol=1e-5)


def test_rows_are_unpacked_where_they_are_copied():
    found = unpacks_rows(kernel(FORM, (N, K)), take_rows())
    assert not found.body.block.alloc_buffers
    assert tvm_ffi.structural_equal(found.attrs, take_rows().attrs)
    codes, numbers = random_codes(FORM, N, K), np.array([N - 1, 0, 99], "int32")
    out = run_kernel(found, *pack(codes, FORM), numbers, np.full((3, K), np.nan, "float32"))
    exact = codes.floats().astype("float64")[
        np.clip(numbers, 0, N - 1)
    ]  # a number outside is clipped
    np.testing.assert_allclose(out, exact, rtol=1e-6, atol=1e-6)


def other_readers() -> dict[str, tirx.PrimFunc]:
    """Kernels whose first parameter is a matrix, and that do not copy rows of it."""
    m, numbers = te.placeholder(SHAPE, name="m"), te.placeholder((K,), "int32", "numbers")
    k = te.reduce_axis((0, K), name="k")
    at = lambda i: te.max(te.min(numbers[i], K - 1), 0)  # noqa: E731
    scaled = te.compute((K, K), lambda i, j: m[i % N, j] * numbers[i])
    return {
        "a product": product(),
        "sums of rows": func([m], te.compute((N,), lambda i: te.sum(m[i, k], axis=k))),
        "a copy of columns": func([m, numbers], te.compute(SHAPE, lambda i, j: m[i, at(j)])),
        "a number for each row": func([m, numbers], scaled),
    }


@pytest.mark.parametrize("name", other_readers())
def test_a_kernel_that_does_not_copy_rows_is_not_served(name):
    assert unpacks_rows(kernel(FORM, (N, K)), other_readers()[name]) is None
