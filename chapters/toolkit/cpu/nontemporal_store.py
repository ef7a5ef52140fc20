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
    # TVM computes bfloat16 in float32 and hands over 32 floats: round to nearest, ties to even, and keep a NaN a NaN.
    # LLVM's own conversion would call a library that a plain x86-64 target has not got.
    "bfloat16": """%bits = bitcast <32 x float> %v to <32 x i32>
  %high = lshr <32 x i32> %bits, splat (i32 16)
  %odd = and <32 x i32> %high, splat (i32 1)
  %half = add <32 x i32> %odd, splat (i32 32767)
  %sum = add <32 x i32> %bits, %half
  %rounded = lshr <32 x i32> %sum, splat (i32 16)
  %quiet = or <32 x i32> %high, splat (i32 64)
  %nan = fcmp uno <32 x float> %v, zeroinitializer
  %chosen = select <32 x i1> %nan, <32 x i32> %quiet, <32 x i32> %rounded
  %w = trunc <32 x i32> %chosen to <32 x i16>
  store <32 x i16> %w, ptr %p, align 64, !nontemporal !0""",
}
_ARGUMENT = {"float32": "<16 x float>", "float16": "<32 x half>", "bfloat16": "<32 x float>"}


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
    """A call that stores `vector`, one line's elements of `dtype`, at `address`, a multiple of LINE_BYTES."""
    lanes = LINE_BYTES // (4 if dtype == "float32" else 2)
    value = T.Cast(f"float32x{lanes}", vector) if dtype == "bfloat16" else vector
    return T.call_extern("void", f"store_line_{dtype}", address, value)


def stores_done():
    """A call that waits until this thread's stores are visible to others."""
    return T.call_extern("void", "stores_done")
