# %% [markdown]
# # Lab: from 20 bytes to a kernel
#
# This lab goes from the blocks of a model file to a layer whose weights stay packed, and to the instructions that
# multiply them. It does not need the real model; `python -m chapters chat` runs that. To run the lab in a terminal,
# type `python -m chapters.ch11_a_real_model.lab`.

# %%
import re
import textwrap

import numpy as np
import tvm
from tvm import relax
from tvm.target import Target

from chapters.ch11_a_real_model import layer
from chapters.ch11_a_real_model.given import unpack
from chapters.kit.chat.gguf_file import BLOCKS
from chapters.kit.draw.display import display
from chapters.kit.draw.table import Table
from chapters.kit.emulator import cuda_on_cpu, wgsl_on_vulkan
from chapters.kit.gpu.launches import HostProgram
from chapters.kit.gpu.targets import DLIGHT_CUDA, WEBGPU
from chapters.kit.ir.ir_diff import diff
from chapters.kit.machine import llvm_host
from chapters.kit.passes.planned_storage import plan_storage
from chapters.kit.quantized.dot_products import dot_products
from chapters.kit.quantized.quantized_matmuls_on_gpu import schedule
from chapters.kit.quantized.schedule_quantized_matmuls import ScheduleQuantizedMatmuls
from chapters.kit.quantized.weight_blocks import PackedLayout, pack, read_quantized_rows
from chapters.runner.earlier import describe_owner, earlier

ours = earlier(11)
print("The passes of this chapter are", describe_owner(11))

# %% [markdown]
# ## Types of blocks
#
# Each type of block stores a fixed number of weights in a fixed number of bytes.

# %%
rows = [(kind, n, size, f"{8 * size / n:.3g}") for kind, (n, size) in BLOCKS.items()]
display(Table(("type", "weights per block", "bytes", "bits per weight"), rows))

# %% [markdown]
# Here is one random row of a matrix in Q4_1, in four blocks. `unpack` reads one block. The chat uses
# `read_quantized_rows`, which reads whole matrices. Both must give the same weights.

# %%
random = np.random.default_rng(0)


