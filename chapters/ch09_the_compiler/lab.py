# %% [markdown]
# # Lab: compile a decoder
#
# First the pipeline compiles `tiny` phase by phase. Then we look at what it saves, generate tokens, and list the
# kernels that a GPU would run. In a terminal: `python -m chapters.ch09_the_compiler`.

# %%
from dataclasses import replace

import numpy as np
import tvm
from tvm.target import Target

from chapters.kit.decoder import llama_reference
from chapters.kit.decoder.llama import decoder
from chapters.kit.decoder.llama_config import CONFIGS
from chapters.kit.decoder.llama_generator import Generator, random_weights
from chapters.kit.draw.display import display
from chapters.kit.draw.table import Table
from chapters.kit.gpu.targets import DLIGHT_CUDA
from chapters.kit.ir.ir_diff import diff
from chapters.kit.measure.pass_trace import count_module
from chapters.kit.measure.scoreboard import compare
from chapters.kit.passes.planned_storage import plan_storage
from chapters.runner.earlier import describe_owner, earlier

ours = earlier(9)
print("The pipeline is", describe_owner(9))
for chapter in (2, 3, 4, 5, 7):
    print(f"its passes of chapter {chapter} are", describe_owner(chapter))

# %% [markdown]
# ## Phase by phase
#
# One decode step after each phase: how many operators still wait for a kernel, and how many calls of kernels there are.
# Which phase turns the first number into the second? Which one leaves both as they are?

# %%
config, llvm = CONFIGS["tiny"], Target("llvm")
facts = {
    "variable_bounds": {"seq_len": 64, "context_window": 64},
    "metadata": {"vocab_size": config.vocab_size},
}
exported, _ = decoder("tiny", "float32", ["decode"])


def calls(mod: tvm.IRModule) -> tuple[int, int]:
    """Return (operators that wait for a kernel, calls of kernels)."""
    found = count_module(mod)
    return found.operators, found.launches


stages, mod, rows = {}, exported, [("exported", *calls(exported))]
with llvm:
    for name, passes in ours.phases(llvm, **facts).items():
        mod = stages[name] = tvm.transform.Sequential(passes)(mod)
        if name != "vm":
            rows.append((f"after {name}", *calls(mod)))
display(Table(("decode, three layers", "operators that wait", "calls of kernels"), rows))

# %% [markdown]
# ## One layer, before and after
#
# A decoder with one layer, as exported, and after all its operators have become kernels. Look for the two sums, for the
# transposes, and for `split`, `silu` and the product behind them.

# %%
single, _ = decoder(replace(config, num_hidden_layers=1), "float32", ["decode"])
found_phases = ours.phases(llvm, **facts)
with llvm:
    known = tvm.transform.Sequential(found_phases["attach"])(single)
    lowered = tvm.transform.Sequential(found_phases["graph and lower"])(known)
display(diff(known["decode"], lowered["decode"]))

# %% [markdown]
# ## Launches, bytes, memory
#
# The scoreboard of chapter 1, before and after, and the memory that is planned for one decode step.

# %%
scoreboard = earlier(1).scoreboard
sizes = {"context_window": 64, "vocab_size": config.vocab_size}
display(compare(scoreboard(exported, sizes), scoreboard(stages["schedule"], sizes)))
for name, one in {"TVM's default": exported, "ours": stages["schedule"]}.items():
    print(f"{name}: {plan_storage(one).bytes(sizes):,} bytes planned")

# %% [markdown]
# ## Sixty-four tokens
#
# Greedy decoding, compared with NumPy in float64. A logit may differ by a thousandth of the largest one. The tokens
# must be equal.

# %%
weights, prompt = random_weights("tiny"), [3, 1, 4, 1, 5]
facts["variable_bounds"] = {"seq_len": 80, "context_window": 80}
generator = Generator(
    "tiny", weights=weights, relax_pipeline=ours.fusion_pipeline(llvm, **facts), context_window=80
)
found = generator.generate(prompt, 64)
tokens, logits = llama_reference.generate(config, weights, prompt, 64)
error = np.abs(found.logits - logits).max() / np.abs(logits).max()
print(f"largest error of a logit, relative to the largest: {error:.1e}")
print("same tokens:", (found.tokens == tokens).all())
assert error < 1e-3 and (found.tokens == tokens).all()

# %% [markdown]
# ## The same for a GPU
#
# `tvm.compile` writes CUDA source without a CUDA toolkit. The table lists the kernels of the decode step: whether a
# kernel uses shared memory, and whether its threads exchange numbers by shuffles.

# %%
half, _ = decoder("tiny", "float16", ["decode"])
pipeline = ours.fusion_pipeline(DLIGHT_CUDA, **facts)
executable = tvm.compile(half, DLIGHT_CUDA, relax_pipeline=pipeline)
text = executable.mod.imports[0].imports[0].inspect_source()
bodies = text.split('extern "C" __global__')[1:]
described = {
    body.split("(", 2)[1].split()[-1]: ("__shared__" in body, "__shfl" in body)
    for body in bodies
    if "{" in body
}
rows = [
    (name.removesuffix("_kernel"), "yes" if shared else "", "yes" if shuffled else "")
    for name, (shared, shuffled) in described.items()
]
display(Table(("kernel", "shared memory", "threads exchange"), rows))
