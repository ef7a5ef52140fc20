"""Linear layers of float16 and bfloat16 on NVIDIA GPUs: which kernel takes them, and that the numbers are right.

The generated CUDA runs on the CPU. The reference is NumPy in float64; results start as NaN.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
import tvm
from tvm import te, tirx
from tvm.s_tir import dlight as dl
from tvm.target import Target

from chapters.ch08_gpu_targets.given import start_from_bias
from chapters.checking.programs import kernels
from chapters.kit.cases.example_programs import linear_bias
from chapters.kit.cases.relax_text import relax_module
from chapters.kit.emulator.cuda_on_cpu import CudaOnCpu
from chapters.kit.gpu import cuda_resources
from chapters.kit.gpu.cuda_resources import compile_ptx, missing
from chapters.kit.gpu.launches import HostProgram
from chapters.kit.gpu.limits import block_shared_bytes
from chapters.kit.gpu.mma import TILES
from chapters.kit.gpu.targets import CUDA, DLIGHT_CUDA, cuda
from chapters.kit.ir.tensor_ir import nodes
from chapters.kit.schedules.matmul_on_tensor_cores import MatmulOnTensorCores
from chapters.kit.schedules.recognize_layer import match_layer, merge_epilogue
from chapters.kit.schedules.schedule_linear_layers import ScheduleLinearLayers
from solutions.ch03_transpose_matmul.fuse_transpose_matmul import nt_matmul
from solutions.ch09_the_compiler.pipeline import fusion_pipeline
from tests.support import injected_faults
from tests.support.kernel_by_kernel import KernelByKernel
from tests.support.kernels import EPILOGUES, LOWER, after_phases, linear_module

N, K = 128, 96
NARROW = ("float16", "bfloat16")
ANY = ("n",)


# those whose sums start from b
FROM_BIAS = {"bias", "gelu", "bias and residual", "residual first, then bias", "silu"}


def target_of(arch: str) -> Target:
    return Target({**DLIGHT_CUDA.export(), "arch": arch})


def schedule_layers(mod, target: Target = DLIGHT_CUDA, **bounds: int) -> tvm.IRModule:
    """`mod` as kernels, without a schedule but the one for linear layers."""
    lowered = after_phases(mod, target, *LOWER, variable_bounds=bounds)
    return ScheduleLinearLayers(target, bounds)(lowered)


def draw_operands(rows, dtype: str, n: int = N, k: int = K, wide: str = "") -> list[np.ndarray]:
    random = np.random.default_rng(n + k + len(rows) + rows[-1])
    shapes = {"x": (*rows, k), "w": (n, k), "b": (n,), "r": (*rows, n)}
    kinds = {"b": wide or dtype, "r": wide or dtype}
    return [random.standard_normal(s).astype(kinds.get(a, dtype)) for a, s in shapes.items()]


def check_numbers(mod: tvm.IRModule, exact, arrays, target: Target = DLIGHT_CUDA) -> dict[str, int]:
    """Run `mod` and compare with `exact`; how often each kernel was launched.

    Half a unit in the last place is the rounding of the result. The other half allows for sums in float32, and the
    second term for results that are small because their terms cancel.
    """
    run = KernelByKernel(mod, target, CudaOnCpu())
    got = run.run("main", *arrays)
    x, w, b, r = (array.astype("float64") for array in arrays)
    want, size = exact(x @ w.T, b, r), np.abs(x) @ np.abs(w).T + np.abs(b) + np.abs(r)
    digits = {"float16": 10, "bfloat16": 7, "float32": 21}[str(got.dtype)]
    ulp = 2.0 ** (np.floor(np.log2(np.maximum(np.abs(want), 2.0**-14))) - digits)
    slope = 1 + np.abs(r)  # of the products in these epilogues
    assert (np.abs(got.astype("float64") - want) < ulp + 2.0**-21 * size * slope).all()
    return run.launched


def kernel_sources(func: tirx.PrimFunc, target: Target = DLIGHT_CUDA) -> dict[str, str]:
    """The CUDA text of each kernel of `func`, without what TVM puts before all."""
    found = HostProgram(func, target).kernels
    return {name: one.source.rpartition("#endif\n")[2] for name, one in found.items()}


def has_mma(func: tirx.PrimFunc, target: Target = DLIGHT_CUDA) -> bool:
    return any("mma.sync" in text for text in kernel_sources(func, target).values())


def only_kernel(mod: tvm.IRModule) -> tirx.PrimFunc:
    (func,) = kernels(mod).values()
    return func


def has_schedule(mod: tvm.IRModule) -> bool:
    return "tirx.is_scheduled" in (only_kernel(mod).attrs or {})


# --- numbers --------------------------------------------------------------------------------------


BIAS, SILU, BOTH = (EPILOGUES[name] for name in ("bias", "silu", "bias and residual"))
RELU = ("R.nn.relu(R.add(y, b))", lambda y, b, r: np.maximum(y + b, 0))
LAYERS = {  # name: (rows, epilogue, dtype, the dtype that is asked for, rows of each call)
    **{
        name: ((1, "n"), epilogue, NARROW[at % 2], "", [(1, 70), (1, 3)])  # many rows and few
        for at, (name, epilogue) in enumerate(EPILOGUES.items())
        if epilogue not in (BIAS, SILU, BOTH)  # which run below
    },
    **{f"{dtype} to float32": (ANY, RELU, dtype, "float32", [(13,)]) for dtype in NARROW},
    "a bias is added in float32, and then rounded": (
        (12,), ('R.astype(R.add(y, b), "float16")', BIAS[1]), "float16", "float32", [(12,)],
    ),
    "2 rows": ((2,), SILU, "bfloat16", "", [(2,)]),
    "8 rows": ((8,), SILU, "bfloat16", "", [(8,)]),
    "17 rows": ((17,), SILU, "float16", "", [(17,)]),
    "unknown dimensions are rows": (("batch", "n"), BOTH, "float16", "", [(2, 7), (2, 3)]),
    "a known dimension too": ((3, "n"), BOTH, "float16", "", [(3, 5), (3, 1)]),
}  # fmt: skip


@injected_faults.runs_here
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_scheduled_and_right(name):
    rows, (text, exact), dtype, out, calls = LAYERS[name]
    mod = schedule_layers(linear_module(rows, text, dtype, out=out))
    assert has_schedule(mod)
    for called in calls:
        check_numbers(mod, exact, draw_operands(called, dtype, wide=out))


@pytest.mark.parametrize("name", EPILOGUES)
def test_sums_start_from_the_bias_where_every_use_of_the_product_adds_it(name):
    (text, _), dtype = EPILOGUES[name], "bfloat16"
    lowered = after_phases(linear_module((9,), text, dtype), DLIGHT_CUDA, *LOWER)
    recognized = match_layer(merge_epilogue(only_kernel(lowered)))
    assert (recognized.start is not None) is (name in FROM_BIAS)
    # one rounding: the last operation
    casts = [str(c.ty.dtype) for c in nodes(recognized.value, tirx.Cast)]
    assert casts.count(dtype) == 1 and isinstance(recognized.value, tirx.Cast)


@injected_faults.runs_here
def test_a_program_that_looks_at_its_rounding_sees_it():
    """The error of rounding y: without the rounding, this would be 0."""
    text = 'R.astype(R.subtract(R.astype(R.astype(y, "float16"), "float32"), y), "float16")'
    mod = schedule_layers(linear_module((16,), text, out="float32"))
    assert has_schedule(mod)
    x, w, b, r = draw_operands((16,), "float16", wide="float32")
    got = KernelByKernel(mod, DLIGHT_CUDA, CudaOnCpu()).run("main", x, w, b, r)
    y = x.astype("float64") @ w.T.astype("float64")
    wrong = np.abs(got - (y.astype("float32").astype("float16").astype("float64") - y)) > 1e-4
    assert (
        np.abs(got).max() > 1e-3 and wrong.mean() < 0.01
    )  # sums in another order round differently now and then


# --- which kernel ---------------------------------------------------------------------------------


@injected_faults.runs_here
def test_a_call_takes_the_kernel_for_its_number_of_rows():
    """Few rows: one block row of 2, 4 or 8; more: tensor cores, in tiles of 64 rows."""
    mod = schedule_layers(linear_module(ANY, "R.add(y, b)"))
    run = {}
    for rows in (1, 2, 3, 4, 5, 8, 9, 17, 64, 100):
        launched = check_numbers(mod, BIAS[1], draw_operands((rows,), "float16"))
        (run[rows],) = launched
        assert launched[run[rows]] == 1
    few = [run[1], run[3], run[5]]
    assert [run[2], run[4], run[8]] == few and len(set(few)) == 3
    assert {run[9], run[17], run[64], run[100]} == {run[9]} and run[9] not in few
    text = kernel_sources(only_kernel(mod))
    assert [name for name in text if "mma.sync" in text[name]] == [run[9]]
    assert all("shfl_xor" in text[name] for name in few)


ROWS = [(1, None), (2, False), (8, False), (9, True), (100, True)]


@pytest.mark.parametrize(("rows", "cores"), ROWS)
def test_the_number_of_rows_decides_where_it_is_known(rows, cores):
    target = target_of("sm_80")
    mod = schedule_layers(linear_module((rows,), "R.add(y, b)"), target)
    assert has_schedule(mod) is (cores is not None)
    if cores is not None:
        assert has_mma(only_kernel(mod), target) is cores


@injected_faults.runs_here
def test_a_bound_decides_which_kernels_there_are_and_never_the_numbers():
    """With at most six rows there is no kernel for many; with more than the caller promised, it is slow and right."""
    mod = schedule_layers(linear_module(("batch", 1), "R.add(y, b)"), batch=6)
    assert not has_mma(only_kernel(mod))
    for rows in (6, 19):
        check_numbers(mod, BIAS[1], draw_operands((rows, 1), "float16"))


@injected_faults.needs_compiler
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_compiles_and_spills_nothing(arch):
    target = target_of(arch)
    func = only_kernel(schedule_layers(linear_module(ANY, EPILOGUES["gate"][0]), target))
    for name, text in HostProgram(func, target).kernels.items():
        _, report = cuda_resources.compile_cuda(text.source, arch)
        assert not re.search(r"[1-9]\d* bytes (spill|stack)", report), (name, report)


@pytest.mark.parametrize("arch", ["sm_86", "sm_100a"])  # with the least and the most of it
def test_a_block_asks_for_no_more_shared_memory_than_the_architecture_has(arch):
    mod = schedule_layers(linear_module((4096,), "y", n=4096, k=4096), target_of(arch))
    func = only_kernel(mod)
    pools = [b for b in nodes(func.body, tvm.ir.Var) if tirx.is_buffer_var(b)]
    asked = max(
        2 * int(b.shape[0]) for b in pools if b.scope() == "shared.dyn" and len(b.shape) == 1
    )
    assert asked == TILES[0].shared_bytes <= block_shared_bytes(arch)


def test_addresses_of_an_unknown_number_of_rows_have_64_bits():
    func = only_kernel(schedule_layers(linear_module(ANY, "y")))
    assert all("(int64_t)" in text for text in kernel_sources(func).values())


# --- what is left for dlight ----------------------------------------------------------------------

# rows, dtype, n, k, architecture, and whether the engine knows every word of dlight's kernel
LEFT = {
    "one row": ((1,), "float16", N, K, "sm_90a", True),
    "columns": ((9,), "float16", 100, K, "sm_90a", False),
    "steps": (ANY, "float16", N, 40, "sm_90a", True),
    "pieces": ((4,), "float16", N, 36, "sm_90a", False),
    "float32": (ANY, "float32", N, K, "sm_90a", True),
    "an older GPU": (ANY, "bfloat16", N, K, "sm_75", False),
}


@injected_faults.runs_here
@pytest.mark.parametrize("case", LEFT)
def test_what_no_kernel_fits_is_left_for_dlight_and_right(case):
    rows, dtype, n, k, arch, runs = LEFT[case]
    target, mod = target_of(arch), linear_module(rows, "R.add(y, b)", dtype, n, k)
    assert not has_schedule(schedule_layers(mod, target))
    scheduled = after_phases(mod, target)
    assert all(kernel_sources(func, target) for func in kernels(scheduled).values())
    if runs:
        arrays = draw_operands(tuple(5 if one == "n" else one for one in rows), dtype, n, k)
        got = KernelByKernel(scheduled, target, CudaOnCpu()).run("main", *arrays)
        x, w, b, _ = (array.astype("float64") for array in arrays)
        np.testing.assert_allclose(got, x @ w.T + b, rtol=2e-3, atol=2e-2)


def test_other_kinds_of_gpu_are_left():
    mod = after_phases(linear_module(ANY, "y"), DLIGHT_CUDA, *LOWER)
    for kind in ("metal", "vulkan", "llvm"):
        assert not has_schedule(ScheduleLinearLayers(Target(kind), {})(mod))


def product_with_element(dtype: str, out: str, element=None) -> tvm.IRModule:
    """A product of (64, 64) matrices summed in `out`, and a block that stores element(sums, i, j)."""
    w, x = te.placeholder((64, 64), dtype, "w"), te.placeholder((64, 64), dtype, "x")
    y = nt_matmul(w, x, out)
    last = [te.compute((64, 64), lambda i, j: element(y, i, j))] if element else [y]
    return tvm.IRModule({"main": te.create_prim_func([w, x, *last], "int64")})


OTHERS = {
    "sums in float16": ("float16", "float16", None),
    "integers": ("int8", "int32", None),
    "its neighbour's sum": ("float16", "float32", lambda y, i, j: y[i, (j + 1) % 64]),
    "transposed": ("float16", "float32", lambda y, i, j: y[j, i]),
    "a result of integers": ("float16", "float32", lambda y, i, j: y[i, j].astype("int32")),
    "the other narrow dtype": ("float16", "float32", lambda y, i, j: y[i, j].astype("bfloat16")),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_kernels_stay_as_they_are(name):
    mod = product_with_element(*OTHERS[name])
    assert ScheduleLinearLayers(DLIGHT_CUDA, {})(mod)["main"].same_as(mod["main"])


def test_the_same_kernel_with_its_own_sum_is_taken():
    mod = product_with_element("float16", "float32", lambda y, i, j: y[i, j] + 1)
    assert has_schedule(ScheduleLinearLayers(DLIGHT_CUDA, {})(mod))


# --- dlight's tensor cores, for what is left ------------------------------------------------------

# the limits hold for every NVIDIA GPU; dlight's rules ask for them
LIMITS = {"max_shared_memory_per_block": 49152, "max_threads_per_block": 1024}
# 264 columns do not fill the tiles of the kernels that start from the bias, so dlight's rule gets the layer
LEFT_TO_DLIGHT = """
def main(x: ("n", 256, "float16"), w: (264, 256, "float16"), b: (264, "float16")):
    out = R.nn.relu(R.add(R.matmul(x, R.permute_dims(w)), b))
