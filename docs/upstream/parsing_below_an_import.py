"""TVMScript's parser asks `inspect.stack()` about all callers; one in no module, as below an import, is slow.

Should: not depend on the callers; `import tvm.s_tir.tensor_intrin` takes half a minute, nearly all of it for this.
Kind: slow code
Upstream: none found
Avoided in: chapters/kit/ir/parse_alone.py
"""

import time

import tvm

TEXT = """@T.prim_func(s_tir=True)
def main(a: T.Buffer((4,), "float32"), b: T.Buffer((4,), "float32")):
    for i in range(4):
        with T.sblock("copy"):
            b[i] = a[i]
"""


def seconds(callers: int) -> float:
    """To parse TEXT below so many callers without a module."""
    if callers:
        names = {"seconds": seconds}
        exec(compile(f"found = seconds({callers - 1})", "<nowhere>", "exec"), names)
        return names["found"]
    begin = time.process_time()
    tvm.script.from_source(TEXT)
    return time.process_time() - begin


seconds(0)
alone, below = (min(seconds(callers) for _ in range(3)) for callers in (0, 10))
print(
    f"below 10 callers TVM gives the function in {below / alone:.0f} times as long; should be once"
)
raise SystemExit(below < 2 * alone)
