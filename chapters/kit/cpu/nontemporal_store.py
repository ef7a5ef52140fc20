"""Stores that bypass the cache, called from a PrimFunc for LLVM: for results too large to be found in the cache again.

A plain store first reads the line that it writes to into the cache. A non-temporal store does not, so writing costs one
transfer instead of two, and evicts nothing from the cache. LLVM IR has such a store for every processor; TVM links the
text below into the code of a PrimFunc that asks for it.
"""

from tvm.script import tirx as T

LINE_BYTES = 64  # a cache line; a store writes a whole line, at a multiple of this
_VECTOR = {"float32": "<16 x float>", "float16": "<32 x half>"}  # a line, as LLVM calls it


def llvm_text(dtype: str) -> str:
    """LLVM IR of `store_line_<dtype>(address, vector)` and `stores_done()`, for the attribute pragma_import_llvm.

    dtype: float32 or float16. stores_done is a fence: before it, other threads may not see the stores.
    """
    return f"""
define void @store_line_{dtype}(ptr %p, {_VECTOR[dtype]} %v) alwaysinline {{
  store {_VECTOR[dtype]} %v, ptr %p, align 64, !nontemporal !0
  ret void
}}
define void @stores_done() alwaysinline {{
  fence seq_cst
  ret void
}}
!0 = !{{i32 1}}
"""


def store_line(first, vector, dtype: str):
    """A call that stores `vector`, one cache line of `dtype`, at the element `first`, which must begin a line.

    dtype: float32 or float16. Pass pairs of bfloat16 as float32: TVM widens a vector of bfloat16 before a call.
    """
    return T.call_extern("void", f"store_line_{dtype}", T.address_of(first), vector)


def stores_done():
    """A call that waits until this thread's stores are visible to others."""
    return T.call_extern("void", "stores_done")
