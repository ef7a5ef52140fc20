"""pad_einsum pads a reduction, and leaves the block in the same loops that stores each finished sum.

Should: refuse, because that block then runs for rows and columns that its result does not have.
Kind: wrong numbers
Upstream: none found
"""

import tvm
from tvm import s_tir

sch = """@T.prim_func(s_tir=True)
def main(A: T.Buffer((6, 5), "int32"), B: T.Buffer((6, 5), "int32"), D: T.Buffer((6, 6), "int32")):
    sums = T.sblock_alloc_buffer((6, 6), "int32")
    for i, j, k in T.grid(6, 6, 5):
        with T.sblock("sums"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init(): sums[vi, vj] = 0
            sums[vi, vj] = sums[vi, vj] + A[vi, vk] * B[vj, vk]
        with T.sblock("out"):
            wi, wj = T.axis.remap("SS", [i, j]); T.where(k == 4); D[wi, wj] = sums[wi, wj]"""
sch = s_tir.Schedule(tvm.script.from_source(sch))
sch.pad_einsum("sums", [8, 8, 8])
got = int(sch.get(sch.get_loops("out")[0]).extent)
print(f"TVM gives a block `out` in a loop of {got} rows; should be 6, the rows of D")
raise SystemExit(got == 6)
