"""NVIDIA's compiler takes the kernels TVM writes, and its counts are read from its report."""

from __future__ import annotations

import pytest
from tvm import tirx
from tvm.target import Target

from chapters.toolkit.gpu import cuda_resources
from chapters.toolkit.gpu.cuda_resources import CompileError, compiled, resources
from chapters.toolkit.gpu.launches import HostProgram
from chapters.toolkit.ir.row_index import row_dimensions
from solutions.ch04_add_rms_norm.fuse_add_norm import FuseAddRMSNorm, Plan, wide_kernel
from tests.checks.add_norm import kernels, plain

pytestmark = pytest.mark.skipif(bool(cuda_resources.missing()), reason=cuda_resources.missing())


def _source(func: tirx.PrimFunc, arch: str) -> str:
    ((_, kernel),) = HostProgram(func, Target({"kind": "cuda", "arch": arch})).kernels.items()
    return kernel.source


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a"])
@pytest.mark.parametrize(
    ("hidden", "dtype"),
    [(4096, "bfloat16"), (8192, "bfloat16"), (1000, "float16"), (16384, "float32")],
)
def test_the_pass_gives_kernels_that_spill_nothing(arch, hidden, dtype):
    target = Target({"kind": "cuda", "arch": arch})
    (kernel,) = kernels(FuseAddRMSNorm(target)(plain(("n", 1, hidden), dtype))).values()
    used = resources(_source(kernel, arch), arch)
    assert 0 < used.registers <= 64  # so that a multiprocessor holds its 1024 threads and more
    assert used.spill_store_bytes == used.spill_load_bytes == used.stack_bytes == 0


def test_spilled_registers_are_counted():
    dims = row_dimensions([tirx.Var("n", "int64"), tirx.IntImm("int64", 65536)])
    used = resources(
        _source(wide_kernel(dims, 65536, "float16", 1e-5, Plan(1024, 8, 1)), "sm_90a"), "sm_90a"
    )
    assert used.spill_store_bytes > 0 and used.spill_load_bytes > 0 and used.stack_bytes > 0


def test_machine_code_is_made():
    code, report = compiled('extern "C" __global__ void nothing() {}', "sm_80")
    assert code[:4] == b"\x7fELF" and "nothing" in report


def test_a_text_that_is_no_cuda_is_refused_with_the_compilers_words():
    with pytest.raises(CompileError, match="nonsense"):
        compiled("nonsense", "sm_80")
