"""The phases that the learner's file has complete: which facts arrive, who schedules what, where tensors lie."""

from __future__ import annotations

import functools

import pytest
import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.script import tirx as T
from tvm.target import Target

from chapters.ch09_the_compiler.check_programs import halve, linear
from chapters.ch09_the_compiler.check_queries import (
    count_calls,
    count_launches,
    has_loop,
    nests,
    storage_sizes,
    symbols,
    unscheduled,
    uses_tensor_cores,
)
from chapters.checking.programs import attributes_as_text, kernels
from chapters.kit.cases.guard_zones import QUICK
from chapters.kit.cases.relax_text import relax_module
from chapters.kit.decoder.llama import decoder
from chapters.kit.decoder.llama_config import LlamaConfig
from chapters.kit.gpu.targets import DLIGHT_CUDA as CUDA
from chapters.kit.schedules.reduction_once import repeats_reduction
from solutions.ch09_the_compiler import pipeline
from tests.support.kernels import LOWER, after_phases, run_passes

SMALL = LlamaConfig(64, 96, 1, 4, 2, 16, 72, 80)
BOUNDS = {"seq_len": 80, "context_window": 80}

# Entry points, and a call of a kernel that needs padding.
Serving = relax_module("""
def decode(x: ("batch_size", 8), w: ("vocab_size", 8)):
    padded = "cutlass.groupwise_scaled_gemm_e4m3fn_e4m3fn"
    y = R.call_dps_packed(padded, (x,), out_ty=R.Tensor((16, 8), "float32"))
    out = R.matmul(y, R.permute_dims(w))

def embed(x: ("batch_size", 8)):
    out = R.nn.relu(x)
""")

# Tensors before, in and behind an `if`.
Branches = relax_module("""
def main(choose: ("bool",), x: (64, 8)) -> R.Tensor((64, 8), "float32"):
    R.func_attr({"num_input": 2})
    if choose:
        a = R.nn.softmax(x)
        b = R.nn.softmax(a, axis=0)
        inside = R.nn.softmax(b)
    else:
        inside = R.nn.softmax(x)
    first = R.nn.softmax(inside, axis=0)
    second = R.nn.softmax(first)
    return R.nn.softmax(second, axis=0)
""")


@T.prim_func(s_tir=True)
def columns(
    x: T.Buffer((T.int64(64), T.int64(24)), "float32"),
    b: T.Buffer((T.int64(24),), "float32"),
    y: T.Buffer((T.int64(24),), "float32"),
):
    """Sums of columns and a bias. dlight's rules for sums decline it: the sum's loop is the outer one."""
    total = T.sblock_alloc_buffer((T.int64(24),), "float32")
    for k, i in T.grid(64, 24):
        with T.sblock("total"):
            vk, vi = T.axis.remap("RS", [k, i])
            with T.init():
                total[vi] = T.float32(0)
            total[vi] = total[vi] + x[vk, vi]
    for i in range(24):
        with T.sblock("out"):
            vi = T.axis.spatial(24, i)
            y[vi] = total[vi] + b[vi]


@functools.cache
def lower_decoder(target: Target) -> tvm.IRModule:
    """The decoder before the schedule phase; for a GPU in float16."""
    dtype = "float32" if target is QUICK else "float16"
    mod, _ = decoder(SMALL, dtype, ("prefill", "decode"))
    facts = {"variable_bounds": BOUNDS, "metadata": {"vocab_size": 72}}
    return after_phases(mod, target, *LOWER, **facts)


@functools.cache
def schedule_decoder(target: Target) -> tvm.IRModule:
    return run_passes(pipeline.schedule_phase(target, BOUNDS), lower_decoder(target), target)


def place_tensors(target: Target, mod: tvm.IRModule) -> tvm.IRModule:
    """`mod` after memory_phase, with graphs asked for."""
    with tvm.transform.PassContext(config={"relax.backend.use_cuda_graph": True}):
        return run_passes(pipeline.memory_phase(target), mod, target)


# --- attach ---------------------------------------------------------------------------------------


def test_every_fact_arrives_and_only_the_vocabulary_is_bound():
    metadata = {"vocab_size": 500, "batch_size": 16}
    target = Target({"kind": "cuda", "arch": "sm_100a"})
    passes = pipeline.phases(
        target,
        variable_bounds={"batch_size": 16},
        cuda_graph_symbolic_capture_hints={"decode": ["batch_size"]},
        pipeline_parallel_stages=2,
        additional_tirs={"halve": halve},
        metadata=metadata,
    )["attach"]
    assert symbols(run_passes(passes[:1], Serving, target))["decode"] == ["batch_size"]
    result = run_passes(passes, Serving, target)
    found = attributes_as_text(result["decode"].attrs)
    assert "16" in found["tir_var_upper_bound"]
    assert "batch_size" in found["relax.rewrite_cuda_graph.capture_symbolic_vars"]
    assert found["pipeline_parallel_stages"] == "2"
    assert found["relax.memory_plan_dynamic_func_output"] == "True"
    assert "halve" in kernels(result) and metadata["seqlen_padding_factor"] == 4
    assert symbols(result)["decode"] == ["batch_size"]
    unknown = pipeline.phases(target)["attach"]
    assert "vocab_size" in symbols(run_passes(unknown, Serving, target))["decode"]


