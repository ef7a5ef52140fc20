# %% [markdown]
# # Lab: schedules and their limits
#
# First, one product is scheduled step by step and timed after each step. Then TVM refuses an attempt, with its full
# message. Last, the kernel of chapter 3 is made fast. In a terminal:
# `python -m chapters.ch05_schedules_and_their_limits`.

# %%
import statistics
import timeit

import numpy as np
import tvm
from tvm import relax, s_tir, tirx

from chapters.ch05_schedules_and_their_limits.given import ATTEMPTS, forced
from chapters.kit.cases.example_programs import linear_layer, matmul_bias
from chapters.kit.decoder.llama import decoder
from chapters.kit.decoder.llama_generator import Generator
from chapters.kit.draw.display import display
from chapters.kit.draw.loop_nest import loop_nest
from chapters.kit.draw.table import Table
from chapters.kit.ir.ir_diff import diff
from chapters.kit.machine import llvm_host
from chapters.runner.earlier import describe_owner, earlier

ours = earlier(5)
print("The schedules are", describe_owner(5))

# %% [markdown]
# ## An sblock, taken apart
#
# A block has axes of its own, each of a kind and with a range. It declares what it reads and writes. `matmul` also has
# an init.

# %%
sch = s_tir.Schedule(matmul_bias(8, 16, 6))
block = sch.get(sch.get_sblock("matmul"))
kinds = {tirx.IterVar.DataPar: "spatial", tirx.IterVar.CommReduce: "reduction"}
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
# Lines with − are gone, lines with + are new. First the tiles of exercise 5.1: only the loops change, and the bindings
# of the axes.

# %%
before = sch.mod["main"]
ours.tile(sch, 4, 8)
display(diff(before, sch.mod["main"]))

# %% [markdown]
# Then the two given functions: one parallel loop over tiles, unrolled rows, vectorized columns, and the bias inside the
# loop over tiles.

# %%
before = sch.mod["main"]
ours.use_the_machine(sch)
ours.bias_at_the_tile(sch)
display(diff(before, sch.mod["main"]))

# %% [markdown]
# Last, the init is taken out of the loop over steps.

# %%
before = sch.mod["main"]
sch.decompose_reduction("matmul", sch.get_loops("matmul")[1])
display(diff(before, sch.mod["main"]))

# %% [markdown]
# ## How long each step takes, here
#
# The same steps on a larger product, compiled for the processor that runs this. Every version is checked against NumPy.
# The last one first copies `B`, so that the columns of a tile are neighbours in memory. Which step gains most? Guess
# before you look.

# %% tags=["measured"]
SIZE = 256
random = np.random.default_rng(0)
a, b = (random.integers(-128, 128, (SIZE, SIZE), dtype=np.int8) for _ in range(2))
c = random.integers(-99, 99, (SIZE, SIZE), dtype=np.int32)
expected = (a.astype("float64") @ b.T.astype("float64")).astype("int64") + c


def take_the_init_out(sch):
    sch.decompose_reduction("matmul", sch.get_loops("matmul")[1])


def pack(sch):
    """Copy B, so that columns of the result are neighbours in the copy.

    cache_read makes a copy of the block's input number 1, and transform_layout exchanges the dimensions of the copy.
    """
    sch.cache_read("matmul", 1, "global")
    sch.transform_layout("matmul", ("read", 1), lambda column, step: (step, column))


def seconds(steps) -> float:
    """Return the shortest time of twenty runs of the product after `steps`."""
    sch = s_tir.Schedule(matmul_bias(SIZE, SIZE, SIZE))
    for step in steps:
        step(sch)
    kernel = tvm.compile(sch.mod, target=llvm_host()["target"])["main"]
    out = tvm.runtime.tensor(np.zeros((SIZE, SIZE), np.int32))
    arguments = [*map(tvm.runtime.tensor, (a, b, c)), out]
    taken = timeit.repeat(lambda: kernel(*arguments), number=1, repeat=20)
    assert (out.numpy() == expected).all()
    return min(taken)


steps = {
    "tiled": lambda sch: ours.tile(sch, 4, 64),
    "on cores and lanes": ours.use_the_machine,
    "bias at the tile": ours.bias_at_the_tile,
    "init taken out": take_the_init_out,
}
every = list(steps.values())
versions = {"as written": []}
versions |= {name: every[: n + 1] for n, name in enumerate(steps)}
versions["B packed first"] = [pack, *every]
rows = [(name, f"{1e3 * seconds(made_by):.2f}") for name, made_by in versions.items()]
display(Table(("step", "milliseconds"), rows))

