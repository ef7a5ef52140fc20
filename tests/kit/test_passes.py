"""Passes of the kit: what each must change, what it must leave, and numbers that stay what they were."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.script import tirx as T

from chapters.kit.cases.guard_zones import QUICK
from chapters.kit.cases.relax_text import kernel, relax_module
from chapters.kit.draw.table import Table
from chapters.kit.gpu.targets import DLIGHT_CUDA as CUDA
from chapters.kit.passes.copy_operands_before_in_place import COPY, CopyOperandsBeforeInPlace
from chapters.kit.passes.fold_read_only_constants import FoldReadOnlyConstants, updates_in_place
from chapters.kit.passes.plan_straight_functions import PlanStraightFunctions, has_branch
from chapters.kit.passes.planned_storage import evaluate, format_size, plan_storage, tensor_bytes
from chapters.kit.passes.require_threads import RequireThreads
from solutions.ch09_the_compiler.pipeline import fusion_pipeline
from tests.ch09.test_phases import Branches
from tests.support.kernels import compile_main, run_main

# --- copies of operands before an update in place --------------------------------------------------

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


def update_of_view(view) -> tvm.IRModule:
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


def multiple_of_argument(mod: tvm.IRModule) -> np.ndarray:
    """What `main` computes, as a multiple of its argument."""
    x = np.random.default_rng(0).uniform(1, 2, SHAPE).astype("float32")
    return run_main(mod, x, target=QUICK) / x


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
    assert np.allclose(multiple_of_argument(mod), 3, rtol=1e-6)
    assert COPY in CopyOperandsBeforeInPlace()(mod).script()


@by_view
def test_the_pipeline_keeps_what_is_viewed(view):
    mod = update_of_view(view)
    before = mod.script()
    assert np.allclose(multiple_of_argument(mod), 3, rtol=1e-6)
    assert mod.script() == before


def test_what_has_memory_of_its_own_is_not_copied():
    assert CopyOperandsBeforeInPlace()(DOUBLE).same_as(DOUBLE)
    assert COPY in CopyOperandsBeforeInPlace()(update_of_view(VIEWS["a reshape"])).script()


# --- constants -------------------------------------------------------------------------------------

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


def list_results(mod: tvm.IRModule, *calls: tuple) -> list:
    """What `main`, compiled once, returns to each of `calls`, as lists."""
    main = compile_main(mod, QUICK)
    return [main(*arrays).numpy().tolist() for arrays in calls]


def test_what_nothing_reads_is_removed():
    lower = relax.transform.LegalizeOps(), relax.transform.AnnotateTIROpPattern()
    passes = [*lower, FoldReadOnlyConstants(), relax.transform.FuseOps()]
    mod = tvm.transform.Sequential(passes)(UNUSED_IN_A_BRANCH)
    assert not [name for name in mod.get_global_vars() if "tanh" in name.name_hint]
    calls = ((np.array(choose), np.ones(4, "float32")) for choose in (True, False))
    assert list_results(UNUSED_IN_A_BRANCH, *calls) == [[0.0] * 4, [3.0] * 4]


def test_each_run_starts_from_the_constant():
    assert list_results(COUNTS, *[(np.zeros(4, "float32"),)] * 3) == [[1.0] * 4] * 3


@pytest.mark.parametrize(("mod", "writes"), [(COUNTS, True), (ONLY_READS, False), (PACKED, True)])
def test_what_updates_in_place(mod, writes):
    assert updates_in_place(mod) is writes
    lowered = relax.transform.LegalizeOps()(mod)
    assert tvm_ffi.structural_equal(FoldReadOnlyConstants()(lowered), lowered) is writes
    assert updates_in_place(lowered) is writes


RESHAPED = {  # parameters besides x: (4, 6), the tensor that says the new shape, its numbers
    "a constant": ("", 'R.const([8, 3], "int64")', ()),
    "a computed constant": ("", 'R.add(R.const([7, 2], "int64"), R.const([1, 1], "int64"))', ()),
    "an argument": (', t: (2, "int64")', "t", ([8, 3],)),
    "the shape of another tensor": (', y: ("n", 3)', "R.shape_to_tensor(R.shape_of(y))", (8, 3)),
}  # fmt: skip


@pytest.mark.parametrize("name", RESHAPED)
def test_a_tensor_may_give_the_shape_of_a_reshape(name):
    """From apache/tvm issues 20192, 20193 and 20260."""
    parameter, tensor, given = RESHAPED[name]
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
    assert list_results(mod, (x, *others)) == [x.reshape(8, 3).tolist()]


# --- memory of functions with a branch -------------------------------------------------------------

STRAIGHT = relax_module("""
@bare
def main(x: (64, 8)) -> R.Tensor((64, 8), "float32"):
    a = R.nn.softmax(x)
    b = R.nn.softmax(a, axis=0)
    c = R.nn.softmax(b)
    return R.nn.softmax(c, axis=0)