def random_matrix(n: int, k: int):
    """The bytes of a Q4_1 matrix (n, k): uint8 (n, 20 * k / 32). Scales and minima are near one."""
    raw = random.integers(0, 256, (n, k // 32, 20), "uint8")
    numbers = random.uniform(0.5, 1.5, (n, k // 32, 2)) * [0.125, -1]
    raw[:, :, :4] = numbers.astype("<f2").view("uint8")
    return raw.reshape(n, -1)


raw = random_matrix(1, 128)
by_hand = np.concatenate([unpack(block) for block in raw.reshape(-1, 20)])
print("equal:", np.array_equal(by_hand, read_quantized_rows("Q4_1", raw).floats()[0]))
print(by_hand[:8])

# %% [markdown]
# ## The layer, before and after
#
# This is a layer of the decoder: a product with 4-bit weights, and a residual that is added.

# %%
n, k = 576, 1536  # the down projection of SmolLM2-135M
lowered = layer.lower(layer.layer(n=n, k=k))
fused = layer.fuse(lowered, ours.FuseDequantizeTake(), ours.FuseDequantizeMatmul())
display(diff(lowered["main"], fused["main"]))

# %% [markdown]
# How many bytes does TVM's memory planner allocate, tensor by tensor? Look for the float copy of the matrix: it has
# 576 × 1536 × 4 bytes. After the passes it is gone.

# %%
for name, mod in {"before": lowered, "after": fused}.items():
    sizes = [storage.size for storage in plan_storage(mod).storages]
    print(f"{name}: {sizes or 'nothing'}")

# %% [markdown]
# ## The schedule
#
# `ScheduleQuantizedMatmuls` schedules the fused kernel in one of two ways. If the processor can multiply bytes, the
# kernel rounds x to 8 bits and multiplies integers. Otherwise, or if you ask for `exact`, it unpacks a vector of codes
# into floats in registers.
#
# The table shows which instruction multiplies bytes on three processors, and how often the code contains it. The last
# column counts the instructions that convert integers to floats.

# %%
PROCESSORS = {
    "x86 with AVX-512 VNNI": ("x86_64", "icelake-server", 16, "vpdpbusd"),
    "x86 with AVX2": ("x86_64", "haswell", 8, "vpmaddubsw"),
    "ARM with dot products": ("aarch64", "neoverse-n1", 4, "sdot"),
}


def instructions(machine: str, cpu: str, lanes: int, name: str, exact: bool) -> tuple[int, int]:
    """How often the instruction `name`, and conversions of integers to floats, are in the layer's code."""
    triple = f"{machine}-linux-gnu"
    target = Target({"kind": "llvm", "mtriple": triple, "mcpu": cpu})
    form = PackedLayout(4, 32, True, "float16", lanes)
    mod = layer.lower(layer.layer(n=64, k=96, form=form))
    mod = layer.fuse(mod, ours.FuseDequantizeTake(), ours.FuseDequantizeMatmul())
    mod = ScheduleQuantizedMatmuls(target, ours.multiply_codes, exact)(mod)
    (func,) = (f for f in mod.functions.values() if isinstance(f, tvm.tirx.PrimFunc))
    built = tvm.compile(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}), target)
    text = built.mod.inspect_source("asm")
    return len(re.findall(rf"\b{name}\b", text)), len(re.findall(r"\bv?cvtdq2ps|\bscvtf", text))


rows = []
for processor, described in PROCESSORS.items():
    for exact in (False, True):
        way = "x in float32" if exact else "x in 8 bits"
        rows.append((processor, way, described[-1], *instructions(*described, exact)))
display(Table(("processor", "way", "instruction", "times", "conversions"), rows))

# %% [markdown]
# ## The numbers
#
# Run the layer on this machine in both ways, and compare the results with NumPy in float64. The second error is larger,
# because x was rounded, as in exercise 11.4.

# %% tags=["here"]
target = llvm_host()["target"]
dots = dot_products(target)
form = PackedLayout(4, 32, True, "float16", dots.lanes if dots else 16)
matrix = read_quantized_rows("Q4_1", random_matrix(n, k))
x, r = (random.standard_normal((1, size)).astype("float32") for size in (k, n))
exact_numbers = x.astype("float64") @ matrix.floats().astype("float64").T + r
for exact in (True, False):
    mod = layer.lower(layer.layer(n=n, k=k, form=form))
    mod = layer.fuse(mod, ours.FuseDequantizeTake(), ours.FuseDequantizeMatmul())
    mod = ScheduleQuantizedMatmuls(target, ours.multiply_codes, exact)(mod)
    vm = relax.VirtualMachine(tvm.compile(mod, target), tvm.cpu())
    arrays = map(tvm.runtime.tensor, (x, r, *pack(matrix, form)))
    error = np.abs(vm["main"](*arrays).numpy() - exact_numbers).max() / np.abs(exact_numbers).max()
    way = "x in float32" if exact or not dots else "x in 8 bits"
    print(f"{way}: largest error {error:.1e} of the largest result")

# %% [markdown]
# ## The same kernel for a GPU
#
# `ScheduleQuantizedMatmulsOnGPU` schedules the fused kernel for CUDA and WebGPU. A thread loads one word, which has
# eight codes, and multiplies them by the matching elements of x. Here is the part of the CUDA source that unpacks.

# %%
small = layer.lower(layer.layer(n=64, k=96))
small = layer.fuse(small, ours.FuseDequantizeTake(), ours.FuseDequantizeMatmul())
func = schedule(small["fused_dequantize_NT_matmul_add"], DLIGHT_CUDA)
program = HostProgram(func, DLIGHT_CUDA)
(kernel,) = program.kernels.values()
lines = [line for line in kernel.source.splitlines() if "& 15" in line]
print(f"{len(lines)} lines unpack a code; the first:")
print(textwrap.fill(lines[0].strip(), 110))

# %% [markdown]
# You can run both without a GPU, as in chapter 8: the CUDA source as C++, and the WGSL source on any Vulkan driver. The
# output array is filled with NaN before the run.

# %% tags=["here"]
matrix = read_quantized_rows("Q4_1", random_matrix(64, 96))
x, r = (random.standard_normal((1, size)).astype("float32") for size in (96, 64))
exact_numbers = x.astype("float64") @ matrix.floats().astype("float64").T + r
ENGINES = {
    "CUDA as C++": (cuda_on_cpu.missing(), DLIGHT_CUDA, cuda_on_cpu.CudaOnCpu()),
    "WGSL": (wgsl_on_vulkan.missing(), WEBGPU, wgsl_on_vulkan.run_wgsl),
}
for name, (missing, target, engine) in ENGINES.items():
    if missing:
        print(f"{name}: {missing}")
        continue
    func = schedule(small["fused_dequantize_NT_matmul_add"], target)
    out = np.full((1, 64), np.nan, "float32")
    HostProgram(func, target).run(engine, [*pack(matrix, layer.Q4_1), x, r, out])
    print(f"{name}: largest error {np.abs(out - exact_numbers).max():.1e}")
