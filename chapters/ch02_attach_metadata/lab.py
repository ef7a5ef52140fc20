# %% [markdown]
# # Lab: what the readers do
#
# This lab runs each pass of chapter 2 on the course's decoder, and then the pass that reads the attribute. If your own
# answers to chapter 2 pass their checks, the lab runs them. Otherwise it runs the reference.

# %%
import numpy as np
import tvm
from tvm import relax
from tvm.script import tirx as T

from chapters.ch02_attach_metadata.given import PADDED_KERNELS, even_starts
from chapters.kit.cases.relax_text import relax_module
from chapters.kit.decoder.llama import decoder
from chapters.kit.decoder.llama_generator import Generator
from chapters.kit.draw.display import display
from chapters.kit.draw.table import Table
from chapters.kit.ir.relax_effects import bindings_of
from chapters.kit.measure.captured_kernels import count_captured
from chapters.kit.passes.planned_storage import plan_storage
from chapters.runner.earlier import describe_owner, earlier

attach = earlier(2)
print("The code of chapter 2 is", describe_owner(2))

# %% [markdown]
# ## Bounds, read by the memory planner
#
# `batch_decode` computes one token for each sequence of a batch. The size of its temporaries depends on `batch_size`
# and `context_window`. Without bounds, the planner can only write down expressions. It reuses a storage for another
# tensor only if it can prove that their sizes are equal.

# %%
decode, _ = decoder("tiny", functions=["batch_decode"])
print("storages without bounds:", len(plan_storage(decode).storages))

# %% [markdown]
# With bounds, the sizes are numbers, and the planner can compare any two of them. So it reuses storages more often, and
# needs fewer.

# %%
bounds = {"batch_size": 8, "context_window": 64, "seq_len": 32, "max_history": -1}
bounded = attach.AttachVariableBounds(bounds)(decode)
print("storages with bounds:   ", len(plan_storage(bounded).storages))

# %% [markdown]
# Here are the bytes that one call allocates in all, for three batches. (Exercise 2.4 asks you for the largest storage,
# so this lab does not print the plans.)

# %%
rows = []
for batch, context in ((1, 64), (4, 64), (8, 64)):
    sizes = {"batch_size": batch, "context_window": context, "vocab_size": 500}
    rows.append((batch, plan_storage(decode).bytes(sizes), plan_storage(bounded).bytes(sizes)))
display(Table(("sequences", "bytes without bounds", "bytes with bounds"), rows))

# %% [markdown]
# Bounds have a price: a batch of one allocates storage for eight. In return, the allocation is the same in every
# call, so it can be made once.
#
# The same at the shapes of Llama 3 8B, cut to two layers, in float16. The model does not run here, so its weights are
# not allocated:

# %%
large, _ = decoder("llama3-8b", "float16", functions=["batch_decode"])
large_bounds = {"batch_size": 8, "context_window": 8192, "vocab_size": 128256}
large_plan = plan_storage(attach.AttachVariableBounds(large_bounds)(large))
print(f"{max(s.size for s in large_plan.constant):,} bytes in the largest storage")

# %% [markdown]
# One storage has a gigabyte. Chapter 3 removes what needs it.
#
# ### A variable that cannot be negative
#
# `tir_non_negative_var` lists `vocab_size`. On the decoder it changes nothing, because the planner bounds each
# dimension by itself. It matters if one dimension mixes a bounded variable with an unbounded one, as in a sampler that
# treats all logits of a batch as one row:


# %%
sampler = relax_module("""
def sample(logits: ("batch_size", 1, "vocab_size")):
    flat = R.reshape(logits, R.shape([batch_size * vocab_size]))
    weights = R.exp(flat)
    out = R.sqrt(weights)
""")
only_bound = sampler.clone()
only_bound["sample"] = sampler["sample"].with_attr("tir_var_upper_bound", {"batch_size": 8})
both = attach.AttachVariableBounds({"batch_size": 8})(sampler)
display(
    Table(
        ("attributes", "size of the temporary"),
        [
            (title, plan_storage(mod).symbolic[0])
            for title, mod in (("none", sampler), ("bound", only_bound), ("both", both))
        ],
    )
)

# %% [markdown]
# If `vocab_size` were negative, `8 * vocab_size` would not be an upper bound. So without the promise, the planner
# guards against this case. With the promise, the size is a product again.
#
# ## Dynamic outputs
#
# The output of a function outlives the call. If its shape is symbolic, the planner leaves it to be allocated at run
# time, unless an attribute allows the planner to include it.

# %%
allowed = attach.AttachMemoryPlanAttr()(bounded)
before, after = plan_storage(bounded), plan_storage(allowed)
print("allocated at run time before:", ", ".join(map(str, before.unplanned)))
print("allocated at run time after: ", ", ".join(map(str, after.unplanned)) or "nothing")
print("the new storage:             ", after.storages[-1])

# %% [markdown]
# ## A kernel that no Relax function calls
#
# A serving engine wants to clear the cache of finished sequences with a kernel of its own. No Relax function calls this
# kernel, so dead-code elimination removes it unless it has a `global_symbol`.


# %%
@T.prim_func(s_tir=True, private=True)
def clear_sequence(cache_handle: T.handle, which: T.int64):
    T.func_attr({"tirx.noalias": True})
    batch_size, context_window = T.int64(), T.int64()
    cache = T.match_buffer(cache_handle, (3, 2, batch_size, context_window, 4, 16), "float32")
    for layer, kv, s, h, i in T.grid(3, 2, context_window, 4, 16):
        with T.sblock("clear"):
            vl, vk, vs, vh, vi = T.axis.remap("SSSSS", [layer, kv, s, h, i])
            cache[vl, vk, which, vs, vh, vi] = T.float32(0)