""")["main"]


def test_only_functions_with_branches_are_left_out():
    names = "LegalizeOps", "ToNonDataflow", "RemovePurityChecking", "CallTIRRewrite"
    passes = [getattr(relax.transform, name)() for name in names]
    both = Branches.clone()
    both["straight"] = STRAIGHT.with_attr("global_symbol", "straight")
    mod = tvm.transform.Sequential(passes)(both)
    assert has_branch(mod["main"]) and not has_branch(mod["straight"])
    planned = PlanStraightFunctions()(mod)
    assert planned["main"].same_as(mod["main"])
    assert planned["straight"].script().count("alloc_storage") == 2
    assert "alloc_storage" not in mod["straight"].script()


# --- kernels without threads -----------------------------------------------------------------------


@T.prim_func(private=True, s_tir=True)
def loops(x: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")):
    T.func_attr({"tirx.is_scheduled": True})
    for i in T.parallel(4):
        y[i] = x[i]


@T.prim_func(private=True, s_tir=True)
def threads_and_loops(x: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")):
    T.func_attr({"tirx.is_scheduled": True})
    for i in T.thread_binding(4, thread="threadIdx.x"):
        y[i] = x[i]
    for i in T.serial(4):
        y[i] = x[i]


@T.prim_func(private=True, s_tir=True)
def as_many_threads_as_an_element_says(x: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")):
    T.func_attr({"tirx.is_scheduled": True})
    for i in T.thread_binding(T.cast(x[0], "int32"), thread="threadIdx.x"):
        y[i] = x[i]


@T.prim_func(private=True, s_tir=True)
def threads(x: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")):
    T.func_attr({"tirx.is_scheduled": True})
    for i in T.thread_binding(4, thread="threadIdx.x"):
        with T.sblock("copy"):
            at = T.axis.spatial(4, i)
            y[at] = x[at]


@T.prim_func(private=True, s_tir=True)
def launched(x: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")):
    T.func_attr({"tirx.is_scheduled": True})
    i = T.launch_thread("threadIdx.x", 4)
    y[i] = x[i]


def module_that_calls(func: tirx.PrimFunc) -> tvm.IRModule:
    """A module whose main calls `func`, under the name "copies"."""
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType([4], "float32"))
    with builder.function("main", [x]):
        gvar = builder.add_func(func, "copies")
        builder.emit_func_output(builder.emit(relax.call_tir(gvar, [x], x.ty)))
    return builder.get()


@pytest.mark.parametrize("func", [loops, threads_and_loops, as_many_threads_as_an_element_says])
def test_access_from_the_host_is_refused(func):
    with pytest.raises(ValueError, match=r"^copies cannot be compiled for a GPU: it accesses"):
        tvm.compile(module_that_calls(func), CUDA, relax_pipeline=fusion_pipeline(CUDA))


@pytest.mark.parametrize("func", [threads, launched])
def test_access_from_threads_is_not(func):
    mod = module_that_calls(func)
    assert tvm_ffi.structural_equal(RequireThreads()(mod), mod)


# --- what chapter 2 reads the compiler with --------------------------------------------------------

N = tirx.Var("n", "int64")
CHAIN = relax_module("""
def main(x: ("n", 16, "float16")) -> R.Tensor((n, 16), "float16"):
    a = R.exp(x)
    out = R.tanh(a)
""")


def test_a_missing_size_is_named():
    with pytest.raises(ValueError, match=r"32 \* n needs a value for n; sizes gives m"):
        plan_storage(CHAIN).bytes({"m": 3})


BYTES = [((3, 5), "float32", 60), ((), "int64", 8), ((0, 7), "int8", 0)]
BYTES += [((3,), "bool", 3), ((3,), "int4", 2)]


@pytest.mark.parametrize(("shape", "dtype", "expected"), BYTES)
def test_bytes_of_a_tensor(shape, dtype, expected):
    assert tensor_bytes(relax.TensorType(shape, dtype)) == expected


def test_bytes_of_a_symbolic_tensor():
    size = tensor_bytes(relax.TensorType((N, 4, N), "float32"))
    assert evaluate(size, {"n": 3}) == 3 * 4 * 3 * 4
    assert "n" in format_size(size)
    # half a byte an element, rounded up once and not once an element
    assert evaluate(tensor_bytes(relax.TensorType((N, 1), "int4")), {"n": 5}) == 3


def test_a_tensor_of_unknown_shape_has_no_size():
    with pytest.raises(ValueError, match="no known shape"):
        tensor_bytes(relax.TensorType(dtype="float32", ndim=2))


def test_table_groups_and_aligns_numbers():
    text = str(Table(("name", "bytes"), [("a<b", 12), ("c", 3456)]))
    assert text.splitlines()[-2:] == ["a<b      12", "c     3,456"]
    assert "a&lt;b" in Table(("name", "bytes"), [("a<b", 12)])._repr_html_()
    with pytest.raises(ValueError, match="1 cells, the table 2 columns"):
        Table(("name", "bytes"), [("a",)])
