# %% [markdown]
# # Lab: a first module
#
# The lesson's steps on one page, to run and to change. If your own answers to chapter 0 pass their
# checks, this lab runs your code; otherwise it runs the reference.

# %%
import numpy as np
import tvm
import tvm_ffi
from tvm import relax

from chapters.ch00_first_module.given import layer, measure
from chapters.kit.draw.display import display
from chapters.kit.draw.picture import picture
from chapters.kit.ir.ir_diff import diff, show
from chapters.runner.earlier import describe_owner, earlier

first = earlier(0)
print("The code of chapter 0 is", describe_owner(0))

# %% [markdown]
# ## One line
#
# A layer with a weight of 2048 × 2048, as it is, and after one pass. Change the pass and run the cell again.

# %% tags=["measured"]
mod = layer()
display(measure(mod))
mod = relax.transform.FuseTransposeMatmul()(mod)
display(measure(mod))

# %% [markdown]
# ## One model, three ways
#
# This is the small model of the lesson, written as TVMScript: first its text, then its graph.

# %%
scripted = first.from_script()
display(show(scripted), picture(scripted))

# %% [markdown]
# BlockBuilder builds the same structure. `structural_equal` compares two functions node by node, and ignores
# the names of variables.

# %%
built = first.from_block_builder()
print("structurally equal:", tvm_ffi.structural_equal(scripted["main"], built["main"]))

# %% [markdown]
# The layer of `nn` exports to the same four operators. Its weights have become parameters.

# %%
exported = first.from_nn()
display(show(exported["forward"]))

# %% [markdown]
# ## Three ways, the same numbers
#
# Each result is compared with NumPy in float64. A float32 has 24 significant bits, which is about seven decimal
# digits, so the errors must be small but need not be zero.

# %%
random = np.random.default_rng(0)
x, w, b = (random.standard_normal(s).astype("float32") for s in ((5, 16), (8, 16), (8,)))
reference = np.maximum(x.astype("float64") @ w.T + b, 0)
for title, mod, name in (
    ("TVMScript", scripted, "main"),
    ("BlockBuilder", built, "main"),
    ("nn", exported, "forward"),
):
    error = np.abs(first.run(mod, name, x, w, b) - reference).max()
    print(f"{title:<13} largest error {error:.1e}")

# %% [markdown]
# One module serves any number of rows. The virtual machine reads `n` from `x` at each call.

# %%
for rows in (1, 3, 1000):
    print(rows, first.run(scripted, "main", np.ones((rows, 16), "float32"), w, b).shape)

# %% [markdown]
# ## From operators to loops
#
# `LegalizeOps` replaces each operator by a call of a PrimFunc. The Relax function `main` stays, and now says which
# kernels run, and in which order.

# %%
legal = relax.transform.LegalizeOps()(scripted)
display(diff(scripted["main"], legal["main"]))
print(sorted(gv.name_hint for gv in legal.get_global_vars()))

# %% [markdown]
# ## Why a reduction has an init
#
# The caller allocates the output buffer, which may hold any numbers before the call. Here each element holds 1000,
# and the sums are still right.

# %%
a = np.ones((6, 16), "float32")
total = tvm.runtime.tensor(np.full(6, 1000, "float32"))
tvm.compile(first.row_sums, target="llvm")["main"](tvm.runtime.tensor(a), total)
print(total.numpy())

# %% [markdown]
# ## Who refuses what
#
# The virtual machine checks the type of each argument. Here `x` has 12 columns and not 16.

# %%
try:
    first.run(scripted, "main", x[:, :12], w, b)
except Exception as error:
    print(str(error).splitlines()[0])
