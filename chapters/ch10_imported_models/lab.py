# %% [markdown]
# # Lab: a graph from elsewhere
#
# This lab takes a layer as an exporter spells it, and brings it into canonical form, rule by rule. Then it looks at
# what the compiler makes of it. The graph is written as text, so you need no PyTorch. In a terminal: `python -m
# chapters.ch10_imported_models.lab`.

# %%
import time

import numpy as np
import tvm
from tvm import relax
from tvm.s_tir import dlight as dl
from tvm.target import Target

from chapters.ch10_imported_models import given, layers
from chapters.kit.cases.example_programs import linear_bias
from chapters.kit.cases.relax_text import relax_module
from chapters.kit.draw.display import display
from chapters.kit.draw.table import Table
from chapters.kit.gpu.targets import cuda
from chapters.kit.ir.ir_diff import diff
from chapters.kit.ir.relax_effects import calls_in
from chapters.kit.measure.quantiles import measure_in_turns
from chapters.kit.measure.scoreboard import compare
from chapters.kit.schedules.matmul_on_tensor_cores import MatmulOnTensorCores
from chapters.runner.earlier import describe_owner, earlier

ours, llvm = earlier(10), Target("llvm")
print("The rules of this chapter are", describe_owner(10))
for chapter in (1, 3, 4, 5, 9):
    print(f"the code of chapter {chapter} is", describe_owner(chapter))

# %% [markdown]
# ## The graph as it comes
#
# The graph has a residual, a norm that is spelled out, a product between two reshapes whose weight is stored (k, n),
# and GELU's approximation, which contains a cube. All of it is spelled as PyTorch's exporter spells it.

# %%
random = np.random.default_rng(0)
stored = random.standard_normal((64, 96)).astype("float32")
imported = relax_module(
    """
def main(x: (2, 12, 64), r: (2, 12, 64), w: (64,), b: (96,)):
    h = R.add(x, r)
    mean = R.mean(R.power(h, R.const(2.0)), axis=[-1], keepdims=True)
    scale = R.rsqrt(R.add(mean, R.const(1e-05)))
    norm = R.multiply(w, R.multiply(h, scale))
    rows = R.reshape(R.broadcast_to(norm, R.shape([2, 12, 64])), (24, 64))
    up = R.reshape(R.add(b, R.matmul(rows, STORED)), (2, 12, 96))
    cube = R.multiply(R.power(up, R.const(3.0)), R.const(0.044715))
    inner = R.tanh(R.multiply(R.add(up, cube), R.const(0.7978846)))
    gelu = R.multiply(R.multiply(up, R.const(0.5)), R.add(inner, R.const(1.0)))
    return h, gelu
""",
    STORED=relax.const(stored),
)
print(", ".join(call.op.name.removeprefix("relax.") for call in calls_in(imported["main"])))

# %% [markdown]
# ## Rule by rule
#
# Here are the passes of `canonicalize`, one after the other. The table says how many operators are left after each
# pass, and of which kinds there are fewer or more.

# %%
mod, rows = imported, []
for one in ours.canonicalize().passes:
    before = [call.op.name.removeprefix("relax.") for call in calls_in(mod["main"])]
    mod = one(mod)
    after = [call.op.name.removeprefix("relax.") for call in calls_in(mod["main"])]
    gone = sorted({name for name in before if before.count(name) > after.count(name)})
    new = sorted({name for name in after if after.count(name) > before.count(name)})
    rows.append((one.info.name, str(len(after)), ", ".join(gone), ", ".join(new)))
canonical = mod
display(Table(("pass", "operators left", "fewer", "more"), rows))

# %%
display(diff(imported["main"], canonical["main"]))

# %% [markdown]
# ## The same numbers
#
# Compile both graphs with chapter 9's pipeline, and compare them with NumPy in float64.

# %%
pipeline = earlier(9).fusion_pipeline(llvm)