# --- schedule -------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [QUICK, CUDA], ids=["cpu", "gpu"])
def test_every_kernel_is_scheduled(target):
    assert not unscheduled(schedule_decoder(target))


def test_on_a_cpu_the_most_specific_schedule_comes_first():
    found = kernels(schedule_decoder(QUICK))
    vectors = tirx.ForKind.VECTORIZED
    assert all(has_loop(f, vectors) for name, f in found.items() if name.startswith("NT_matmul"))
    layer = tvm.IRModule({"layer": linear("bias").with_attr("global_symbol", "layer")})
    assert has_loop(
        run_passes(pipeline.schedule_phase(QUICK, BOUNDS), layer, QUICK)["layer"], vectors
    )
    assert not any(map(repeats_reduction, found.values()))
    assert nests(found["attention_scores1"]) == 1  # FuseEpilogues comes before the fallback


def test_products_of_activations_are_tiled_and_means_are_summed_in_vectors():
    mod = relax_module("""
def main(x: (2, 5, 8), y: (2, 8, 16), b: (16,), z: (2, 16, 32)):
    out = R.mean(R.matmul(R.add(R.matmul(x, y), b), z), axis=[-1])
""")
    mod = after_phases(mod, QUICK, *LOWER)
    done = kernels(run_passes(pipeline.schedule_phase(QUICK, {}), mod, QUICK))
    first = {  # what each kernel's own schedule makes of it, before any other pass
        name: kernels(run_passes([one, pipeline.schedule_phase(QUICK, {})[-1]], mod, QUICK))[name]
        for one in pipeline.schedule_phase(QUICK, {})[1:3]
        for name in done
        if ("mean" in name) == (one.info.name == "ApplyDefaultSchedule")
    }
    assert sorted(first) == sorted(done)
    for name, func in first.items():
        assert tvm_ffi.structural_equal(done[name].body, func.body, map_free_vars=True), name


@pytest.mark.parametrize("bounds, threads", [(BOUNDS, False), ({}, True)], ids=["small", "unknown"])
def test_kernels_that_the_bounds_keep_small_run_on_one_thread(bounds, threads):
    passes = pipeline.schedule_phase(QUICK, bounds)
    scores = kernels(run_passes(passes, lower_decoder(QUICK), QUICK))["attention_scores1"]
    assert has_loop(scores, tirx.ForKind.PARALLEL) == threads


def test_on_a_gpu_linear_layers_use_tensor_cores_unless_the_bounds_exclude_many_rows():
    layers = {n: f for n, f in kernels(lower_decoder(CUDA)).items() if "NT_matmul" in n}
    for bounds, wanted in ((BOUNDS, True), ({**BOUNDS, "seq_len": 8}, False)):
        passes = pipeline.schedule_phase(CUDA, bounds)
        found = kernels(run_passes(passes, tvm.IRModule(layers), CUDA)).values()
        assert any(map(uses_tensor_cores, found)) == wanted


def test_on_a_gpu_epilogues_are_fused_before_the_fallback():
    mod = tvm.IRModule({"columns": columns.with_attr("global_symbol", "columns")})
    assert nests(run_passes(pipeline.schedule_phase(CUDA, {}), mod, CUDA)["columns"]) == 1


@pytest.mark.parametrize("kind", ["metal", "vulkan"])
def test_every_other_target_is_a_gpu(kind):
    names = [
        [one.info.name for one in pipeline.schedule_phase(target, BOUNDS)]
        for target in (Target(kind), CUDA)
    ]
    assert names[0] == names[1]


# --- memory ---------------------------------------------------------------------------------------


def test_every_tensor_has_a_place_and_reshapes_are_views():
    before = schedule_decoder(QUICK)
    result = place_tensors(QUICK, before)
    assert count_calls(result, "relax.call_tir", "relax.call_tir_inplace") == 0
    assert count_calls(result, "relax.builtin.alloc_tensor") == 0
    assert count_launches(result, "decode") < count_launches(
        before, "decode"
    )  # without the reshapes
    tensors = count_calls(result, "relax.memory.alloc_tensor")
    assert len(storage_sizes(result)) < tensors  # several share a storage
    assert count_calls(result, "relax.memory.kill_storage", "relax.vm.kill_object") > 0


@pytest.mark.parametrize("target, wanted", [(CUDA, True), (QUICK, False)], ids=["cuda", "cpu"])
def test_graphs_are_captured_for_cuda_alone(target, wanted):
    result = place_tensors(target, schedule_decoder(QUICK))
    assert any("cuda_graph" in gvar.name_hint for gvar in result.get_global_vars()) == wanted


@pytest.mark.parametrize("target", [QUICK, CUDA], ids=["cpu", "cuda"])
def test_behind_a_branch_no_tensor_lies_in_memory_of_one_branch(target):
    result = place_tensors(target, after_phases(Branches, target))
    assert relax.analysis.check_well_formed(result)
    assert count_calls(result, "relax.memory.kill_tensor", "relax.memory.kill_storage") > 0
