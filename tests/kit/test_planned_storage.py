"""What chapter 2 reads the compiler with: planned storage, captured kernels, and the table that shows them."""

from __future__ import annotations

import pytest
import tvm
from tvm import relax, tirx

from chapters.kit.cases.relax_text import relax_module
from chapters.kit.decoder.llama import decoder
from chapters.kit.draw.table import Table
from chapters.kit.measure.captured_kernels import captured
from chapters.kit.passes.planned_storage import evaluate, expression, planned, tensor_bytes
from solutions.ch02_attach_metadata.attach_support_info import AttachPipelineParallelStages

N = tirx.Var("n", "int64")
CHAIN = relax_module("""
def main(x: ("n", 16, "float16")) -> R.Tensor((n, 16), "float16"):
    a = R.exp(x)
    out = R.tanh(a)
""")


def test_sizes_are_expressions_until_they_are_bounded():
    plan = planned(CHAIN)
    assert [(str(s), s.planned) for s in plan.storages] == [("32 * n", True), ("32 * n", False)]
    assert plan.bytes({"n": 3}) == 2 * 3 * 32
    bounded = CHAIN["main"].with_attr("tir_var_upper_bound", {"n": 100})
    known = planned(tvm.IRModule({"main": bounded}))
    assert [s.size for s in known.constant] == [3200]
    assert not known.symbolic and len(known.unplanned) == 1
    assert "3,200" in str(known) and "3,200" in known._repr_html_()


def test_a_missing_size_is_named():
    with pytest.raises(ValueError, match=r"32 \* n needs a value for n; sizes gives m"):
        planned(CHAIN).bytes({"m": 3})


BYTES = [((3, 5), "float32", 60), ((), "int64", 8), ((0, 7), "int8", 0)]
BYTES += [((3,), "bool", 3), ((3,), "int4", 2)]


@pytest.mark.parametrize(("shape", "dtype", "expected"), BYTES)
def test_bytes_of_a_tensor(shape, dtype, expected):
    assert tensor_bytes(relax.TensorType(shape, dtype)) == expected


def test_bytes_of_a_symbolic_tensor():
    size = tensor_bytes(relax.TensorType((N, 4, N), "float32"))
    assert evaluate(size, {"n": 3}) == 3 * 4 * 3 * 4
    assert "n" in expression(size)
    # half a byte an element, rounded up once and not once an element
    assert evaluate(tensor_bytes(relax.TensorType((N, 1), "int4")), {"n": 5}) == 3


def test_a_tensor_of_unknown_shape_has_no_size():
    with pytest.raises(ValueError, match="no known shape"):
        tensor_bytes(relax.TensorType(dtype="float32", ndim=2))


def test_every_kernel_is_counted_once_captured_or_not():
    mod, _ = decoder("tiny", functions=["batch_decode"])
    counts = [captured(mod, "batch_decode", flag) for flag in (False, True)]
    assert counts[0].kernels == counts[1].kernels
    assert counts[0].captured == 0 < counts[1].captured < counts[1].kernels


def test_table_groups_and_aligns_numbers():
    text = str(Table(("name", "bytes"), [("a<b", 12), ("c", 3456)]))
    assert text.splitlines()[-2:] == ["a<b      12", "c     3,456"]
    assert "a&lt;b" in Table(("name", "bytes"), [("a<b", 12)])._repr_html_()
    with pytest.raises(ValueError, match="1 cells, the table 2 columns"):
        Table(("name", "bytes"), [("a",)])


def test_a_function_has_at_least_one_stage():
    with pytest.raises(ValueError, match="at least 1 stage"):
        AttachPipelineParallelStages(0)
