# %% [markdown]
# # Lab: schedules and their limits
#
# One product, scheduled step by step, timed after each; then the three attempts and their full messages. In a terminal:
# `python -m chapters.ch05_schedules_and_their_limits.lab`.

# %%
import time

import numpy as np
import tvm
from tvm import s_tir

from chapters.toolkit.cases.matmul_bias import matmul_bias
from chapters.toolkit.display import display
from chapters.toolkit.earlier import earlier, whose
from chapters.toolkit.ir.ir_diff import diff, show
from chapters.toolkit.machine import llvm_host
from chapters.toolkit.table import Table

ours = earlier(5)
print("The schedules are", whose(5))

# %% [markdown]
# ## An sblock, taken apart

# %%
sch = s_tir.Schedule(matmul_bias(8, 16, 6))
block = sch.get(sch.get_sblock("matmul"))
kinds = {0: "spatial", 2: "reduction"}
display(
    Table(
        ("axis", "kind", "extent"),
        [(a.var.name, kinds[a.iter_type], int(a.dom.extent)) for a in block.iter_vars],
    )
)
print("reads ", [region.source.name for region in block.reads])
print("writes", [region.source.name for region in block.writes])
print("init  ", block.init is not None)
print("read by", [sch.get(consumer).name_hint for consumer in sch.get_consumers("matmul")])

# %% [markdown]
# ## One primitive after another
#
# Each makes a small change that can be read.

# %%
before = sch.mod["main"]
ours.tile(sch, 4, 8)
display(diff(before, sch.mod["main"]))

# %%
before = sch.mod["main"]
ours.use_the_machine(sch)
ours.bias_at_the_tile(sch)
display(diff(before, sch.mod["main"]))

# %%
before = sch.mod["main"]
sch.decompose_reduction("matmul", sch.get_loops("matmul")[1])
display(diff(before, sch.mod["main"]))

# %% [markdown]
# ## What each step is worth, here
#
# On a larger product, compiled for the processor that runs this. Every version is checked against NumPy.

# %%
SIZE = 256
random = np.random.default_rng(0)
a, b = (random.integers(-128, 128, (SIZE, SIZE), dtype=np.int8) for _ in range(2))
c = random.integers(-99, 99, (SIZE, SIZE), dtype=np.int32)
expected = (a.astype("float64") @ b.T.astype("float64")).astype("int64") + c


def tiled(sch):
    ours.tile(sch, 4, 64)


def spread(sch):
    tiled(sch)
    ours.use_the_machine(sch)


def at_the_tile(sch):
    spread(sch)
    ours.bias_at_the_tile(sch)


def decomposed(sch):
    at_the_tile(sch)
    sch.decompose_reduction("matmul", sch.get_loops("matmul")[1])


def packed(sch):
    """A copy of B with columns of the result side by side, and then everything as before."""
    sch.cache_read("matmul", 1, "global")
    sch.transform_layout("matmul", ("read", 1), lambda column, step: (step, column))
    decomposed(sch)


def seconds(step) -> float:
    """The shortest of five runs of the product after `step`."""
    sch = s_tir.Schedule(matmul_bias(SIZE, SIZE, SIZE))
    step(sch)
    kernel = tvm.compile(sch.mod, target=llvm_host()["target"])["main"]
    out = tvm.runtime.tensor(np.zeros((SIZE, SIZE), np.int32))
    arguments = [*map(tvm.runtime.tensor, (a, b, c)), out]
    taken = []
    for _ in range(5):
        start = time.perf_counter()
        kernel(*arguments)
        taken.append(time.perf_counter() - start)
    assert (out.numpy() == expected).all()
    return min(taken)


steps = {
    "as written": lambda sch: None,
    "tiled": tiled,
    "on cores and lanes": spread,
    "bias at the tile": at_the_tile,
    "init taken out": decomposed,
    "B packed first": packed,
}
display(Table(("step", "milliseconds"), [(n, f"{1e3 * seconds(s):.2f}") for n, s in steps.items()]))

# %% [markdown]
# As written, LLVM vectorizes the loop over steps by itself. Tiles that read B across its rows lose that; with B packed,
# the columns of a tile lie side by side. Which row is best depends on the processor, and times on a busy machine
# wander.
#
# ## A full refusal
#
# TVM prints the program with the block it speaks of underlined, and then the condition.

# %%
try:
    ours.ATTEMPTS["inline the bias"](s_tir.Schedule(matmul_bias(8, 8, 8)))
except s_tir.ScheduleError as error:
    print(
        *[line for line in str(error).splitlines() if not line.lstrip().startswith("#")], sep="\n"
    )

# %% [markdown]
# ## The forced version, run
#
# For k = 1 it is right; then it is wrong by k - 1 times the bias.

# %%
for k in (1, 2, 8, 64):
    left, right, bias = a[:4, :k], b[:4, :k], c[:4, :4]
    out = tvm.runtime.tensor(np.zeros((4, 4), np.int32))
    arrays = [np.ascontiguousarray(x) for x in (left, right, bias)]
    kernel = tvm.compile(ours.forced(4, 4, k), target="llvm")["main"]
    kernel(*map(tvm.runtime.tensor, arrays), out)
    wrong = out.numpy() - (left.astype("int64") @ right.T + bias)
    same = (wrong == ours.forced_error(bias, k)).all()
    print(f"k = {k:>2}: off by up to {np.abs(wrong).max():>5}, as forced_error says: {same}")
