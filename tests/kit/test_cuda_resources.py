"""NVIDIA's compiler takes the kernels TVM writes, and its counts are read from its report."""

from __future__ import annotations

import pytest
from tvm import tirx

from chapters.ch04_add_rms_norm.given import Plan, wide_kernel
from chapters.checking.programs import kernels
from chapters.kit.cases.add_norm import unfused
from chapters.kit.gpu.cuda_resources import CompileError, compiled, resources
from chapters.kit.gpu.targets import cuda
from chapters.kit.ir.row_index import row_dimensions
from solutions.ch04_add_rms_norm.fuse_add_norm import FuseAddRMSNorm
from tests.support.planted_faults import needs_compiler, source_of

pytestmark = needs_compiler
ROWS = [(8192, "bfloat16"), (1000, "float16"), (16384, "float32")]


@pytest.mark.parametrize("arch", ["sm_80", "sm_100a"])
@pytest.mark.parametrize(("hidden", "dtype"), ROWS)
def test_the_pass_gives_kernels_that_spill_nothing(arch, hidden, dtype):
    target = cuda(arch)
    (kernel,) = kernels(FuseAddRMSNorm(target)(unfused(("n", 1, hidden), dtype))).values()
    used = resources(source_of(kernel, target), arch)
    assert 0 < used.registers <= 64  # so that a multiprocessor holds its 1024 threads and more
    assert used.spill_store_bytes == used.spill_load_bytes == used.stack_bytes == 0


def test_spilled_registers_are_counted():
    dims = row_dimensions([tirx.Var("n", "int64"), tirx.IntImm("int64", 65536)])
    spilling = wide_kernel(dims, 65536, "float16", 1e-5, Plan(1024, 8, 1))
    used = resources(source_of(spilling), "sm_90a")
    assert used.spill_store_bytes > 0 and used.spill_load_bytes > 0 and used.stack_bytes > 0


def test_machine_code_is_made():
    code, report = compiled('extern "C" __global__ void nothing() {}', "sm_80")
    assert code[:4] == b"\x7fELF" and "nothing" in report


def test_text_that_is_not_cuda_is_refused_with_the_compilers_message():
    with pytest.raises(CompileError, match="nonsense"):
        compiled("nonsense", "sm_80")
