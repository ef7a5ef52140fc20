"""The compiler does not compute in advance what a kernel updates in place."""

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax

from chapters.kit.cases.guard_zones import QUICK
from chapters.kit.cases.relax_text import kernel, relax_module
from chapters.kit.passes.fold_read_only_constants import FoldReadOnlyConstants, updates_in_place
from solutions.ch09_the_compiler.pipeline import fusion_pipeline

COUNT = kernel("count(a)", (4,), "a[at] = a[at] + T.float32(1)")
COUNTS = relax_module(f"""{COUNT}
@bare
def main(x: (4,)) -> R.Tensor((4,), "float32"):
    zeros = R.full(R.shape([4]), R.const(0.0, "float32"), dtype="float32")
    cache = R.add(zeros, R.const(0.0, "float32"))
    written = R.call_tir_inplace(cls.count, (cache,), [0], out_ty=R.Tensor((4,), "float32"))
    return R.add(written, x)
""")
ONLY_READS = relax_module("""
@impure
def main(x: (4,)) -> R.Tensor((4,), "float32"):
    zeros = R.full(R.shape([4]), R.const(0.0, "float32"), dtype="float32")
    ones = R.add(zeros, R.const(1.0, "float32"))
    _printed = R.print(x, format="x")
    return R.add(x, ones)
""")
PACKED = relax_module("""
@impure
def main(x: (4,)) -> R.Tensor((4,), "float32"):
    cache = R.full(R.shape([4]), R.const(0.0, "float32"), dtype="float32")
    _written = R.call_packed("append", cache, x, ty_args=[R.Tuple()])
    return cache
""")
UNUSED_IN_A_BRANCH = relax_module(f"""{COUNT}
def main(choose: ("bool",), x: (4,)) -> R.Tensor((4,), "float32"):
    if choose:
        with R.dataflow():
            unused = R.tanh(x)
            used = R.negative(x)
            R.output(unused, used)
        out = used
    else:
        out = R.add(x, x)
    return R.call_tir_inplace(cls.count, (out,), [0], out_ty=R.Tensor((4,), "float32"))
""")
PIPELINE = fusion_pipeline(QUICK)
LOWER = [relax.transform.LegalizeOps(), relax.transform.AnnotateTIROpPattern()]


def compiled(mod: tvm.IRModule):
    """main of `mod`, on NumPy arrays, as a list."""
    vm = relax.VirtualMachine(tvm.compile(mod, QUICK, relax_pipeline=PIPELINE), tvm.cpu())
    return lambda *arrays: vm["main"](*map(tvm.runtime.tensor, arrays)).numpy().tolist()


def test_fuse_ops_of_the_release_still_fails():
    """If this fails, TVM's FuseOps was mended: unused bindings need not be removed before it."""
    with pytest.raises(tvm.error.InternalError, match="could not be found in any group"):
        tvm.transform.Sequential([*LOWER, relax.transform.FuseOps()])(UNUSED_IN_A_BRANCH)


def test_what_nothing_reads_is_removed():
    passes = [*LOWER, FoldReadOnlyConstants(), relax.transform.FuseOps()]
    mod = tvm.transform.Sequential(passes)(UNUSED_IN_A_BRANCH)
    assert not [name for name in mod.get_global_vars() if "tanh" in name.name_hint]
    main, x = compiled(UNUSED_IN_A_BRANCH), np.ones(4, "float32")
    assert [main(np.array(choose), x) for choose in (True, False)] == [[0.0] * 4, [3.0] * 4]


def test_each_run_starts_from_the_constant():
    main = compiled(COUNTS)
    assert [main(np.zeros(4, "float32")) for _ in range(3)] == [[1.0] * 4] * 3


@pytest.mark.parametrize(("mod", "writes"), [(COUNTS, True), (ONLY_READS, False), (PACKED, True)])
def test_what_updates_in_place(mod, writes):
    assert updates_in_place(mod) is writes
    lowered = relax.transform.LegalizeOps()(mod)
    assert tvm_ffi.structural_equal(FoldReadOnlyConstants()(lowered), lowered) is writes
    assert updates_in_place(lowered) is writes


SHAPES = {  # parameters besides x: (4, 6), the tensor that says the new shape, its numbers
    "a constant": ("", 'R.const([8, 3], "int64")', ()),
    "a computed constant": (
        "",
        'R.add(R.const([7, 2], "int64"), R.const([1, 1], "int64"))',
        (),
    ),
    "an argument": (', t: (2, "int64")', "t", ([8, 3],)),
    "the shape of another tensor": (', y: ("n", 3)', "R.shape_to_tensor(R.shape_of(y))", (8, 3)),
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_tensor_may_give_the_shape_of_a_reshape(name):
    """From apache/tvm issues 20192, 20193 and 20260."""
    parameter, tensor, given = SHAPES[name]
    mod = relax_module(
        f"""
def main(x: (4, 6){parameter}):
    numbers = {tensor}
    shape = R.tensor_to_shape(numbers)
    out = R.reshape(x, shape)
""",
        check_well_formed=False,  # the type of `out` mentions `shape`, which is not an output
    )
    x = np.arange(24, dtype="float32").reshape(4, 6)
    others = [np.zeros(given, "float32")] if len(given) == 2 else map(np.array, given)
    assert compiled(mod)(x, *others) == x.reshape(8, 3).tolist()
