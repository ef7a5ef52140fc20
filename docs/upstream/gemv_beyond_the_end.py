"""dlight's GEMV for GPUs stores 16 results per block of threads, also where the last block has fewer rows.

Should: a store that is guarded like the sums, or a rule that declines.
Kind: wrong numbers
Upstream: none found
Avoided in: chapters/kit/schedules/gemv_within_bounds.py
"""

import tvm
from tvm import te
from tvm.s_tir import dlight

w, x, k = te.placeholder((500, 128)), te.placeholder((1, 128)), te.reduce_axis((0, 128))
out = te.compute((1, 500), lambda i, j: te.sum(x[i, k] * w[j, k], axis=k), "out")
mod = tvm.IRModule({"main": te.create_prim_func([w, x, out])})
target = tvm.target.Target({"kind": "cuda", "arch": "sm_90", "max_threads_per_block": 1024})
with target:
    mod = dlight.ApplyDefaultSchedule(dlight.gpu.GEMV())(mod)
lines = tvm.compile(mod, target=target).mod.imports[0].inspect_source().splitlines()
at = next(n for n, line in enumerate(lines) if line.strip().startswith("out_ptr["))
print(f"TVM gives {lines[at - 1].strip()} {lines[at].strip()}")
print("should be guarded by blockIdx.x too: there are 32 blocks of 16 results, and 500 results")
raise SystemExit("blockIdx.x" in lines[at - 1])
