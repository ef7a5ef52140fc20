"""A kernel without threads is compiled for the host, although the target is a GPU whose memory the host cannot read.

Should: an error, such as the “Did you forget to bind?” of earlier releases, which the report quotes.
Kind: an error
Upstream: https://github.com/apache/tvm/issues/19548
Avoided in: chapters/kit/passes/require_threads.py
"""

import tvm
from tvm import te

a = te.placeholder((4,), "float32")
func = te.create_prim_func([a, te.compute((4,), lambda i: a[i] * 2.0)])
try:
    library = tvm.compile(func, target=tvm.target.Target({"kind": "cuda", "arch": "sm_80"})).mod
    got = f"a library of kind {library.kind} with {len(library.imports)} GPU modules"
except Exception as error:
    got = str(error).strip().splitlines()[-1]
print(f"TVM gives {got}; should be an error")
raise SystemExit("0 GPU modules" not in got)
