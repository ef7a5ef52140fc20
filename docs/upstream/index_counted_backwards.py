"""iter_map_simplify makes (3 - i) // 2 to i // -2 + 1, so a store at such an index goes elsewhere.

FlattenBuffer simplifies indices like this. A store may then be below its buffer.
Should: the same numbers before and after.
Kind: wrong numbers
Upstream: none found
"""

import tvm
import tvm_ffi
from tvm import tirx

i = tirx.Var("i", "int32")
before = (3 - i) // 2
(after,) = tvm.sym.iter_map_simplify([before], {i: tvm.ir.Range(0, 4)})


def at(index, value: int) -> int:
    replaced = tvm_ffi.structural_map(index, (tvm.ir.Var, lambda _: tirx.const(value, "int32")))
    return int(tvm.sym.Analyzer().simplify(replaced))


got, want = ([at(index, value) for value in range(4)] for index in (after, before))
print(f"TVM gives {after}, which is {got} for i = 0 to 3; should be {want}")
raise SystemExit(got == want)
