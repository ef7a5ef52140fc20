# %% [markdown]
# # Lab: when fusion is sound
#
# The lesson's steps, to run and to change: three ways to fuse, and an epilogue that the built-in gets wrong, with the
# size of its error. In a terminal: `python -m chapters.ch07_when_fusion_is_sound.lab`.

# %%
import numpy as np
from tvm import s_tir

from chapters.ch07_when_fusion_is_sound.side_by_side import (
    fuse_case,
    fuse_with_builtin,
    judge_module,
    verdicts,
)
from chapters.kit.cases.guard_zones import run_compiled
from chapters.kit.cases.hard_cases import CASES, Case
from chapters.kit.draw.display import display
from chapters.kit.draw.table import Table
from chapters.kit.ir.ir_diff import diff, show
from chapters.runner.earlier import describe_owner, earlier

ours = earlier(7)
print("The code of chapter 7 is", describe_owner(7))

# %% [markdown]
# ## Three ways
#
# A case is a reduction, `matmul`, and an epilogue, `bias`. `s` is the sum. Change the values and run again.

# %%
ways = []
for value in ("s + C[wi, wj] - E[wi, wj]", "C[wi, wj] - 3 * s", "T.max(s + C[wi, wj], 0)", "s * s"):
    mod, told = fuse_case(Case("lab", value, value=value), ours.fuse_epilogue)
    ways.append((value, told))
display(Table(["epilogue", "way and reason"], ways))

# %% [markdown]
# ## Scaled: the step changes too

# %%
case = CASES["a bias minus the sum"]
scaled, _ = fuse_case(case, ours.fuse_epilogue)
display(diff(case.func, scaled["main"]))

# %% [markdown]
# ## The built-in, on the same program
#
# Its step subtracts the current value of D in every iteration.

# %%
theirs, _ = fuse_case(case, fuse_with_builtin)
display(show(theirs))
unfused = run_compiled(s_tir.Schedule(case.func).mod, case.arguments())
for who, mod in (("ours", scaled), ("built-in", theirs)):
    off = [
        np.abs(a - b).max()
        for a, b in zip(run_compiled(mod, case.arguments()), unfused, strict=True)
    ]
    print(f"{who:<9} largest difference from unfused: {max(off)}")

# %% [markdown]
# ## The last step, after a split that does not divide
#
# The epilogue runs where both loops of the split reduction are in their last iteration. The reduction's own predicate
# does not apply to it.

# %%
sch = s_tir.Schedule(CASES["relu"].func)
outer, inner = sch.split(sch.get_loops("matmul")[2], [None, 2])
sch.reorder(inner, outer)
print(ours.fuse_epilogue(sch, "matmul", "bias"))
display(show(sch.mod))
print("numbers:", judge_module(CASES["relu"], sch.mod))

# %% [markdown]
# ## In the same order
#
# With `reassociate=False` a floating-point sum keeps its order. The lesson says when that is the same to the last bit.

# %%
plain = Case("lab", "float", dtype="float32")
for reassociate in (True, False):
    sch = s_tir.Schedule(plain.func)
    print(
        f"reassociate={reassociate}:",
        ours.fuse_epilogue(sch, "matmul", "bias", reassociate=reassociate),
    )

# %% [markdown]
# ## A few hard cases side by side

# %%
some = [
    "clip",
    "two biases",
    "stored transposed",
    "starts from 5",
    "horner",
    "the bias written in between",
]
display(Table(["case", "built-in", "ours"], [(v.name, v.builtin, v.ours) for v in verdicts(some)]))
