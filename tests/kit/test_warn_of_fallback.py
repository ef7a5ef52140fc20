"""The report of kernels that only the fallback schedules: which they are, why, their share of the bytes."""

import warnings

import pytest
import tvm
from tvm import relax, te

from chapters.ch09_the_compiler.trace import show
from chapters.checking.programs import kernels
from chapters.kit.cases.relax_text import relax_module
from chapters.kit.cpu.nt_matmul import OTHER_FORM
from chapters.kit.decoder.llama import decoder
from chapters.kit.ir.reductions import products
from chapters.kit.schedules import tile_products, warn_of_fallback
from chapters.kit.schedules.warn_of_fallback import (
    FallbackWarning,
    find_fallback_kernels,
    operand_reuse,
)
from chapters.runner.earlier import earlier
from tests.support.kernels import run_passes

LLVM = tvm.target.Target("llvm")


def lower_before_fallback(mod, **facts):
    """`mod` after the pipeline's passes up to the fallback."""
    phases = earlier(9).phases(LLVM, **facts)
    passes = [one for phase in ("attach", "graph and lower", "schedule") for one in phases[phase]]
    names = [one.info.name for one in passes]
    return run_passes(passes[: names.index(warn_of_fallback.FALLBACK)], mod, LLVM)


def fallback_warnings(mod, **facts) -> list[str]:
    with warnings.catch_warnings(record=True) as caught, LLVM:
        warnings.simplefilter("always")
        earlier(9).fusion_pipeline(LLVM, **facts)(mod)
    return [str(one.message) for one in caught if one.category is FallbackWarning]


def linear_module(product: str, w: str = "(256, 128)", rows: int = 64) -> tvm.IRModule:
    return relax_module(f"""
def main(x: ({rows}, 128), w: {w}, b: (256,)):
    y = R.add({product}, b)
    out = R.nn.gelu(y)
""")


NT, NN = "R.matmul(x, R.permute_dims(w))", "R.matmul(x, w)"


def test_a_product_without_a_schedule_is_warned_of_by_name_share_and_reason():
    images = relax_module("""
def main(x: (1, 8, 24, 24), w: (8, 4, 3, 3)):
    out = R.nn.gelu(R.nn.conv2d(x, w, groups=2))
""")
    (text,) = fallback_warnings(images)
    assert "fused_conv2d_gelu moves 100% of the bytes of main" in text
    assert warn_of_fallback.CONVOLUTION in text


def test_a_layer_that_the_schedules_take_is_not_warned_of():
    assert fallback_warnings(linear_module(NT)) == []
    assert fallback_warnings(linear_module(NN, "(128, 256)")) == []


def test_a_product_of_few_rows_needs_no_tiles():
    one_row = linear_module(NN, "(128, 256)", rows=1)
    assert [k.why for k in find_fallback_kernels(lower_before_fallback(one_row))] == [
        tile_products.ONE_ROW
    ]
    assert fallback_warnings(one_row) == []


def test_the_head_of_unknown_size_is_warned_of_and_with_its_size_it_is_not():
    step, _ = decoder("tiny", "float32", ["decode"])
    bounds = {"variable_bounds": {"context_window": 64}}
    (text,) = fallback_warnings(step, **bounds)
    assert "NT_matmul4" in text and "size is not known (vocab_size)" in text
    assert fallback_warnings(step, **bounds, metadata={"vocab_size": 500}) == []


def test_shares_are_those_that_chapter_1_counts():
    step, _ = decoder("tiny", "float32", ["decode"])
    mod = lower_before_fallback(step, variable_bounds={"context_window": 48})
    moved = {}
    sizes = {"context_window": 48, "vocab_size": warn_of_fallback.UNBOUNDED}
    for row in earlier(1).binding_bytes(mod["decode"], sizes):
        kernel = row.call.partition(":")[2]
        moved[kernel] = moved.get(kernel, 0) + row.read + row.written
    found = find_fallback_kernels(mod)
    assert {k.kernel for k in found} >= {"attention_scores", "append_to_cache", "NT_matmul4"}
    for one in found:
        assert one.share == pytest.approx(moved[one.kernel] / sum(moved.values()))
        assert one.launches == (1 if one.kernel in ("NT_matmul4", "rms_norm") else 3)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("def main(x: (1, 5), w: (5, 6)):\n    out = R.matmul(x, w)", tile_products.ONE_ROW),
        (
            "def main(x: (2, 1, 5), w: (2, 6, 5)):\n    out = R.matmul(x, R.permute_dims(w, [0, 2, 1]))",
            tile_products.ONE_ROW,
        ),
        (
            "def main(x: (1, 4, 8, 8), w: (4, 2, 3, 3)):\n    out = R.nn.conv2d(x, w, groups=2)",
            warn_of_fallback.CONVOLUTION,
        ),
        ("def main(x: (4, 5)):\n    out = R.exp(x)", warn_of_fallback.NO_SUM),
        ("def main(x: (1, 7)):\n    out = R.sum(x, axis=[1])", warn_of_fallback.SUMS),
    ],
)
def test_the_reason(text, why):
    (one,) = find_fallback_kernels(lower_before_fallback(relax_module(text + "\n")))
    assert one.why == why and one.share == 1


def test_an_epilogue_that_reads_other_sums_and_a_product_alone():
    x, w = te.placeholder((4, 5), "float32", "x"), te.placeholder((6, 5), "float32", "w")
    k = te.reduce_axis((0, 5), "k")
    y = te.compute((4, 6), lambda i, j: te.sum(x[i, k] * w[j, k], axis=k), name="NT_matmul")
    reversed_rows = te.compute((4, 6), lambda i, j: y[i, 5 - j], name="reversed")
    func = te.create_prim_func([x, w, reversed_rows])
    assert (
        lower_before_fallback(tvm.IRModule({"main": func}))["main"].attrs.get("tirx.is_scheduled")
        is None
    )
    assert warn_of_fallback.explain_fallback(func) == warn_of_fallback.EPILOGUE
    assert operand_reuse(func, {}) == pytest.approx(4 * 5 * 6 / (4 * 5 + 5 * 6 + 4 * 6))


def test_a_product_with_its_name_in_a_form_of_its_own():
    x, w = te.placeholder((2, 5), "float32", "x"), te.placeholder((6, 5), "float32", "w")
    k = te.reduce_axis((0, 5), "k")
    doubled = lambda i, j: te.sum(2 * (w[j, k] * x[i, k]), axis=k)  # noqa: E731
    backwards = lambda i, j: te.sum(w[j, 4 - k] * x[i, 4 - k], axis=k)  # noqa: E731
    for element in (doubled, backwards):
        y = te.compute((2, 6), element, name="NT_matmul")
        assert warn_of_fallback.explain_fallback(te.create_prim_func([w, x, y])) == OTHER_FORM


@pytest.mark.parametrize(
    "line",
    [
        "R.nn.softmax(x)",
        "R.nn.rms_norm(x, b, axes=[-1])",
        "R.nn.layer_norm(x, b, b, axes=[-1])",
        "R.sum(R.multiply(x, x), axis=[1])",
    ],
)
def test_norms_and_sums_are_no_products(line):
    mod = relax_module(f"def main(x: (8, 16), b: (16,)):\n    out = {line}\n")
    funcs = kernels(relax.transform.LegalizeOps()(mod)).values()
    assert funcs and not any(products(func) for func in funcs)


def test_trace_lists_them_below_its_passes(capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)  # the table says it already
        show("fusion_by_hand", "tiny", "decode", "llvm", None)
    text = capsys.readouterr().out
    assert "left to the fallback" in text
    assert "size is not known (vocab_size)" in text
