"""What a PrimFunc for LLVM tells the cache: to fetch a line before it is used, and to let stores pass by it.

Results too large to be found in the cache again should pass by it. A plain store first reads the line that it writes to
into the cache. A non-temporal store does not, so writing costs one transfer instead of two, and evicts nothing. LLVM IR
has such a store for every processor; TVM links the text below into the code of a PrimFunc that asks for it.
"""

from tvm.ir import Expr
from tvm.script import tirx as T
from tvm.script.ir_builder import tirx as I

# bytes, as many as the longest vector register has; a non-temporal store writes a whole line, at a multiple of this
CACHE_LINE = 64
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


def prefetch(element: Expr) -> None:
    """Emit a statement that brings the cache line of `element`, a BufferLoad, into the nearest cache.

    It changes no value, and an address beyond the buffer does no harm.
    """
    read, keep, data = T.int32(0), T.int32(3), T.int32(1)
    address = T.address_of(element)
    I.evaluate(T.call_llvm_intrin("void", "llvm.prefetch.p0", address, read, keep, data))