# %% [markdown]
# In the program as written, LLVM vectorizes the loop over steps by itself. The tiles read B across its rows, and that
# vectorization is lost. With B packed, the columns of a tile are neighbours in memory. Which row of the table is best
# depends on the processor, and times on a busy machine vary.
#
# ## A full refusal
#
# TVM prints the program with one block underlined, and below it the condition that failed.

# %%
try:
    ATTEMPTS["inline the bias"](s_tir.Schedule(matmul_bias(8, 8, 8)))
except s_tir.ScheduleError as error:
    print(
        *[line for line in str(error).splitlines() if not line.lstrip().startswith("#")], sep="\n"
    )

# %% [markdown]
# ## The forced version, run
#
# The program that TVM refuses to make, for sums of one step and more. `forced_error` is exercise 5.4.

# %%
for k in (1, 2, 8, 64):
    left, right, bias = a[:4, :k], b[:4, :k], c[:4, :4]
    out = tvm.runtime.tensor(np.zeros((4, 4), np.int32))
    arrays = [np.ascontiguousarray(x) for x in (left, right, bias)]
    kernel = tvm.compile(forced(4, 4, k), target="llvm")["main"]
    kernel(*map(tvm.runtime.tensor, arrays), out)
    wrong = out.numpy() - (left.astype("int64") @ right.T + bias)
    same = (wrong == ours.forced_error(bias, k)).all()
    print(f"k = {k:>2}: off by up to {np.abs(wrong).max():>5}, as forced_error says: {same}")

# %% [markdown]
# ## The product of chapter 3, fast
#
# First `NT_matmul` as chapter 3's pass makes it, for a layer of 1024 by 1024. Then its loops after each of the two
# schedules. The numbers of lanes and registers depend on the processor that runs this.

# %%
fuse, target = earlier(3).FuseTransposeMatmul(), llvm_host()["target"]


def unscheduled(rows: int):
    return fuse(linear_layer(rows, 1024, 1024))["NT_matmul"]


display(loop_nest(unscheduled(1), "as the pass makes it"))

# %% tags=["here"]
display(loop_nest(ours.schedule_decode(unscheduled(1), target), "decode"))

# %% tags=["here"]
display(loop_nest(ours.schedule_prefill(unscheduled(64), target), "prefill"))


# %% tags=["measured"]
def milliseconds(func, rows: int) -> float:
    """Return the median time of seven calls of a PrimFunc (w, x, out)."""
    function = tvm.compile(func.with_attr("global_symbol", "main"), target=target)["main"]
    arrays = (np.ones((1024, 1024)), np.ones((rows, 1024)), np.zeros((rows, 1024)))
    tensors = [tvm.runtime.tensor(array.astype("float32")) for array in arrays]
    times = timeit.repeat(lambda: function(*tensors), number=1, repeat=7)
    return 1e3 * statistics.median(times)


for rows, schedule in ((1, ours.schedule_decode), (64, ours.schedule_prefill)):
    plain = unscheduled(rows)
    before_ms, after_ms = (milliseconds(f, rows) for f in (plain, schedule(plain, target)))
    print(f"rows: {rows:2}   as it is: {before_ms:7.2f} ms   scheduled: {after_ms:7.2f} ms")

# %% [markdown]
# These times come from a single run, on a machine that may have been busy. They show the order of
# magnitude. `python -m chapters bench 5` measures properly.
#
# ## The same tokens
#
# A schedule must not change what a model says. The tiny decoder generates eight tokens after chapter 3's pass, and
# again with its products also scheduled for this processor.

# %%
exported, _ = decoder("tiny", functions=Generator.SINGLE)
fused = fuse(relax.transform.BindSymbolicVars({"vocab_size": 500})(exported))
for title, mod in {
    "fused": fused,
    "fused and scheduled": ours.schedule_kernels(fused, target),
}.items():
    tokens = Generator("tiny", module=mod, target=target).generate([3, 1, 4, 1, 5], 8).tokens
    print(f"{title:<20} {tokens.tolist()}")
