"""Kernels that reduce rows: their terms are reduced by vectors, with right numbers; other forms are declined.

The reference is NumPy in float64. The sums of dlight's rule would pass too; a vectorized reduction is asked for.
"""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from chapters.kit.cases.guard_zones import QUICK_HERE
from chapters.kit.cases.relax_text import relax_module
from chapters.kit.ir.tensor_ir import nodes
from chapters.kit.schedules.vectorize_rows import sums_of_rows
from tests.support.compiled import draw, run_main


def layer_norm(x, g, b):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * g + b


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


NORM = "R.nn.layer_norm(x, g, b, axes=[-1])"
KERNELS = {  # name: (in Relax, in NumPy)
    "softmax": ("R.nn.softmax(x)", lambda x, g, b: softmax(x)),
    "layer_norm": (NORM, layer_norm),
    "rms_norm": (
        "R.nn.rms_norm(x, g, axes=[-1])",
        lambda x, g, b: x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * g,
    ),
    "mean": ("R.mean(x, axis=[-1])", lambda x, g, b: x.mean(-1)),
    "largest": ("R.max(x, axis=[-1])", lambda x, g, b: x.max(-1)),
    "squares": ("R.sum(R.multiply(x, x), axis=[-1])", lambda x, g, b: (x**2).sum(-1)),
    "a sum and its row": (  # two kernels
        "R.subtract(x, R.sum(R.exp(x), axis=[-1], keepdims=True))",
        lambda x, g, b: x - np.exp(x).sum(-1, keepdims=True),
    ),
}
# the dimensions of x before the last, as its type says them and as it is called; and the last
SHAPES = [
    ((1,), (1,), 64),
    ((5,), (5,), 24),
    ((2, 3), (2, 3), 40),
    (("n",), (7,), 16),
    ((3,), (3,), 9),
]


def module(said, terms: int, value: str) -> tvm.IRModule:
    return relax_module(
        f"def main(x: {(*said, terms)}, g: ({terms},), b: ({terms},)): out = {value}"
    )


def kernel_of(mod: tvm.IRModule) -> tirx.PrimFunc:
    """The kernel that the operators of `mod` become."""
    with QUICK_HERE:
        mod = tvm.transform.Sequential(
            [
                relax.transform.LegalizeOps(),
                relax.transform.AnnotateTIROpPattern(),
                relax.transform.FuseOps(),
                relax.transform.FuseTIR(),
            ]
        )(mod)
    found = [f for _, f in mod.functions_items() if isinstance(f, tirx.PrimFunc)]
    return found[-1]


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize(("said", "rows", "terms"), SHAPES)
def test_rows_are_reduced_with_right_numbers(said, rows, terms, name):
    value, exact = KERNELS[name]
    mod = module(said, terms, value)
    arrays = draw((*rows, terms), terms, terms)
    expected = exact(*(a.astype("float64") for a in arrays))
    # sums of up to 64 terms of size 1, and a polynomial for exp
    np.testing.assert_allclose(run_main(mod, *arrays), expected, rtol=2e-6, atol=2e-5)


@pytest.mark.parametrize("name", [name for name in KERNELS if name != "a sum and its row"])
@pytest.mark.parametrize("said", [(5,), (2, 3), ("n",)])
def test_the_terms_of_a_row_are_reduced_by_vectors(said, name):
    func = kernel_of(module(said, 48, KERNELS[name][0]))
    body = sums_of_rows(func, QUICK_HERE).mod["main"].body
    loops = nodes(body, tirx.For)
    assert sum(loop.kind == tirx.ForKind.PARALLEL for loop in loops) == 1
    updates = [
        block for block in nodes(body, tvm.s_tir.SBlock) if block.name_hint.endswith("_rf_update")
    ]
    assert updates
    for block in updates:
        around = [loop for loop in loops if block in nodes(loop, tvm.s_tir.SBlock)]
        assert any(loop.kind == tirx.ForKind.VECTORIZED for loop in around)


@pytest.mark.parametrize(
    "text",
    [
        "def main(x: (5, 'n')): out = R.nn.softmax(x)",  # nobody knows whether vectors divide the row
        "def main(x: (5, 48)): out = R.mean(x, axis=[0])",  # the terms of a column are far apart
        "def main(x: (5, 48)): out = R.variance(x, axis=[-1])",
        "def main(x: (5, 48)): out = R.argmax(x, axis=1)",
        "def main(x: (48,)): out = R.sum(x)",  # no rows
        "def main(x: (5, 48)): out = R.exp(x)",
    ],
)
def test_other_kernels_are_declined(text):
    assert sums_of_rows(kernel_of(relax_module(text)), QUICK_HERE) is None
