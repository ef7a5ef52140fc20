# %% [markdown]
# # Lab: start from the bias
#
# The primitive on the chapter's program, step by step, and then on a program for which the processor has an
# instruction. In a terminal: `python -m chapters.ch06_reduction_epilogue.lab`.

# %%
import re

import numpy as np
import tvm
from tvm import s_tir

from chapters.kit.cases.example_programs import matmul_bias
from chapters.kit.cpu import vnni
from chapters.kit.cpu.int8_matmul import WAYS, pack, schedule
from chapters.kit.cpu.int8_numbers import expected, numbers
from chapters.kit.draw.display import display
from chapters.kit.draw.table import Table
from chapters.kit.ir.ir_diff import diff, show
from chapters.runner.earlier import describe_owner, earlier

ours = earlier(6)
print("The primitive is", describe_owner(6))

# %% [markdown]
# ## What the analysis finds
#
# The analysis returns what the other two steps need. It changes nothing.

# %%
sch = s_tir.Schedule(matmul_bias(64, 64, 64))
matmul, bias = sch.get_sblock("matmul"), sch.get_sblock("bias")
fusion = ours.analyse(sch, matmul, bias)
print("between the blocks", fusion.temp.name)
print("stored to         ", fusion.output.name)
print("added             ", fusion.addend.source.name)
print("axes              ", {mine.name: other.name for mine, other in fusion.axes.items()})

# %% [markdown]
# ## Fused, and scheduled like any reduction
#
# The old handles still work. `decompose_reduction` moves the init, and the bias with it, into a separate block.

# %%
before = sch.mod
ours.fuse_reduction_epilogue(sch, matmul, bias)
i, j, k = sch.get_loops(matmul)
init = sch.decompose_reduction(matmul, k)
for block in (init, matmul):
    ours.refresh_regions(sch, block)
display(diff(before["main"], sch.mod["main"]))

# %% [markdown]
# ## How often is the bias read?
#
# The lesson asked this. Here the iterations of the loops around the init and around the step are counted, in the fused
# program, and divided by the number of elements.


# %%
def points(block) -> int:
    """How many times the loops of `sch` run `block`."""
    return int(np.prod([int(sch.get(loop).extent) for loop in sch.get_loops(block)]))


display(
    Table(
        ("", "times"),
        [
            ("an element of the bias is read", points(init) // (64 * 64)),
            ("an element of D is written", (points(init) + points(matmul)) // (64 * 64)),
        ],
    )
)

# %% [markdown]
# The bias is read once for each element. D is written at every step, because the partial sums are there now. With a
# good schedule, the compiler keeps them in registers.
#
# ## The same answer from the machine
#
# Integer sums are exact, so they are compared with `==`.

# %%
random = np.random.default_rng(0)
a, b = (random.integers(-128, 128, (64, 64), dtype=np.int8) for _ in range(2))
c = random.integers(-1000, 1000, (64, 64), dtype=np.int32)
out = tvm.runtime.tensor(np.full((64, 64), -7, np.int32))
tvm.compile(sch.mod, target="llvm")["main"](*map(tvm.runtime.tensor, (a, b, c)), out)
print("bit-exact:", (out.numpy() == a.astype("int64") @ b.T.astype("int64") + c).all())

# %% [markdown]
# ## On an instruction
#
# `vpdpbusd` multiplies 64 pairs of bytes, and adds four products to each of 16 sums. Here are three schedules of one
# program: with the bias in a separate pass, with the bias added in the tile loop, and fused.

# %%
m, n, k = 64, 128, 64


def facts(way: str) -> tuple:
    """The way, how often the instruction occurs, and the buffers between the blocks."""
    sch = schedule(m, n, k, way, ours)
    buffers = [buffer.name for buffer in sch.get(sch.get_sblock("root")).alloc_buffers]
    if not vnni.compiles_here():
        return way, "no x86 code here", ", ".join(buffers) or "none"
    assembly = tvm.compile(sch.mod, target=vnni.target()).mod.inspect_source("asm")
    return way, len(re.findall(r"\bvpdpbusd", assembly)), ", ".join(buffers) or "none"


display(Table(("way", "vpdpbusd in the assembly", "buffers between"), list(map(facts, WAYS))))

# %% [markdown]
# The fused program, as loops. The init is a copy of the bias into the tile.

# %%
display(show(schedule(m, n, k, "fused", ours).mod["main"]))

# %% [markdown]
# If this processor has the instruction, the kernels run here.

# %% tags=["here"]
if vnni.runs_here():
    a, w, c = numbers(m, n, k, 1)
    for way in WAYS:
        kernel = tvm.compile(schedule(m, n, k, way, ours).mod, target=vnni.target())["main"]
        out = tvm.runtime.tensor(np.full((m, n), -7, np.int32))
        kernel(*map(tvm.runtime.tensor, (a, pack(w), c)), out)
        print(f"{way:<12} bit-exact: {(out.numpy() == expected(a, w, c)).all()}")
else:
    print("This processor has no vpdpbusd, so the kernels cannot run here.")
