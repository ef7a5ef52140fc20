# %% [markdown]
# # Lab: add and RMSNorm in one kernel
#
# This lab runs the pass on a decoder. It shows the kernels as text and runs them as GPU code without a GPU, first as
# they are and then with faults. It ends with a stock schedule that is slower on one row than no schedule. In a
# terminal: `python -m chapters.ch04_add_rms_norm.lab`. If your own answers to chapter 4 pass their checks, the lab
# uses them; otherwise it uses the reference.

# %%
import dataclasses
import timeit

import numpy as np
import tvm
from tvm import relax

from chapters.ch04_add_rms_norm.as_upstream import FuseAsUpstream
from chapters.kit.cases.example_programs import unfused_add_norm
from chapters.kit.cases.relax_text import relax_module
from chapters.kit.decoder.llama import decoder
from chapters.kit.draw.display import display
from chapters.kit.draw.kernel_picture import kernel_picture
from chapters.kit.emulator import cuda_on_cpu, wgsl_on_vulkan
from chapters.kit.gpu.launches import HostProgram, LaunchError
from chapters.kit.gpu.targets import CUDA, WEBGPU
from chapters.kit.ir.ir_diff import diff, show
from chapters.kit.machine import llvm_host
from chapters.kit.measure.scoreboard import compare
from chapters.runner.earlier import describe_owner, earlier

add_norm, walk = earlier(4), earlier(1)
print("The code of chapter 4 is", describe_owner(4))

# %% [markdown]
# ## On a decoder
#
# Two layers with Llama 3's sizes. Each layer has two norms. The first norm of the model reads the embedding and
# not a sum, so it is not part of a pair. The norm after the last layer is.

# %%
llama, _ = decoder("llama3-8b", "float16", functions=["prefill", "batch_decode", "batch_verify"])
fused = add_norm.FuseAddRMSNorm(CUDA)(llama)
sizes = {"context_window": 1024, "vocab_size": 128256, "seq_len": 512, "batch_size": 8}
for name in ("prefill", "batch_decode", "batch_verify"):
    print(f"{name:<13} {walk.launches(llama)[name]} launches, then {walk.launches(fused)[name]}")
print(
    "kernels:", *sorted(g.name_hint for g in fused.get_global_vars() if "add_norm" in g.name_hint)
)

# %% [markdown]
# The weights of a layer have far more bytes than the tensor that is normalized. So in a decode step, the bytes that
# fusing saves hardly matter. Here is the pair by itself, for a prompt of 512 tokens.

# %%
pair = unfused_add_norm((1, 512, 4096), "float16")
one = add_norm.FuseAddRMSNorm(CUDA)(pair)
display(compare(walk.scoreboard(pair, {}), walk.scoreboard(one, {})))

# %% [markdown]
# ## The kernel
#
# First `row_kernel`: the elements of a thread are `threads` apart, so that neighbouring threads read neighbouring
# addresses. Then `wide_kernel`: the same steps, with eight elements per load.

# %%
rows = tvm.tirx.Var("rows", "int64")
simple = add_norm.row_kernel([rows], 1000, "float16", 1e-5, 256)
plan = add_norm.plan_threads(4096, "float16", 1024)
wide = add_norm.wide_kernel([rows], 4096, "float16", 1e-5, plan)
display(kernel_picture(simple, "row_kernel"), kernel_picture(wide, "wide_kernel"))

# %% [markdown]
# Here are some lines of the CUDA code that TVM generates for the wide kernel. A `uint4` is 16 bytes. A thread loads
# one from x1 and one from x2, and both loads come before the first store.

# %%
(kernel,) = HostProgram(wide, CUDA).kernels.values()
body = kernel.source[kernel.source.rindex('extern "C" __global__') :].splitlines()
print("\n".join(line[:110] for line in body if "uint4*)(x" in line or "uint4*)(total" in line))

# %% [markdown]
# ## Run it without a GPU
#
# g++ compiles the CUDA text as it stands, and a fiber on the CPU plays each thread. The kernel runs twice: once with
# the first thread first, and once with the last thread first. Then the same kernel runs as WGSL, the GPU language of
# browsers, on Vulkan. Outputs start as NaN.

# %%
random = np.random.default_rng(0)
a, b = (random.standard_normal((3, 1000)).astype("float16") for _ in "ab")
w = random.standard_normal(1000).astype("float16")
exact = (a + b).astype("float64")
exact = exact / np.sqrt((exact**2).mean(-1, keepdims=True) + 1e-5) * w


def run_on(engine, target, change=lambda text: text):
    """The largest relative error of the simple kernel, after `change` of its text."""
    program = HostProgram(simple, target)
    for name, kernel in program.kernels.items():
        program.kernels[name] = dataclasses.replace(kernel, source=change(kernel.source))
    norm, total = np.full_like(a, np.nan), np.full_like(a, np.nan)
    program.run(engine, [a, b, w, norm, total])
    assert (total == a + b).all()
    return f"largest relative error {np.abs(norm - exact).max() / np.abs(exact).max():.1e}"


