# %% [markdown]
# # Lab: a linear layer on a GPU
#
# This lab builds every kernel of the chapter, counts its memory accesses, and runs it. It needs no GPU. In a terminal:
# `python -m chapters.ch08_gpu_targets.lab`.

# %%
from dataclasses import replace

import numpy as np
from tvm import tirx
from tvm.target import Target

from chapters.ch08_gpu_targets.thread_schedule import (
    naive_matmul,
    pipelined_matmul,
    shared_matmul,
)
from chapters.kit.bench.kernel_counts import resource_table
from chapters.kit.cases.example_programs import linear_bias
from chapters.kit.draw.display import display
from chapters.kit.draw.kernel_picture import kernel_picture
from chapters.kit.draw.table import Table
from chapters.kit.emulator import cuda_on_cpu, wgsl_on_vulkan
from chapters.kit.gpu.call import ASYNCHRONOUS
from chapters.kit.gpu.kernel_report import memory_table
from chapters.kit.gpu.launches import HostProgram, LaunchError
from chapters.kit.gpu.mma import mma_matmul
from chapters.kit.gpu.targets import CUDA
from chapters.kit.gpu.warp_access import accesses
from chapters.kit.ir.ir_diff import show
from chapters.kit.ir.row_index import row_dimensions
from chapters.runner.earlier import describe_owner, earlier

ours = earlier(8)
print("The schedules are", describe_owner(8))

# %% [markdown]
# ## One kernel after another
#
# One layer of 128 x 128 x 128 in float16. Each step changes one thing, and the table shows its effect on memory.

# %%
M, N, K = 128, 128, 128
layer = linear_bias(M, N, K, "float16")
tile = ours.ThreadTile(64, 64, 16, 4, 4, vector=2)
steps = {
    "one element per thread": naive_matmul(layer, ours.ThreadTile(16, 16, 16, 1, 1)),
    "tiles in registers": naive_matmul(layer, tile),
    "tiles in shared memory": shared_matmul(layer, tile, padding=0),
    "rows padded": shared_matmul(layer, tile),
    "copies in flight": pipelined_matmul(layer, tile),
}
display(memory_table(steps))

# %% [markdown]
# Look at the second row. Tiles in registers do not by themselves reduce the number of loads in the program: each thread
# loads an operand once for each of its 4 x 4 sums. NVIDIA's compiler keeps a number that a thread has just loaded. But
# several threads still ask for the same number. A copy in shared memory is loaded once, for all of them.
#
# ## Run them
#
# g++ compiles the CUDA text that TVM writes, and each GPU thread becomes a fiber. If there is a Vulkan device, it runs
# one of the kernels as WGSL.


# %%
def run(func: tirx.PrimFunc, engine, target: Target) -> str:
    """The largest error of `func` on random numbers, compared with float64."""
    random = np.random.default_rng(8)
    a, b = (random.standard_normal(s).astype("float16") for s in ((M, K), (N, K)))
    c = random.standard_normal(N).astype("float32")
    d = np.full((M, N), np.nan, "float32")
    HostProgram(func, target, ASYNCHRONOUS).run(engine, [a, b, c, d])
    return f"{np.abs(d - (a.astype('float64') @ b.T.astype('float64') + c)).max():.1e}"


steps["tensor cores"] = ours.tensor_core_matmul(layer)
rows = []
for name, func in steps.items():
    if cuda_on_cpu.missing():
        rows.append((name, cuda_on_cpu.missing()))
        break
    rows.append((name, run(func, cuda_on_cpu.CudaOnCpu(backwards=True), CUDA)))
if not wgsl_on_vulkan.missing("float16"):
    webgpu = Target({"kind": "webgpu", "max_num_threads": 256})
    error = run(steps["rows padded"], wgsl_on_vulkan.run_wgsl, webgpu)
    rows.append((f"rows padded, as WGSL on {wgsl_on_vulkan.device_name()}", error))
display(Table(("kernel", "largest error"), rows))

# %% [markdown]
# ## A missing barrier
#
# This engine reports faults that a GPU does not report. Here is the kernel with padded rows, without its second
# barrier:

# %%
program = HostProgram(steps["rows padded"], CUDA)
for name, kernel in program.kernels.items():
    before, _, after = kernel.source.rpartition("__syncthreads();")
    program.kernels[name] = replace(kernel, source=before + after)
arrays = [np.ones((M, K), "float16"), np.ones((N, K), "float16"), np.zeros(N, "float32")]
try:
    if not cuda_on_cpu.missing():
        program.run(cuda_on_cpu.CudaOnCpu(), [*arrays, np.zeros((M, N), "float32")])
except LaunchError as error:
    print(error)

# %% [markdown]
# ## What a warp asks for
#
# The table shows the first access of each kind in the kernel with padded rows. A sector is 32 bytes of global memory. A
# bank of shared memory serves one word of 4 bytes at a time. `ways` is the largest number of different words that the
# warp wants from one bank.

# %%
seen = {}
for access in accesses(steps["rows padded"], CUDA):
    key = (access.buffer, "store" if access.writes else "load")
    seen.setdefault(key, access)
rows = []
for (buffer, kind), a in seen.items():
    of_memory = a.scope == "global"
    sectors = f"{a.sectors} of {a.least_sectors}" if of_memory else ""
    rows.append((buffer, kind, a.lanes, sectors, "" if of_memory else str(a.ways)))
display(Table(("buffer", "", "elements per thread", "sectors, of at least", "ways"), rows))

# %% [markdown]
# Each thread loads four neighbouring elements of `C`, one at a time. A vector load would be better, but this happens
# only once.
#
# ## What NVIDIA's compiler makes of them
#
# The compiler reports registers for three architectures. From them we compute the occupancy: the share of a
# multiprocessor's threads that can be resident.

# %%
chosen = {name: steps[name] for name in ("rows padded", "tensor cores")}
chosen["mma.sync, by hand"] = mma_matmul(256, 256, 256, "float16")
display(resource_table(chosen, ("sm_80", "sm_90a", "sm_100a")))

# %% [markdown]
# ## The tensor-core kernel, as loops
#
# `tensorize` has replaced five loop nests by calls. One of them is the init.

# %%
display(show(steps["tensor cores"]))

# %% [markdown]
# ## add-RMSNorm at the speed of memory
#
# This is chapter 4's wide kernel. It loads 16 bytes at a time, and reads or writes every byte once. No schedule moves
# fewer bytes. So the question is how close the kernel comes to the copy rate.

# %%
norm = earlier(4)
dims = row_dimensions([tirx.Var("n", "int64"), tirx.IntImm("int64", 1), tirx.IntImm("int64", 4096)])
wide = norm.wide_kernel(dims, 4096, "float16", 1e-5, norm.plan_threads(4096, "float16", 1024))
display(kernel_picture(wide, "wide_kernel, rows of 4096"))

# %% [markdown]
# With a copy rate of 4 TB/s, 8192 rows of 4096 float16 need at least:

# %%
moved = 4 * 8192 * 4096 * 2
least = moved / 4e12
print(f"{1e6 * least:.0f} microseconds; a kernel that takes 70 reaches {least / 70e-6:.2f} of it")
