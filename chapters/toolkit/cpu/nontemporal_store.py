"""Stores that bypass the cache, called from a PrimFunc for LLVM: for results too large to be found in the cache again.

A plain store first reads the line it writes to into the cache. A non-temporal one does not, so that writing costs one
transfer and not two, and what the cache holds stays there. LLVM's own intermediate language has such a store on every
processor; TVM links the text below into the code of a PrimFunc that asks for it.
"""

from tvm.script import tirx as T

LINE_BYTES = (
    64  # one cache line; the store is of one whole line at an address that is a multiple of it
)

_LLVM = {
    "float32": "store <16 x float> %v, ptr %p, align 64, !nontemporal !0",
    "float16": "store <32 x half> %v, ptr %p, align 64, !nontemporal !0",
}
_ARGUMENT = {"float32": "<16 x float>", "float16": "<32 x half>"}


def llvm_text(dtype: str) -> str:
    """LLVM IR of `store_line_<dtype>(address, vector)` and `stores_done()`, for the attribute pragma_import_llvm.

    stores_done is a fence: until it, other threads may not see the stores.
    """
    return f"""
define void @store_line_{dtype}(ptr %p, {_ARGUMENT[dtype]} %v) alwaysinline {{
  {_LLVM[dtype]}
  ret void
}}
define void @stores_done() alwaysinline {{
  fence seq_cst
  ret void
}}
!0 = !{{i32 1}}
"""


def store_line(address, vector, dtype: str):
    """A call that stores `vector`, one line's elements of `dtype`, at `address`, a multiple of LINE_BYTES.

    dtype: float32 or float16. Pairs of bfloat16 go as float32: TVM widens vectors of bfloat16 before it calls anything.
    """
    return T.call_extern("void", f"store_line_{dtype}", address, vector)


def stores_done():
    """A call that waits until this thread's stores are visible to others."""
    return T.call_extern("void", "stores_done")