"""


def target_with_limits(arch: str) -> Target:
    return Target({**cuda(arch).export(), **LIMITS})


def source_scheduled_by(rule, func, target: Target) -> str:
    """The CUDA C of `func`, scheduled by `rule`, or by dlight's fallback where the rule declines."""
    with target:
        mod = dl.ApplyDefaultSchedule(rule, dl.gpu.Fallback())(tvm.IRModule({"main": func}))
    return tvm.compile(mod, target).mod.imports[0].inspect_source()


def test_float16_products_of_the_pipeline_use_tensor_cores_and_sum_in_float32():
    arch = "sm_100a"
    target = target_with_limits(arch)
    executable = tvm.compile(
        relax_module(LEFT_TO_DLIGHT), target, relax_pipeline=fusion_pipeline(target)
    )
    source = executable.mod.imports[0].imports[0].inspect_source()
    assert "mma_sync" in source
    assert "wmma::accumulator, 16, 16, 16, float>" in source
    if not missing():
        assert "wmma.mma.sync" in compile_ptx(source, arch)


@pytest.mark.parametrize(
    ("size", "arch", "taken"),
    [
        ((65, 65, 65), "sm_90a", True),
        ((100, 4090, 80), "sm_75", True),
        ((64, 4090, 4096), "sm_90a", False),
    ],
)
def test_the_rule_takes_float16_to_tensor_cores_if_each_side_is_above_64(size, arch, taken):
    source = source_scheduled_by(
        MatmulOnTensorCores(), linear_bias(*size, "float16"), target_with_limits(arch)
    )
    assert ("mma_sync" in source) == taken


def test_dlight_s_own_rule_declines_the_fused_layer():
    """The premise of chapter 8's choice: the rule wants a block with two reads, and the fused block has three."""
    fused, _ = start_from_bias(linear_bias(128, 128, 128, "float32"))
    funcs = linear_bias(128, 128, 128, "float32"), fused.mod["main"]
    taken = [dl.gpu.Matmul().apply(func, CUDA, False) is not None for func in funcs]
    assert taken == [True, False]
