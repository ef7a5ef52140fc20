"""An update in place never reaches another tensor: an operand that may share memory is copied first."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

from chapters.kit.cases.guard_zones import QUICK
from chapters.kit.cases.relax_text import relax_module
from chapters.kit.passes.copy_operands_before_in_place import COPY, CopyOperandsBeforeInPlace
from tests.support.compiled import run_main

SHAPE = (4, 6)
TYPE = relax.TensorType(SHAPE, "float32")
VIEWS = {
    "a transpose that moves nothing": lambda x: relax.op.permute_dims(x, axes=[0, 1]),
    "a reshape": lambda x: relax.op.reshape(relax.op.reshape(x, (24,)), SHAPE),
    "two dimensions more and less": lambda x: relax.op.squeeze(relax.op.expand_dims(x, 0), 0),
}
DOUBLE = relax_module("""
@T.prim_func(private=True, s_tir=True)
def double(x: T.Buffer((T.int64(4), T.int64(6)), "float32")):
    for i, j in T.grid(T.int64(4), T.int64(6)):
        with T.sblock("double"):
            vi, vj = T.axis.remap("SS", [i, j])
            x[vi, vj] = x[vi, vj] * T.float32(2)

def own(x: (4, 6)):
    y = R.call_tir_inplace(cls.double, (x,), [0], out_ty=R.Tensor((4, 6), "float32"))
    z = R.call_tir_inplace(cls.double, (y,), [0], out_ty=R.Tensor((4, 6), "float32"))
""")
by_view = pytest.mark.parametrize("view", VIEWS.values(), ids=list(VIEWS))


def updates(view) -> tvm.IRModule:
    """main(x) = x + double(view(x)), the update in place."""
    builder = relax.BlockBuilder()
    double = builder.add_func(DOUBLE["double"], "double")
    x = relax.Var("x", TYPE)
    with builder.function("main", [x]):
        with builder.dataflow():
            alias = builder.emit(view(x))
            doubled = builder.emit(relax.op.call_tir_inplace(double, [alias], [0], TYPE))
            out = builder.emit_output(relax.op.add(x, doubled))
        builder.emit_func_output(out)
    return builder.get()


def run(mod: tvm.IRModule, pipeline: str | None = None) -> np.ndarray:
    """What `main` computes, as a multiple of its argument."""
    x = np.random.default_rng(0).uniform(1, 2, SHAPE).astype("float32")
    return run_main(mod, x, target=QUICK, pipeline=pipeline) / x


@by_view
def test_a_packed_function_that_updates_is_given_a_copy(view):
    @tvm.register_global_func("tests.double_in_place", override=True)
    def double(tensor):
        tensor.copyfrom(tensor.numpy() * 2)
        return tensor

    builder = relax.BlockBuilder()
    x = relax.Var("x", TYPE)
    with builder.function("main", [x]):
        how = {"inplace_indices": [0], "ty_args": [TYPE]}
        call = relax.op.call_inplace_packed("tests.double_in_place", builder.emit(view(x)), **how)
        builder.emit_func_output(builder.emit(relax.op.add(x, builder.emit(call))))
    mod = builder.get()
    assert np.allclose(run(mod), 3, rtol=1e-6)
    assert COPY in CopyOperandsBeforeInPlace()(mod).script()


@by_view
def test_the_pipeline_keeps_what_is_viewed(view):
    mod = updates(view)
    before = mod.script()
    assert np.allclose(run(mod), 3, rtol=1e-6)
    assert mod.script() == before


def test_tvm_writes_through_still():
    """If this fails, TVM was mended: CopyOperandsBeforeInPlace can go."""
    mod = updates(VIEWS["a transpose that moves nothing"])
    assert not np.allclose(run(mod, "default"), 3, rtol=1e-6)
    copied = CopyOperandsBeforeInPlace()(mod)
    assert np.allclose(run(copied, "default"), 3, rtol=1e-6)


def test_what_has_memory_of_its_own_is_not_copied():
    assert CopyOperandsBeforeInPlace()(DOUBLE).same_as(DOUBLE)
    assert COPY in CopyOperandsBeforeInPlace()(updates(VIEWS["a reshape"])).script()
