"""An update in place never reaches another tensor: what has no memory of its own is copied first."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from chapters.toolkit.pipeline.own_operands import COPY, OwnOperands
from solutions.ch09_the_compiler.pipeline import fusion_pipeline

SHAPE = (4, 6)
TYPE = relax.TensorType(SHAPE, "float32")
VIEWS = {
    "a transpose that moves nothing": lambda x: relax.op.permute_dims(x, axes=[0, 1]),
    "a reshape": lambda x: relax.op.reshape(relax.op.reshape(x, (24,)), SHAPE),
    "two dimensions more and less": lambda x: relax.op.squeeze(relax.op.expand_dims(x, 0), 0),
}


@I.ir_module
class Double:
    @T.prim_func(private=True, s_tir=True)
    def double(x: T.Buffer((T.int64(4), T.int64(6)), "float32")):
        for i, j in T.grid(T.int64(4), T.int64(6)):
            with T.sblock("double"):
                vi, vj = T.axis.remap("SS", [i, j])
                x[vi, vj] = x[vi, vj] * T.float32(2)

    @R.function
    def own(x: R.Tensor((4, 6), "float32")):
        cls = Double
        with R.dataflow():
            y = R.call_tir_inplace(
                cls.double, (x,), inplace_indices=[0], out_ty=R.Tensor((4, 6), "float32")
            )
            z = R.call_tir_inplace(
                cls.double, (y,), inplace_indices=[0], out_ty=R.Tensor((4, 6), "float32")
            )
            R.output(z)
        return z


def updates(view) -> tvm.IRModule:
    """main(x) = x + double(view(x)), the update in place."""
    builder = relax.BlockBuilder()
    kernel = builder.add_func(Double["double"], "double")
    x = relax.Var("x", TYPE)
    with builder.function("main", [x]):
        with builder.dataflow():
            alias = builder.emit(view(x))
            doubled = builder.emit(
                relax.op.call_tir_inplace(kernel, [alias], inplace_indices=[0], out_ty=TYPE)
            )
            out = builder.emit_output(relax.op.add(x, doubled))
        builder.emit_func_output(out)
    return builder.get()


def run(mod: tvm.IRModule, pipeline) -> np.ndarray:
    """What `main` computes, as a multiple of its argument."""
    x = np.random.default_rng(0).uniform(1, 2, SHAPE).astype("float32")
    machine = relax.VirtualMachine(
        tvm.compile(mod, target="llvm", relax_pipeline=pipeline), tvm.cpu()
    )
    return machine["main"](tvm.runtime.tensor(x.copy())).numpy() / x


@pytest.mark.parametrize("view", VIEWS.values(), ids=list(VIEWS))
def test_a_packed_function_that_updates_is_given_a_copy(view):
    @tvm.register_global_func("tests.double_in_place", override=True)
    def double(tensor):
        tensor.copyfrom(tensor.numpy() * 2)
        return tensor

    builder = relax.BlockBuilder()
    x = relax.Var("x", TYPE)
    with builder.function("main", [x]):
        alias = builder.emit(view(x))
        doubled = builder.emit(
            relax.op.call_inplace_packed(
                "tests.double_in_place", alias, inplace_indices=[0], ty_args=[TYPE]
            )
        )
        out = builder.emit(relax.op.add(x, doubled))
        builder.emit_func_output(out)
    mod = builder.get()
    assert np.allclose(run(mod, fusion_pipeline(tvm.target.Target("llvm"))), 3, rtol=1e-6)
    assert COPY in OwnOperands()(mod).script()


@pytest.mark.parametrize("view", VIEWS.values(), ids=list(VIEWS))
def test_the_pipeline_keeps_what_is_viewed(view):
    mod = updates(view)
    before = mod.script()
    assert np.allclose(run(mod, fusion_pipeline(tvm.target.Target("llvm"))), 3, rtol=1e-6)
    assert mod.script() == before


def test_tvm_writes_through_still():
    """Once this fails, a release has mended it, and OwnOperands may go."""
    wrong = run(updates(VIEWS["a transpose that moves nothing"]), "default")
    assert not np.allclose(wrong, 3, rtol=1e-6)
    copied = OwnOperands()(updates(VIEWS["a transpose that moves nothing"]))
    assert np.allclose(run(copied, "default"), 3, rtol=1e-6)


def test_what_has_memory_of_its_own_is_not_copied():
    assert OwnOperands()(Double).same_as(Double)
    assert COPY in OwnOperands()(updates(VIEWS["a reshape"])).script()
