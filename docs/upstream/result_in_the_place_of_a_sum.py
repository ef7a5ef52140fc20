"""A result in a thread's registers shares the place of a sum over threads, which TVM then puts into shared memory.

Should: each thread keeps its own result. Here, all threads write theirs to the same element.
Kind: wrong numbers
Upstream: https://github.com/apache/tvm/pull/8931
"""

import tvm
from tvm.script import tirx as T


@T.prim_func(s_tir=True)
def scaled(x: T.Buffer((64,), "float32"), out: T.Buffer((64,), "float32")):
    total = T.sblock_alloc_buffer((1,), "float32", scope="local")
    own = T.sblock_alloc_buffer((1,), "float32", scope="local")
    for _ in T.thread_binding(1, thread="blockIdx.x"):
        for t in T.thread_binding(64, thread="threadIdx.x"):
            with T.sblock("sum"):
                r = T.axis.reduce(64, t)
                with T.init():
                    total[0] = T.float32(0)
                total[0] += x[r]
        for t in T.thread_binding(64, thread="threadIdx.x"):
            with T.sblock("scale"):
                s = T.axis.spatial(64, t)
                own[0] = total[0] * x[s]
            with T.sblock("write"):
                s = T.axis.spatial(64, t)
                out[s] = own[0]


target = tvm.target.Target({"kind": "cuda", "arch": "sm_90"})
text = tvm.compile(scaled, target=target).mod.imports[0].inspect_source()
stores = [line.strip() for line in text.splitlines() if "red_result_ptr)[0] = " in line]
print(f"TVM gives {stores[-1]} in every thread; should write to registers")
raise SystemExit(len(stores) < 2)
