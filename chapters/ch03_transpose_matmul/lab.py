# %% [markdown]
# # Lab: no transpose left
#
# This lab runs the pass step by step, on small modules and on the decoder. In a terminal, start it with
# `python -m chapters.ch03_transpose_matmul.lab`. If your own answers to chapter 3 pass their checks, the lab runs
# them. Otherwise it runs the reference.

# %%
from tvm import relax

from chapters.kit.cases.example_programs import linear_layer
from chapters.kit.cases.relax_text import relax_module
from chapters.kit.decoder.llama import decoder
from chapters.kit.decoder.llama_generator import Generator
from chapters.kit.draw.display import display
from chapters.kit.draw.read_order import read_order, side_by_side
from chapters.kit.ir.ir_diff import diff, show
from chapters.kit.machine import llvm_host
from chapters.kit.measure.scoreboard import compare
from chapters.runner.earlier import describe_owner, earlier

walk, chapter, TARGET = earlier(1), earlier(3), llvm_host()["target"]
print("The code of chapter 3 is", describe_owner(3))

# %% [markdown]
# ## One linear layer, step by step
#
# First the layer. Then step 1 has moved the pair into a composite. Then step 2 has replaced the composite by a kernel.

# %%
layer = linear_layer(4, 7, 6)
grouped = chapter.group(chapter.own_transposes(layer, chapter.may_fuse), chapter.may_fuse)
fused = chapter.FuseTransposeMatmul()(layer)
display(show(layer), show(grouped), show(fused))

# %% [markdown]
# ## Where the kernel reads
#
# The numbers give the order of the reads. The matmul reads the transposed copy down its columns. `NT_matmul` reads `w`
# along its rows, where each cache line also holds the next elements.

# %%
one_row = linear_layer(1, 4, 6)
legal = relax.transform.LegalizeOps()(one_row)
kernel = chapter.FuseTransposeMatmul()(one_row)["NT_matmul"]
display(
    side_by_side(
        read_order(legal["matmul"], "lv", "matmul of the transposed copy"),
        read_order(kernel, "w", "NT_matmul"),
    )
)

# %% [markdown]
# ## What stops others
#
# TVM's own pass and ours, on four modules. If a pass raises an error, the whole compilation ends.


# %%
bodies = {
    "x_times_its_own": "out = R.matmul(x, R.permute_dims(x))",
    "shared": """
        wt = R.permute_dims(w)
        a = R.matmul(x, wt)
        b = R.matmul(w, wt)
        return a, b""",
    "also_used": """
        wt = R.permute_dims(w)
        gv = R.matmul(x, wt)
        b = R.negative(wt)
        return gv, b""",
    "written_otherwise": "out = R.matmul(x, R.permute_dims(w, [-1, -2]))",
}
small = {
    name: relax_module(f"def main(x: (6, 6), w: (6, 6)):\n        {body}")
    for name, body in bodies.items()
}


def outcome(fuse, mod) -> str:
    try:
        calls = walk.count_calls(fuse(mod))
    except Exception as error:
        return f"raises {type(error).__name__}"
    return f"{calls.get('relax.matmul', 0)} matmul, {calls.get('relax.permute_dims', 0)} permute_dims left"


for name, mod in small.items():
    theirs = outcome(relax.transform.FuseTransposeMatmul(), mod)
    print(f"{name:<18} TVM: {theirs:<32} ours: {outcome(chapter.FuseTransposeMatmul(), mod)}")

# %% [markdown]
# The transpose of `also_used` has a second user. Our pass fuses the matmul, and keeps the transpose for the other:

# %%
mod = small["also_used"]
display(diff(mod["main"], chapter.FuseTransposeMatmul()(mod)["main"]))

# %% [markdown]
# ## The decoder
#
# One decode step at the shapes of Llama 3 8B, cut to two layers, in float16. The module does not run here. The
# scoreboard of chapter 1 counts its launches and bytes.

# %%
sizes = {"context_window": 1024, "vocab_size": 128256}
llama, weights = decoder("llama3-8b", "float16", functions=["decode"])
after = chapter.FuseTransposeMatmul()(llama)
before_costs, after_costs = walk.scoreboard(llama, sizes), walk.scoreboard(after, sizes)
display(compare(before_costs, after_costs))
transposes = [costs.calls.get("relax.permute_dims", 0) for costs in (before_costs, after_costs)]
print("transposes: {} → {}".format(*transposes))

# %% [markdown]
# Exercise 3.7 predicts the bytes only from the shapes of the weights:

# %%
linear = [shape for name, shape, _ in weights if len(shape) == 2 and "embed" not in name]
old, new = before_costs.row("decode"), after_costs.row("decode")
print("predicted", chapter.bytes_saved(linear, 2))
print("counted  ", old.read + old.written - new.read - new.written)

# %% [markdown]
# ## Same tokens
#
# The tiny decoder runs twice: as exported, and after the pass. The tokens must be equal.

# %%
exported, _ = decoder("tiny", functions=Generator.SINGLE)
exported = relax.transform.BindSymbolicVars({"vocab_size": 500})(exported)
for title, mod in {
    "as exported": exported,
    "fused": chapter.FuseTransposeMatmul()(exported),
}.items():
    tokens = Generator("tiny", module=mod, target=TARGET).generate([3, 1, 4, 1, 5], 8).tokens
    print(f"{title:<12} {tokens.tolist()}")

# %% [markdown]
# The kernels still have no schedule. The [lab of chapter 5](../ch05_schedules_and_their_limits/lab.py) makes them fast.