def compiled(graph: tvm.IRModule):
    """`main` of the compiled graph."""
    executable = tvm.compile(graph, llvm, relax_pipeline=pipeline)
    return relax.VirtualMachine(executable, tvm.cpu())["main"]


shapes = ((2, 12, 64), (2, 12, 64), (64,), (96,))
x, r, w, b = arrays = [random.standard_normal(shape).astype("float32") for shape in shapes]
h = x.astype("float64") + r
norm = h / np.sqrt((h**2).mean(-1, keepdims=True) + 1e-5) * w
up = norm @ stored.astype("float64") + b
exact = 0.5 * up * (1 + np.tanh(0.7978846 * (up + 0.044715 * up**3)))
runs = {"imported": compiled(imported), "canonical": compiled(canonical)}
tensors = [tvm.runtime.tensor(array) for array in arrays]
for name, run in runs.items():
    error = np.abs(run(*tensors)[1].numpy() - exact).max() / np.abs(exact).max()
    print(f"{name}: off by less than a hundred-thousandth of the largest number: {error < 1e-5}")
    assert error < 1e-5

# %% [markdown]
# ## Launches, bytes, and who scheduled what
#
# Here is the same layer before and after. In the imported graph, a reshape between the product and its activation keeps
# them apart, and each call copies the weight into another layout. In canonical form, product and activation are one
# kernel, with chapter 5's schedule.

# %%
kernels = {
    name: layers.compile_layer(graph)
    for name, graph in (("imported", imported), ("canonical", canonical))
}
board = earlier(1).scoreboard
display(compare(board(kernels["imported"][0], {}), board(kernels["canonical"][0], {})))
for name, (_, by) in kernels.items():
    print(name)
    for kernel, scheduled_by in by.items():
        print(f"    {kernel}: {scheduled_by}")

# %% [markdown]
# ## A careless pass
#
# This graph takes the mean of each column, so it is not an RMSNorm. The careless pass takes it for one, and the numbers
# change. The pass of this chapter leaves it alone.

# %%
columns = relax_module("""
def main(x: (4, 6)):
    mean = R.mean(R.power(x, R.const(2.0)), axis=[0], keepdims=True)
    out = R.multiply(x, R.rsqrt(R.add(mean, R.const(0.01))))
""")
x = tvm.runtime.tensor(np.arange(1, 25, dtype="float32").reshape(4, 6))
right = compiled(columns)(x).numpy()
for one in (given.CarelessRMSNorm(), ours.RecognizeRMSNorm()):
    found = compiled(one(columns))(x).numpy()
    print(
        f"{one.info.name}: first row {np.round(found[0, :3], 3)}, right: {np.round(right[0, :3], 3)}"
    )

# %% [markdown]
# ## The code for a GPU
#
# For each architecture, the table shows the first rule whose generated code multiplies on tensor cores.

# %%
rules = [dl.gpu.GEMV(), dl.gpu.Matmul(), MatmulOnTensorCores(), dl.gpu.Fallback()]
limits = {"max_shared_memory_per_block": 49152, "max_threads_per_block": 1024}
chosen = []
for arch in ("sm_61", "sm_80", "sm_90", "sm_90a", "sm_120"):
    target = Target({**cuda(arch).export(), **limits})
    rule = ours.on_tensor_cores(linear_bias(128, 128, 128, "float16"), target, rules)
    chosen.append((arch, type(rule).__name__))
display(Table(("architecture", "rule"), chosen))

# %% [markdown]
# ## In turns
#
# Last, the times of the two compiled graphs, measured in turns. At this size, a launch costs more than its arithmetic.


# %% tags=["measured"]
def clock(run):
    start = time.perf_counter()
    run(*tensors)
    return [time.perf_counter() - start]


calls = {name: (lambda run=run: clock(run)) for name, run in runs.items()}
for name, seconds in measure_in_turns(calls, 31).items():
    print(f"{name}: {seconds.median * 1e6:.0f} µs")