model, _ = decoder("tiny", functions=["create_kv_cache"])
merely_added = model.clone()
merely_added["clear_sequence"] = clear_sequence
attached = attach.AttachAdditionalPrimFuncs({"clear_sequence": clear_sequence})(model)
for title, mod in (("added", merely_added), ("attached", attached)):
    left = relax.transform.DeadCodeElimination()(mod)
    print(f"{title:<9}", sorted(gvar.name_hint for gvar in left.get_global_vars()))

# %% [markdown]
# The compiled library contains the kernel, beside the functions of the virtual machine:

# %%
library = tvm.compile(attached, target="llvm").jit()
clear = library.get_function("clear_sequence", query_imports=True)
cache = tvm.runtime.tensor(np.ones((3, 2, 4, 64, 4, 16), "float32"))
clear(cache, 2)
print("sum of each sequence's cache:", cache.numpy().sum(axis=(0, 1, 3, 4, 5)).astype(int).tolist())

# %% [markdown]
# ## Hint, bound and flag, read by RewriteCUDAGraph
#
# A launch costs a few microseconds, and a decode step launches many small kernels. A CUDA graph records a run of
# launches and replays all of them with one call. `RewriteCUDAGraph` finds the kernels that may be recorded: those
# whose tensors have the same addresses and the same sizes in every replay. You need no GPU to see what it finds.

# %%
hint = attach.AttachCUDAGraphSymbolicCaptureHints(
    {"batch_decode": ["batch_size", "context_window"]}
)
rows = []
for title, mod in (
    ("neither", decode),
    ("hint", hint(decode)),
    ("bound", bounded),
    ("hint and bound", hint(bounded)),
):
    for flag in (False, True):
        seen = count_captured(mod, "batch_decode", flag)
        rows.append((title, "on" if flag else "off", seen.kernels, seen.captured, seen.graphs))
display(Table(("attached", "use_cuda_graph", "kernels", "of these captured", "in graphs"), rows))

# %% [markdown]
# Without a hint, the pass captures only kernels whose sizes are all numbers. With everything attached, sixteen kernels
# are not captured. Fourteen of them read the caller's tensors, whose addresses change from call to call: the embedding
# (in the first norm and the first residual), the positions and the cache.
#
# ## Stages, and a reader of our own
#
# No pass in TVM reads `pipeline_parallel_stages`. A pass of MLC-LLM does, and our `crossing_tensors` is a small
# version of it. Here it is on `batch_decode`, cut into two stages of equally many calls:

# %%
staged = attach.AttachPipelineParallelStages(2)(decode)["batch_decode"]
sizes = {"batch_size": 8, "context_window": 64}


def sent(starts: list) -> Table:
    rows = [
        (
            c.name,
            str(c.shape),
            f"{c.from_stage} to {', '.join(map(str, c.to_stages))}",
            c.bytes(sizes),
        )
        for c in attach.crossing_tensors(staged, starts)
    ]
    return Table(("tensor", "shape", "stage", "bytes"), rows)


even = even_starts(staged)
print("stage 1 begins at", even[0].name)
display(sent(even))

# %% [markdown]
# This cut lies in the middle of a layer. The residual and the output of a projection are about to be added, so both
# must be sent. If you cut where a layer begins, one hidden state is enough:

# %%
by_name = {b.var.name: b.var for b in bindings_of(staged.body)}
display(sent([by_name["rms_norm2"]]))

# %% [markdown]
# The whole cache is sent too, and it has by far the most bytes. In this decoder it is one tensor that each layer
# updates and passes on. A decoder that is made for stages keeps one cache per stage.
#
# ## A factor for the runtime
#
# The last pass writes into a dict that is shipped with the library. The engine reads the dict, and pads the number of
# tokens.

# %%
padded = relax_module(f"""
def prefill(x: ("seq_len", 128)):
    out = R.call_dps_packed("{PADDED_KERNELS[0]}", (x,), out_ty=R.Tensor((seq_len, 128), "float32"))
""")
for arch in ("sm_90a", "sm_100a"):
    metadata = {"model_type": "llama"}
    target = tvm.target.Target({"kind": "cuda", "arch": arch})
    attach.AttachSequenceLengthPaddingFactor(target, metadata)(padded)
    print(arch, metadata)

# %% [markdown]
# ## All of it, and the same tokens
#
# All six passes run on the whole decoder, and the result is compiled and run. Attributes change how memory is
# allocated. They must not change a token.

# %%
mod, _ = decoder("tiny", functions=Generator.SINGLE)
metadata = {}
passes = tvm.transform.Sequential(
    [
        attach.AttachVariableBounds(bounds),
        attach.AttachAdditionalPrimFuncs({"clear_sequence": clear_sequence}),
        attach.AttachMemoryPlanAttr(),
        attach.AttachCUDAGraphSymbolicCaptureHints({"decode": ["context_window"]}),
        attach.AttachPipelineParallelStages(1),
        attach.AttachSequenceLengthPaddingFactor(tvm.target.Target("llvm"), metadata),
    ]
)
before, after = (dict(one["decode"].attrs) for one in (mod, passes(mod)))
for name in sorted(after.keys() - before.keys()):
    print(f"{name} = {after[name]}")

# %%
prompt = [17, 256, 3, 99]
plain = Generator("tiny").generate(prompt, 12)
with_all = Generator("tiny", module=passes(mod)).generate(prompt, 12)
print("tokens without:", plain.tokens.tolist())
print("tokens with:   ", with_all.tokens.tolist())
print("equal:", bool((plain.tokens == with_all.tokens).all()), "| metadata:", metadata)
