"""Chapter 1's reference where it goes further than the checks ask: the course measures with it all along."""

from __future__ import annotations

import pytest
from tvm import relax

from chapters.kit.cases.relax_text import relax_module
from solutions.ch01_walk_the_ir import second_way, walk_the_ir
from solutions.ch01_walk_the_ir.walk_the_ir import binding_bytes, launches, scoreboard, type_bytes


@pytest.mark.parametrize(
    ("shape", "dtype", "expected"),
    [((4,), "float32x4", 64), ((4,), "float4_e2m1fnx2", 4), ((3,), "float4_e2m1fnx2", 3)],
)
def test_each_lane_of_a_vector_counts(shape, dtype, expected):
    assert type_bytes(relax.TensorType(shape, dtype), {}) == expected


def test_a_tensor_without_a_dtype_is_refused():
    mod = relax_module("def main(x: R.Tensor((2, 3))):\n    out = R.exp(x)")
    with pytest.raises(ValueError, match="no known dtype"):
        binding_bytes(mod["main"], {})


@pytest.mark.parametrize("answer", [walk_the_ir, second_way])
def test_arithmetic_in_shapes_is_no_call(answer):
    mod = relax_module("""
def main(x: ("n", 4)):
    sizes = R.shape([T.if_then_else(n > 4, n, T.int64(4))])
    out = R.exp(x)
""")
    assert answer.count_calls(mod) == {"relax.exp": 1}


UnknownShape = relax_module("""
def main(x: R.Tensor(dtype="float32", ndim=2)):
    with R.dataflow():
        rows = R.reshape(x, (6,))
        y = R.exp(x)
        R.output(rows, y)
    return y
""")


@pytest.mark.parametrize("measure", [launches, scoreboard])
def test_an_operator_without_a_kernel_is_refused(measure):
    with pytest.raises(ValueError, match=r"relax\.exp on .* was not lowered"):
        measure(UnknownShape)


# the pattern sees the alias `second`, not the transpose it is bound to
OnlyTheAliasIsInBothBlocks = relax_module("""
def main(y: (2, 3, 3)):
    first = R.permute_dims(y)
    turned = R.permute_dims(first, axes=[1, 2, 0])
    second = turned
    with R.dataflow():
        one = R.permute_dims(turned, axes=[2, 0, 1])
        two = R.permute_dims(second, axes=[2, 0, 1])
        out = R.add(one, two)
        R.output(out)
    return out
""")


@pytest.mark.parametrize("answer", [walk_the_ir, second_way])
def test_an_alias_into_another_block_is_no_error(answer):
    after = answer.DropDoubleTranspose()(OnlyTheAliasIsInBothBlocks)
    assert relax.analysis.check_well_formed(after)
