"""Where the generated code multiplies on tensor cores: judged by the instruction, not by whether a rule applied."""

from __future__ import annotations

import pytest
import tvm
from tvm.s_tir import dlight as dl
from tvm.target import Target

from chapters.ch08_gpu_targets.given import start_from_bias
from chapters.kit.cases.relax_text import relax_module
from chapters.kit.gpu.cuda_resources import missing, ptx
from chapters.kit.gpu.gpu_matmul import matmul_bias
from chapters.kit.gpu.targets import CUDA, cuda
from chapters.kit.schedules.matmul_on_tensor_cores import MatmulOnTensorCores
from solutions.ch09_the_compiler.pipeline import fusion_pipeline

# the limits hold for every NVIDIA GPU; dlight's rules ask for them
LIMITS = {"max_shared_memory_per_block": 49152, "max_threads_per_block": 1024}
# 264 columns do not fill the tiles of the kernels that start from the bias, so dlight's rule gets the layer
LAYER = """
def main(x: ("n", 256, "float16"), w: (264, 256, "float16"), b: (264, "float16")):
    out = R.nn.relu(R.add(R.matmul(x, R.permute_dims(w)), b))
"""


def target_of(arch: str) -> Target:
    return Target({**cuda(arch).export(), **LIMITS})


def source_of(rule, func, target: Target) -> str:
    """The CUDA C of `func`, scheduled by `rule`, or by dlight's fallback where the rule declines."""
    with target:
        mod = dl.ApplyDefaultSchedule(rule, dl.gpu.Fallback())(tvm.IRModule({"main": func}))
    return tvm.compile(mod, target).mod.imports[0].inspect_source()


def test_float16_products_of_the_pipeline_use_tensor_cores_and_sum_in_float32():
    arch = "sm_100a"
    target = target_of(arch)
    executable = tvm.compile(relax_module(LAYER), target, relax_pipeline=fusion_pipeline(target))
    source = executable.mod.imports[0].imports[0].inspect_source()
    assert "mma_sync" in source
    assert "wmma::accumulator, 16, 16, 16, float>" in source
    if not missing():
        assert "wmma.mma.sync" in ptx(source, arch)


def test_dlight_s_own_rule_misses_them_where_the_name_ends_in_a_letter():
    """If this fails, TVM has mended its rule, and MatmulOnTensorCores can go."""
    func = matmul_bias(128, 128, 128, "float16")
    found = {
        arch: "mma_sync" in source_of(dl.gpu.Matmul(), func, target_of(arch))
        for arch in ("sm_90", "sm_90a", "sm_100a")
    }
    assert found == {"sm_90": True, "sm_90a": False, "sm_100a": False}


@pytest.mark.parametrize(
    ("size", "arch", "taken"),
    [
        ((65, 65, 65), "sm_90a", True),
        ((100, 4090, 80), "sm_75", True),
        ((64, 4090, 4096), "sm_90a", False),
    ],
)
def test_the_rule_takes_float16_to_tensor_cores_if_each_side_is_above_64(size, arch, taken):
    source = source_of(MatmulOnTensorCores(), matmul_bias(*size, "float16"), target_of(arch))
    assert ("mma_sync" in source) == taken


def test_dlight_s_own_rule_declines_the_fused_layer():
    """The premise of chapter 8's choice: the rule wants a block with two reads, and the fused block has three."""
    fused, _ = start_from_bias(matmul_bias(128, 128, 128, "float32"))
    funcs = matmul_bias(128, 128, 128, "float32"), fused.mod["main"]
    taken = [dl.gpu.Matmul().apply(func, CUDA, False) is not None for func in funcs]
    assert taken == [True, False]
