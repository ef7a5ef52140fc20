"""What the compiler computes in advance is not what a kernel updates in place."""

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from chapters.toolkit.pipeline.fold_constants import FoldReadOnlyConstants, updates_in_place
from solutions.ch09_the_compiler.pipeline import fusion_pipeline


@I.ir_module
class Counts:
    @T.prim_func(private=True, s_tir=True)
    def count(a: T.Buffer((4,), "float32")):
        for i in range(4):
            with T.sblock("count"):
                vi = T.axis.spatial(4, i)
                a[vi] = a[vi] + T.float32(1)

    @R.function
    def main(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        cls = Counts
        zeros = R.full(R.shape([4]), R.const(0.0, "float32"), dtype="float32")
        cache = R.add(zeros, R.const(0.0, "float32"))
        written = R.call_tir_inplace(
            cls.count, (cache,), inplace_indices=[0], out_ty=R.Tensor((4,), "float32")
        )
        return R.add(written, x)


@I.ir_module
class OnlyReads:
    @R.function(pure=False)
    def main(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        zeros = R.full(R.shape([4]), R.const(0.0, "float32"), dtype="float32")
        ones = R.add(zeros, R.const(1.0, "float32"))
        _printed = R.print(x, format="x")
        return R.add(x, ones)


@I.ir_module
class Packed:
    @R.function(pure=False)
    def main(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        cache = R.full(R.shape([4]), R.const(0.0, "float32"), dtype="float32")
        _written = R.call_packed("append", cache, x, ty_args=[R.Tuple()])
        return cache


def test_each_run_starts_from_the_constant():
    executable = tvm.compile(
        Counts, "llvm", relax_pipeline=fusion_pipeline(tvm.target.Target("llvm"))
    )
    main = relax.VirtualMachine(executable, tvm.cpu())["main"]
    x = tvm.runtime.tensor(np.zeros(4, "float32"))
    assert [main(x).numpy().tolist() for _ in range(3)] == [[1.0] * 4] * 3


@pytest.mark.parametrize(("mod", "writes"), [(Counts, True), (OnlyReads, False), (Packed, True)])
def test_what_updates_in_place(mod, writes):
    assert updates_in_place(mod) is writes
    lowered = relax.transform.LegalizeOps()(mod)
    assert FoldReadOnlyConstants()(lowered).same_as(lowered) is writes
    assert updates_in_place(lowered) is writes
