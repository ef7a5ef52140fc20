"""Kernels with one fault each: the emulator names it in any order of threads, and passes the right kernel."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from chapters.checking.gpu_kernels import draw_arrays
from chapters.kit.cases.example_programs import linear_bias
from chapters.kit.emulator.cuda_on_cpu import CudaOnCpu
from chapters.kit.gpu.launches import LaunchError, UnknownInstructionError
from solutions.ch08_gpu_targets import gpu_schedules as ch8
from tests.support.injected_faults import run_changed, run_text, runs_here, source_of

pytestmark = runs_here
ORDERS = {"forwards": CudaOnCpu(), "backwards": CudaOnCpu(backwards=True)}
ORDERS |= {f"seed {seed}": CudaOnCpu(seed=seed) for seed in (1, 2, 3)}
S = "__shared__ alignas(64) float s_ptr[64];\n"
POOL = "extern __shared__ __align__(64) uchar pool_ptr[];\n"
COPY = """
__forceinline__ __device__ void copy(uint32_t to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" : : "r"(to), "l"(from) : "memory");
}
__forceinline__ __device__ void copy16(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" : : "r"(to), "l"(from) : "memory");
}
__forceinline__ __device__ void commit() { asm volatile("cp.async.commit_group;" : : ); }
__forceinline__ __device__ void wait() { asm volatile("cp.async.wait_group 0;" : : : "memory"); }
"""


@dataclass(frozen=True)
class Fault:
    """A right kernel in CUDA C, and what makes it wrong: `old` replaced by `new`. said: the complaint, as a regex.

    `t` is threadIdx.x, `out` has 256 floats, and `given` holds 0, 1, 2, … in 256.
    """

    right: str
    old: str
    said: str
    new: str = ""
    threads: int = 64
    blocks: int = 1


THREAD = r"thread \(\d+, 0, 0\)"
BETWEEN = rf"^In main_kernel, {THREAD} of block \(0, 0, 0\) (reads|writes) {{}}\[\d+\]{{}}, which {THREAD} "
BETWEEN += r"(reads|writes), and no barrier separates them: __syncthreads\(\){} is missing\.( The order.*)?$"
OR_IN_WARP = r" or, within this warp, __syncwarp\(\)"
IN_SHARED = BETWEEN.format("s", " in shared memory", f"({OR_IN_WARP})?")
IN_WARP = BETWEEN.format("s", " in shared memory", OR_IN_WARP)
IN_GLOBAL = BETWEEN.format("out", "", f"({OR_IN_WARP})?")
IN_POOL = rf"(reads|writes) byte \d+ of its dynamic shared memory( before any thread|, which {THREAD} (reads|writes), "
IN_POOL += r"and no barrier separates them: __syncthreads\(\) or an mbarrier is missing)"
BLOCKS = r"of block \([012], 0, 0\) {} out\[\d+\], which thread \(\d+, 0, 0\) of block \([012], 0, 0\) {}, and two "
BLOCKS += "blocks may run in any order: let one block do both, or begin another kernel"

EXCHANGED = (
    S + "s_ptr[t] = 1.0f;\nfloat x = EXCHANGE;\n__syncwarp();\nout_ptr[t] = s_ptr[31 - t] + x;"
)


def exchange_fault(by: str) -> Fault:
    """Lanes exchange something, and read what their neighbours wrote before."""
    return Fault(EXCHANGED.replace("EXCHANGE", by), "__syncwarp();", IN_WARP, threads=32)


WMMA = """([] {
  nvcuda::wmma::fragment<nvcuda::wmma::accumulator, 16, 16, 16, float> c;
  nvcuda::wmma::fragment<nvcuda::wmma::matrix_a, 16, 16, 16, half, nvcuda::wmma::row_major> a;
  nvcuda::wmma::fragment<nvcuda::wmma::matrix_b, 16, 16, 16, half, nvcuda::wmma::col_major> b;
  nvcuda::wmma::fill_fragment(a, 1.0f); nvcuda::wmma::fill_fragment(b, 1.0f); nvcuda::wmma::fill_fragment(c, 1.0f);
  nvcuda::wmma::mma_sync(c, a, b, c);
  return c.x[0];
})()"""
EXCHANGES = {
    "a shuffle is no barrier": exchange_fault("__shfl_sync(0xffffffffu, 1.0f, 0, 32)"),
    "a tensor core is no barrier": exchange_fault(WMMA),
    "__activemask is no barrier": exchange_fault("(float)__activemask()"),
}

SHARED = {
    "no barrier after a store": Fault(S + "s_ptr[t] = given_ptr[t];\n__syncthreads();\nout_ptr[t] = s_ptr[63 - t];",
        "__syncthreads();", IN_SHARED),
    "lanes of a warp do not run in step": Fault(S
        + "s_ptr[t] = 1.0f;\n__syncthreads();\nif (t < 32) for (int d = 32; d > 0; d >>= 1) {\n"
        "  float x = s_ptr[t + d < 64 ? t + d : t];\n  __syncwarp(); // read\n  s_ptr[t] = s_ptr[t] + x;\n"
        "  __syncwarp();\n}\nout_ptr[t] = t < 32 ? s_ptr[t] : 0.0f;", "__syncwarp(); // read", IN_WARP),
    # thread 1 is the last reader in one order, thread 0 in the other
    "the reader before the last one": Fault(S
        + "if (t == 5) s_ptr[0] = 1.0f;\n__syncthreads();\nfloat x = t < 2 ? (float)s_ptr[0] : 0.0f;\n"
        "__syncthreads(); // read\nif (t == 1) s_ptr[0] = 2.0f;\nout_ptr[t] = x;", "__syncthreads(); // read",
        IN_WARP),
    "a reader of another warp": Fault(S
        + "if (t == 5) s_ptr[0] = 1.0f;\n__syncthreads();\nfloat x = s_ptr[0];\n__syncthreads(); // read\n"
        "if (t == 63) s_ptr[0] = 2.0f;\nout_ptr[t] = x;", "__syncthreads(); // read", IN_SHARED),
    "a value that two threads write, and one changes": Fault(S
        + "if (t < 2) s_ptr[0] = 1.0f;\n__syncthreads();\nif (t == 1) s_ptr[0] = 2.0f;\n"
        "__syncthreads();\nout_ptr[t] = s_ptr[0];", "1.0f;\n__syncthreads();", IN_WARP, new="1.0f;"),
    "a read of what was never written": Fault(S
        + "if (t % 2 == 0) s_ptr[t] = 1.0f;\n__syncthreads();\nout_ptr[t] = s_ptr[t & 62];", "t & 62",
        r"thread \(\d+, 0, 0\) of block \(0, 0, 0\) reads s\[\d+\] in shared memory "
        "before any thread of its block has written it", new="t"),
    "a store past the end": Fault(S + "s_ptr[t] = 1.0f;\n__syncthreads();\nout_ptr[t] = s_ptr[t];", "s_ptr[t] = 1",
        r"thread \(63, 0, 0\) of block \(0, 0, 0\) touches s\[64\] in shared memory, and s has 64 elements",
        new="s_ptr[t + 1] = 1"),
    "a wide store that is not waited for": Fault(S
        + "*(float4*)(s_ptr + t % 16 * 4) = make_float4(1, 2, 3, 4);\n__syncthreads();\n"
        "out_ptr[t] = s_ptr[63 - t];", "__syncthreads();", IN_SHARED),
    "a wide store that is not aligned": Fault(S
        + "if (t < 15) *(float4*)(s_ptr + (t * 4)) = make_float4(1, 2, 3, 4);", "t * 4",
        r"s\[\d+\] 16 bytes wide, which is not aligned", new="t * 4 + 1"),
    "an atomic sum read too early": Fault(S
        + "if (t == 0) s_ptr[0] = 0.0f;\n__syncthreads();\natomicAdd(&(s_ptr[0]), 1.0f);\n__syncthreads(); // sum\n"
        "out_ptr[t] = s_ptr[0];", "__syncthreads(); // sum",
        r"(reads s\[0\] in shared memory, which (several threads|thread .*) changes?|"
        r"atomically changes s\[0\] in shared memory, which thread .* reads), and no barrier separates them"),
}  # fmt: skip

GLOBAL = {
    "threads exchange through global memory": Fault(
        "out_ptr[t] = given_ptr[t];\n__syncthreads();\nout_ptr[t + 64] = out_ptr[63 - t];", "__syncthreads();",
        IN_GLOBAL),
    "a wide store over a neighbour's": Fault("*(float2*)(out_ptr + (t * 2)) = make_float2(given_ptr[t], 2);", "t * 2",
        r"writes out\[\d+\], which thread .* writes, and no barrier", new="t / 2 * 2"),
    "a load past the end": Fault("out_ptr[t] = given_ptr[t * 4];", "t * 4",
        r"touches given\[256\], and given has 256 elements", new="t * 4 + 4"),
    "two blocks write one element": Fault("out_ptr[(int)blockIdx.x * 64 + t] = given_ptr[(int)blockIdx.x];",
        "blockIdx.x * 64", BLOCKS.format("writes", "writes"), new="blockIdx.x * 63", blocks=3),
    "a block reads what another writes": Fault(
        "int i = (int)blockIdx.x * 64 + t;\nout_ptr[i] = t;\nout_ptr[i] = out_ptr[i] + 1.0f;", "= out_ptr[i]",
        BLOCKS.format("(reads|writes)", "(reads|writes)"), new="= out_ptr[t]", blocks=3),
    "a store into what blocks add up": Fault(
        "if ((int)blockIdx.x == 9) out_ptr[0] = 0.0f;\natomicAdd(&(out_ptr[0]), 1.0f);", "== 9",
        r"of block \([012], 0, 0\) (writes|atomically changes) out\[0\], which .* (changes?|writes), and two "
        r"blocks may run in any order|" r"out\[0\], .* and no barrier separates them", new="== 1", blocks=3),
}  # fmt: skip

LANES = "float x = t;\n"
WARPS = {
    "a shuffle from a lane that has ended": Fault(LANES
        + "if (t >= 32) return;\nout_ptr[t] = __shfl_down_sync(0xffffffffu, x, 16, 32);", ">= 32",
        r"thread \(\d+, 0, 0\) of block \(0, 0, 0\) reads by __shfl_down_sync from thread "
        r"\(16, 0, 0\), which has ended", new=">= 16"),
    "a shuffle from a lane that is not there": Fault(LANES + "out_ptr[t] = __shfl_xor_sync(0xffffffffu, x, 8, 32);",
        "x, 8", r"reads lane \d+ by __shfl_xor_sync, and its warp has no such lane", new="x, 16", threads=16),
    "a shuffle from a lane outside the mask": Fault(LANES
        + "if (t < 16) out_ptr[t] = __shfl_sync(0x0000ffffu, x, 7, 32);", "x, 7",
        r"reads by __shfl_sync from thread \(20, 0, 0\), which its mask leaves out", new="x, 20", threads=32),
    "a mask that leaves out its own lane": Fault(S
        + "s_ptr[t] = 1.0f;\n__syncwarp(0xffffffffu);\nout_ptr[t] = s_ptr[31 - t];", "0xffffffffu",
        r"calls __syncwarp with the mask 0x0000ffff, which leaves out its own lane, \d+", new="0x0000ffffu",
        threads=32),
    "masks that do not order the lanes": Fault(S
        + "s_ptr[t] = 1.0f;\n__syncwarp(0xffffffffu);\nout_ptr[t] = s_ptr[31 - t];", "0xffffffffu", IN_WARP,
        new="t < 16 ? 0x0000ffffu : 0xffff0000u", threads=32),
    "a full mask in a branch": Fault(LANES
        + "if (t < 16) x = __shfl_down_sync(0x0000ffffu, x, 1, 16);\n__syncthreads();\nout_ptr[t] = x;",
        "0x0000ffffu",
        r"never ends: \d+ of 64 threads wait at a barrier, and thread \(0, 0, 0\) waits in __shfl_down_sync for thread "
        r"\(16, 0, 0\) of its warp, which waits at a barrier", new="0xffffffffu"),
    "lanes with different masks": Fault(LANES + "x = __shfl_down_sync(0xffffffffu, x, 1, 32);\nout_ptr[t] = x;",
        "0xffffffffu", r"for thread \(1, 0, 0\) of its warp, which has the mask 0x7fffffff and not 0xffffffff",
        new="t % 32 == 0 ? 0xffffffffu : 0x7fffffffu | 1u << t % 32"),
    "a tensor core in a warp of which a lane has ended": Fault(f"if (t == 99) return;\nout_ptr[t] = {WMMA};",
        "t == 99", r"executes mma_sync, which needs all 32 lanes of its warp, and thread \(31, 0, 0\) has ended",
        new="t == 31", threads=32),
}  # fmt: skip

BARRIERS = {
    "a barrier in either branch": Fault("out_ptr[t] = 1.0f;\n__syncthreads();", "__syncthreads();",
        "wait at different barriers", new="if (t < 32) {\n__syncthreads();\n} else {\n__syncthreads();\n}"),
    "a thread that ends before the barrier": Fault("if (t == 99) return;\n__syncthreads();\nout_ptr[t] = 1.0f;", "99",
        r"never ends: 63 of 64 threads wait at a barrier, and thread \(7, 0, 0\) has ended", new="7"),
}  # fmt: skip

COPIED = (
    S
    + "copy(__cvta_generic_to_shared(&(s_ptr[t])), &(given_ptr[t]));\ncommit();\nwait();\n__syncthreads();\n"
)
COPIED += "out_ptr[t] = s_ptr[63 - t];"
READ_THEN_COPY = (
    S + "s_ptr[t] = 7.0f;\n__syncthreads();\nfloat seen = s_ptr[t];\n__syncthreads(); // read\n"
    "if (t == 1) copy16(__cvta_generic_to_shared(&(s_ptr[8])), &(given_ptr[8]));\ncommit();\nwait();\n"
    "__syncthreads();\nout_ptr[t] = seen + s_ptr[t];"
)
COPIES = {
    "a copy that is not waited for": Fault(COPIED, "wait();",
        r"reads s\[\d+\] in shared memory, which an asynchronous copy of thread \(\d+, 0, 0\) still fills: that thread "
        r"must wait for it \(cp\.async\.wait_group\), and then a barrier must follow"),
    "a copy that its own thread does not wait for": Fault(COPIED.replace("63 - t", "t"), "wait();",
        r"reads s\[\d+\] in shared memory, which its own asynchronous copy still fills: a wait for the copy is "
        "missing"),
    "a store into what a copy fills": Fault(COPIED.replace("wait();\n__syncthreads();",
        "wait();\n__syncthreads();\ns_ptr[t] = 3.0f;\n__syncthreads();"), "wait();",
        "writes s.* its own asynchronous copy still fills"),
    # it may arrive at once
    "a copy over what others still read": Fault(READ_THEN_COPY, "__syncthreads(); // read", f"{IN_SHARED}|still fills"),
    "a wide copy to no multiple of 16 bytes": Fault(READ_THEN_COPY, "s_ptr[8]", "not a multiple of 16", new="s_ptr[9]"),
    "a wide copy past the end": Fault(READ_THEN_COPY, "s_ptr[8]", "which has 256 bytes", new="s_ptr[62]"),
    "a wide copy from outside": Fault(READ_THEN_COPY, "given_ptr[8]", "outside the kernel's arrays",
        new="given_ptr[254]"),
    "a wide copy from between": Fault(READ_THEN_COPY, "given_ptr[8]", "not aligned", new="given_ptr[9]"),
}  # fmt: skip

# thread 32 fills the pool twice, the others add it up; mbarrier 0: it is full, mbarrier 1: it is empty
RING = f"""{POOL}
if (t == 0) {{
  mbarrier_init(shared_address(pool_ptr + 1024), 1);
  mbarrier_init(shared_address(pool_ptr + 1032), 32);
}}
__syncthreads();
float sum = 0;
for (int k = 0; k < 3; ++k) {{
  if (t == 32) {{
    mbarrier_wait(pool_ptr + 1032, (k + 1) & 1);
    for (int i = 0; i < 32; ++i) ((float*)pool_ptr)[i] = k + i;
    mbarrier_arrive(shared_address(pool_ptr + 1024), 1);
  }} else if (t < 32) {{
    mbarrier_wait(pool_ptr + 1024, k & 1);
    sum = sum + ((float*)pool_ptr)[31 - t];
    mbarrier_arrive(shared_address(pool_ptr + 1032), 1);
  }}
}}
out_ptr[t] = sum;
"""
MBARRIERS = {
    "a wait for the other phase": Fault(RING, "1024, k & 1", f"{IN_POOL}|never ends", new="1024, (k + 1) & 1"),
    "the writer is not waited for": Fault(RING, "mbarrier_wait(pool_ptr + 1024, k & 1);",
        f"{IN_POOL}|arrivals of its phase|never ends"),
    "too few arrive": Fault(RING, "1032), 32)",
        r"never ends: .* for an mbarrier \(at 1032, in phase 0, which lacks 1 of 33 arrivals and 0 bytes\)",
        new="1032), 33)"),
    "an arrival before the reading": Fault(RING,
        "sum = sum + ((float*)pool_ptr)[31 - t];\n    mbarrier_arrive(shared_address(pool_ptr + 1032), 1);", IN_POOL,
        new="mbarrier_arrive(shared_address(pool_ptr + 1032), 1);\n    sum = sum + ((float*)pool_ptr)[31 - t];"),
    "no barrier after the mbarriers are made": Fault(RING, "__syncthreads();",
        "where none was made|no barrier of the block separates"),
    "an mbarrier made twice": Fault(RING, "if (t == 0) {",
        r"makes an mbarrier at 1024, where thread \d has made one already", new="if (t < 2) {"),
    "a parity of 2": Fault(RING, "1024, k & 1", "a parity is 0 or 1", new="1024, k"),
    "a store over an mbarrier": Fault(RING, "i < 32; ++i",
        "writes byte 1024 of its dynamic shared memory, where an mbarrier is", new="i < 320; ++i"),
}  # fmt: skip

FAULTS = EXCHANGES | SHARED | GLOBAL | WARPS | BARRIERS | COPIES | MBARRIERS


def _run(body: str, fault: Fault, engine: CudaOnCpu) -> np.ndarray:
    out, given = np.zeros(256, "float32"), np.arange(256, dtype="float32")
    prelude = COPY if fault in COPIES.values() else ""
    body = "int t = threadIdx.x;\n" + body
    how = {"blocks": fault.blocks, "prelude": prelude, "shared_bytes": 2048, "engine": engine}
    run_text(body, fault.threads, **how, out=out, given=given)
    return out


@pytest.mark.parametrize("name", list(FAULTS))
def test_the_fault_is_named_and_the_right_kernel_passes(name):
    fault = FAULTS[name]
    assert fault.old in fault.right
    results = [_run(fault.right, fault, engine).tolist() for engine in ORDERS.values()]
    assert all(result == results[0] for result in results)
    wrong = fault.right.replace(fault.old, fault.new, 1)
    for order, engine in ORDERS.items():
        with pytest.raises(LaunchError, match=fault.said):
            _run(wrong, fault, engine)
            pytest.fail(f"not caught {order}")


# --- what TVM writes for chapter 8's kernels --------------------------------------------------------

SIZE = (64, 64, 64)


def _cores():
    return ch8.tensor_core_matmul(linear_bias(*SIZE))


def run_with_change(old: str, new: str) -> None:
    """Run a product on tensor cores with a part of its text replaced."""
    run_changed(_cores(), draw_arrays(*SIZE, "float16"), lambda text: text.replace(old, new))


def test_fragments_loaded_before_the_barrier_are_a_race():
    text = source_of(_cores())
    last = text[text.rindex("__syncthreads();") :]
    with pytest.raises(LaunchError, match="no barrier separates them"):
        run_with_change(last, last.replace("__syncthreads();", "", 1))


def test_a_tile_outside_the_arrays_is_caught():
    with pytest.raises(LaunchError, match=r"touches C\[\d+\]|outside the kernel's arrays"):
        run_with_change("(&(C_ptr[", "(&(C_ptr[60 + ")


def test_a_fragment_of_another_shape_is_unknown_and_not_wrong():
    with pytest.raises(UnknownInstructionError, match="16 x 16 x 16"):
        run_with_change("16, 16, 16, half", "32, 8, 16, half")


# a fragment f that is filled and stored
STORED = """
nvcuda::wmma::fragment<nvcuda::wmma::accumulator, 16, 16, 16, float> f;
for (int e = 0; e < f.num_elements; e++) f.x[e] = threadIdx.x * 8 + e;
nvcuda::wmma::store_matrix_sync(&(out_ptr[0]), f, 16, nvcuda::wmma::mem_row_major);
"""


def test_which_lane_holds_an_element_is_scrambled():
    """A kernel that counts on a layout of fragments must not pass by luck."""
    tile = np.full(256, np.nan, "float32")
    run_text(STORED, 32, out=tile)
    assert sorted(tile.tolist()) == list(range(256)) and tile.tolist() != list(range(256))


def test_a_warp_of_sixteen_has_no_tensor_core():
    with pytest.raises(LaunchError, match="fewer than 32 threads"):
        run_text(STORED, 16, out=np.zeros(256, "float32"))