for backwards in (False, True):
    order = "last thread first" if backwards else "first thread first"
    ran = cuda_on_cpu.missing() or run_on(cuda_on_cpu.CudaOnCpu(backwards), CUDA)
    print(f"CUDA text, {order:<18}: {ran}")
print("WGSL:", wgsl_on_vulkan.missing("float16") or run_on(wgsl_on_vulkan.run_wgsl, WEBGPU))

# %% [markdown]
# ## Faults that a GPU does not report
#
# Here is the same kernel with three faults: without a barrier, without the guard of its tail, and without one step of
# its sum. On a GPU, the first sometimes gives wrong numbers, and the second overwrites memory outside its arrays.

# %%
faults = {
    "without the first barrier": lambda text: text.replace("__syncthreads();", "", 1),
    "without the guard": lambda text: text.replace("(((int)threadIdx.x) < 232)", "(true)"),
    "without one step of the sum": lambda text: text.replace(
        "t0_ptr[0] = __shfl_down_sync(mask_ptr[0], red_buf0_ptr[0], 4, 32);", "", 1
    ),
}
for what, change in faults.items():
    try:
        print(f"{what}: {cuda_on_cpu.missing() or run_on(cuda_on_cpu.CudaOnCpu(), CUDA, change)}")
    except LaunchError as error:
        print(f"{what}: {error}")

# %% [markdown]
# ## The missing key
#
# Two pairs differ only in epsilon. One pass fuses them with a single kernel for all decodes, the other with a complete
# key. All three modules run, and the middle one gives wrong numbers.

# %%
two = add_norm.two_norms()
given = [
    random.standard_normal([int(n) if isinstance(n, tvm.tirx.IntImm) else 3 for n in p.ty.shape])
    for p in two["main"].params
]


def results(mod):
    vm = relax.VirtualMachine(tvm.compile(mod, target="llvm"), tvm.cpu())
    arrays = [g.astype(str(p.ty.dtype)) for g, p in zip(given, mod["main"].params, strict=True)]
    found = vm["main"](*[tvm.runtime.tensor(array) for array in arrays])
    return np.ravel((found if isinstance(found, tvm.runtime.Tensor) else found[-1]).numpy())[:4]


print("unfused     ", results(two))
print("as upstream ", results(FuseAsUpstream()(two)))
print("with a key  ", results(add_norm.FuseAddRMSNorm("llvm")(two)))
display(diff(FuseAsUpstream()(two)["main"], add_norm.FuseAddRMSNorm("llvm")(two)["main"]))

# %% [markdown]
# ## Read the TIR: one row, far slower
#
# TVM has a stock schedule for reductions on a CPU. Here it schedules RMSNorm on one row of 4096:

# %% tags=["measured"]
from tvm.s_tir import dlight  # noqa: E402

target = llvm_host()["target"]
norm_only = relax_module("""
def main(row: (1, 1, 4096), scale: (4096,)):
    out = R.nn.rms_norm(row, scale, axes=[-1])
""")
plain = relax.transform.LegalizeOps()(norm_only)
with target:
    stock = dlight.ApplyDefaultSchedule(dlight.cpu.Reduction())(plain.clone())


def seconds(mod):
    main = relax.VirtualMachine(tvm.compile(mod, target=target), tvm.cpu())["main"]
    arrays = [tvm.runtime.tensor(np.ones(s, "float32")) for s in ((1, 1, 4096), (4096,))]
    main(*arrays)
    return timeit.timeit(lambda: main(*arrays), number=3) / 3


slow, fast = seconds(stock), seconds(plain)
print(f"no schedule {1e6 * fast:.0f} µs, stock schedule {1e6 * slow:.0f} µs, {slow / fast:.0f}×")

# %% [markdown]
# The loops show the reason. With one row, the only thing that the schedule can spread over threads is the 4096 columns.
# So it makes the *columns* the outer loop, and computes the sum over the whole row again for each column.

# %%
display(show(stock["rms_norm"]))

# %% [markdown]
# The fused kernel for the same target keeps the row as the outer loop. If there are only a few rows, one thread
# computes them all, because waking up the others would take longer. `range(0)` is the tail of a row. It is empty for
# 4096 columns, and the code generator drops the loop.

# %%
for_cpu = add_norm.FuseAddRMSNorm(target)(pair)
(name,) = [g.name_hint for g in for_cpu.get_global_vars() if "add_norm" in g.name_hint]
loops = [line for line in for_cpu[name].script().splitlines() if " for " in line or " if " in line]
print("\n".join(loops[:9]))
