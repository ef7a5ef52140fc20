# %% [markdown]
# # Lab: what does a decoder cost?
#
# This lab measures the course's decoder with the scoreboard. If your own answers to chapter 1 pass their checks, it
# runs your code; otherwise it runs the reference. It counts bytes only, because exercise 1.6 asks you for the launches.

# %%
from collections import Counter

import tvm_ffi

from chapters.kit.cases.relax_text import relax_module
from chapters.kit.decoder.llama import decoder
from chapters.kit.draw.display import display
from chapters.kit.draw.picture import before_after
from chapters.kit.ir.ir_diff import diff
from chapters.kit.measure.scoreboard import compare, size
from chapters.runner.earlier import describe_owner, earlier

walk = earlier(1)
print("The code of chapter 1 is", describe_owner(1))

# %% [markdown]
# ## The tiny decoder
#
# It has three layers, and its cache has 64 positions. `prefill` reads a prompt of 12 tokens at once, and `decode`
# reads one token. Compare the bytes of the two: they differ little, because both read every weight.

# %%
tiny, _ = decoder("tiny", functions=["prefill", "decode"])
board = walk.scoreboard(tiny, {"context_window": 64, "vocab_size": 500, "seq_len": 12})
for name in ("prefill", "decode"):
    row = board.row(name)
    print(f"{name:<8} reads {size(row.read)} and writes {size(row.written)}")

# %% [markdown]
# ## The sizes of Llama 3 8B
#
# The scoreboard does not run the module, so no weight is allocated and any size can be measured. Here are two of the 32
# layers, in float16, with 1024 positions in the cache.

# %%
sizes = {"context_window": 1024, "vocab_size": 128256}
llama, _ = decoder("llama3-8b", "float16", functions=["decode"])

# %% [markdown]
# Where do the bytes go? This table adds them up by the name of the call.

# %%
rows = walk.binding_bytes(llama["decode"], sizes)
moved = Counter()
for row in rows:
    moved[row.call] += row.read + row.written
total = sum(moved.values())
for name, count in moved.most_common(8):
    print(f"{count / total:6.1%}  {size(count):>8}  {name}")

# %% [markdown]
# A `permute_dims` reads a weight and writes it transposed. Then `matmul` reads the copy. So each weight crosses the
# memory bus three times, and once would be enough. How many bytes are unavoidable? Each weight must be read once,
# which is what `permute_dims` reads.

# %%
needed = sum(row.read for row in rows if row.call == "relax.permute_dims")
print(f"weights read once: {size(needed)} of {size(total)}, {needed / total:.0%}")

# %% [markdown]
# ## Not a clock
#
# Bytes are not time. On a GPU every launch costs some microseconds, which is most of the time of a small kernel.
# Which share of the calls moves less than 100 kB?

# %%
small = [row for row in rows if 0 < row.read + row.written < 100_000]
busy = [row for row in rows if row.read + row.written > 0]
print(
    f"{len(small) / len(busy):.0%} of the calls move {size(sum(r.read + r.written for r in small))} together"
)

# %% [markdown]
# ## The first rewrite
#
# Here are two transposes that cancel. The matmul also uses the inner one, so it stays, and only the outer one goes.

# %%
before = relax_module("""
def main(x: (64, 48)):
    turned = R.permute_dims(x)
    back = R.permute_dims(turned)
    product = R.matmul(back, turned)
""")
after = walk.DropDoubleTranspose()(before)
display(diff(before, after), before_after(before, after))
display(compare(walk.scoreboard(before, {}), walk.scoreboard(after, {})))

# %% [markdown]
# On the decoder the pass finds nothing, because each transpose there is followed by a matmul and not by a second
# transpose. Chapter 3 handles that pair.

# %%
unchanged = walk.DropDoubleTranspose()(llama)
print("the pass leaves decode as it was:", tvm_ffi.structural_equal(llama, unchanged))
