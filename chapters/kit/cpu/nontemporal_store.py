"""Stores that bypass the cache, called from a PrimFunc for LLVM: for results too large to be found in the cache again.

A plain store first reads the line it writes to into the cache. A non-temporal one does not, so that writing costs one
transfer and not two, and what the cache holds stays there. LLVM's own intermediate language has such a store on every
processor; TVM links the text below into the code of a PrimFunc that asks for it.
"""

from tvm.script import tirx as T

# one cache line; the store is of a whole line at an address that is a multiple of it
LINE_BYTES = 64
_VECTOR = {"float32": "<16 x float>", "float16": "<32 x half>"}  # a line, as LLVM calls it


def llvm_text(dtype: str) -> str:
    """LLVM IR of `store_line_<dtype>(address, vector)` and `stores_done()`, for the attribute pragma_import_llvm.

    stores_done is a fence: until it, other threads may not see the stores.
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
    """A call that stores `vector`, one line's elements of `dtype`, from the element `first` on, where a line begins.

    dtype: float32 or float16. Pairs of bfloat16 go as float32: TVM widens vectors of bfloat16 before it calls anything.
    """
    return T.call_extern("void", f"store_line_{dtype}", T.address_of(first), vector)


def stores_done():
    """A call that waits until this thread's stores are visible to others."""
    return T.call_extern("void", "stores_done")
