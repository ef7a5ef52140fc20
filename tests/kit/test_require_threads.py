"""A kernel that would access the GPU's memory from the host is refused, wherever it does so, and no other is."""

from __future__ import annotations

import pytest
import tvm
from tvm import relax, tirx
from tvm.script import tirx as T
from tvm_ffi import structural_equal

from chapters.kit.gpu.targets import DLIGHT_CUDA as CUDA
from chapters.kit.passes.require_threads import RequireThreads
from solutions.ch09_the_compiler.pipeline import fusion_pipeline


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


def calling(func: tirx.PrimFunc) -> tvm.IRModule:
    """A module whose main calls `func`, under the name "copies"."""
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType([4], "float32"))
    with builder.function("main", [x]):
        gvar = builder.add_func(func, "copies")
        builder.emit_func_output(builder.emit(relax.call_tir(gvar, [x], x.ty)))
    return builder.get()


@pytest.mark.parametrize("func", [loops, threads_and_loops, as_many_threads_as_an_element_says])
def test_access_from_the_host_is_refused(func):
    with pytest.raises(ValueError, match=r"^copies cannot be compiled for a GPU: it accesses"):
        tvm.compile(calling(func), CUDA, relax_pipeline=fusion_pipeline(CUDA))


@pytest.mark.parametrize("func", [threads, launched])
def test_access_from_threads_is_not(func):
    mod = calling(func)
    assert structural_equal(RequireThreads()(mod), mod)


def test_a_cpu_needs_no_threads():
    tvm.compile(calling(loops), "llvm", relax_pipeline=fusion_pipeline(tvm.target.Target("llvm")))


def test_the_release_still_overlooks_it():
    """If this fails, TVM's VerifyMemory was mended: RequireThreads can go."""
    mod = tvm.IRModule({"main": loops.with_attr("global_symbol", "main")})
    mod = tirx.transform.BindTarget(CUDA.with_host("llvm"))(mod)
    assert not tirx.analysis.verify_memory(mod["main"])
    tvm.compile(mod, CUDA.with_host("llvm"))
