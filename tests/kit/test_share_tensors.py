"""Tensors of the same bytes, shape and dtype are made once, and the results stay what they were."""

import numpy as np
import pytest
import tvm

from chapters.kit.cases.guard_zones import QUICK_HERE
from chapters.kit.cases.relax_text import relax_module
from chapters.kit.ir.relax_effects import calls_in
from chapters.kit.passes.planned_storage import ALLOC_IN_STORAGE
from chapters.kit.passes.share_tensors import ShareTensors
from solutions.ch09_the_compiler.pipeline import phases
from tests.support.compiled import run_main

# steps that take turns with two storages; `c` has as many bytes as the others, and another shape and dtype
CHAIN = relax_module("""
def main(x: ("n", 8)):
    a = R.nn.softmax(x)
    b = R.nn.softmax(a, axis=0)
    c = R.astype(R.reshape(b, R.shape([8, n])), "int32")
    d = R.add(R.astype(R.reshape(c, R.shape([n, 8])), "float32"), b)
    e = R.nn.softmax(d)
    f = R.nn.softmax(e, axis=0)
    g = R.nn.softmax(f)
    h = R.nn.softmax(g, axis=0)
    return h
""")


def pipeline(share: bool, seen: list[str]) -> tvm.transform.Pass:
    """Chapter 9's pipeline for at most 16 rows, with ShareTensors or not; `seen` gets what makes each tensor."""

    @tvm.transform.module_pass(opt_level=0, name="note")
    def note(mod, _ctx):
        calls = [call for call in calls_in(mod["main"].body) if call.op == ALLOC_IN_STORAGE]
        seen.extend(str(list(call.args)) for call in calls)
        return mod

    found = phases(QUICK_HERE, variable_bounds={"n": 16})
    passes = [one for phase in found.values() for one in phase]
    at = [str(one.info.name) for one in passes].index("KillAfterLastUse")
    passes[at:at] = [ShareTensors(), note] if share else [note]
    return tvm.transform.Sequential(passes)


@pytest.mark.parametrize("rows", [3, 16])
def test_each_tensor_is_made_once_and_the_results_stay(rows):
    x = np.random.default_rng(0).standard_normal((rows, 8)).astype("float32")
    results, made = [], []
    for share in (False, True):
        made.append([])
        results.append(run_main(CHAIN, x, pipeline=pipeline(share, made[-1])))
    assert np.isfinite(results[0]).all()
    np.testing.assert_array_equal(*results)
    before, after = made
    assert len(set(before)) < len(before)  # the chain has what it takes
    assert len(after) == len(set(after)) == len(set(before))
