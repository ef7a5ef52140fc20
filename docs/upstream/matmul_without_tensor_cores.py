"""dlight's Matmul finds no tensor cores for sm_90a and sm_100a, because "90a".isdigit() is False.

Should: tensor cores, as for sm_90.
Kind: slow code
Upstream: none found
Avoided in: chapters/kit/schedules/matmul_on_tensor_cores.py
"""

import tvm
from tvm import te
from tvm.s_tir import dlight

x, w = te.placeholder((128, 128), "float16"), te.placeholder((128, 128), "float16")
k, got = te.reduce_axis((0, 128)), {}
out = te.compute((128, 128), lambda i, j: te.sum(x[i, k] * w[j, k], axis=k))
for arch in ("sm_90", "sm_90a", "sm_100a"):
    facts = {"max_threads_per_block": 1024, "max_shared_memory_per_block": 49152}
    target = tvm.target.Target({"kind": "cuda", "arch": arch, **facts})
    with target:
        mod = dlight.ApplyDefaultSchedule(dlight.gpu.Matmul())(
            tvm.IRModule({"main": te.create_prim_func([x, w, out])})
        )
    got[arch] = "wmma" in mod.script()
print(f"TVM gives {got}; should be True for all")
raise SystemExit(all(got.values()))
