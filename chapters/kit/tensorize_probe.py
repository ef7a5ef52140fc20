"""Tensorizes one tiny block and exits 0. `doctor` runs it in a separate process, which a wrong tvm-ffi kills.

By hand: `python -m chapters.kit.tensorize_probe`.
"""

from tvm.s_tir import Schedule, TensorIntrin
from tvm.script import tirx as T


@T.prim_func(s_tir=True)
def add_one(a: T.Buffer((16, 4), "float32"), b: T.Buffer((16, 4), "float32")):
    for i, j in T.grid(16, 4):
        with T.sblock("add"):
            vi, vj = T.axis.remap("SS", [i, j])
            b[vi, vj] = a[vi, vj] + T.float32(1)


@T.prim_func(s_tir=True)
def four_described(a: T.Buffer((4,), "float32"), b: T.Buffer((4,), "float32")):
    with T.sblock("root"):
        T.reads(a[0:4])
        T.writes(b[0:4])
        for j in range(4):
            with T.sblock("add"):
                vj = T.axis.remap("S", [j])
                b[vj] = a[vj] + T.float32(1)


@T.prim_func(s_tir=True)
def four_at_once(a: T.Buffer((4,), "float32"), b: T.Buffer((4,), "float32")):
    with T.sblock("root"):
        T.reads(a[0:4])
        T.writes(b[0:4])
        for j in T.vectorized(4):
            b[j] = a[j] + T.float32(1)


def main() -> None:
    TensorIntrin.register("fusion_probe_add_four", four_described, four_at_once)
    schedule = Schedule(add_one)
    _i, j = schedule.get_loops(schedule.get_sblock("add"))
    schedule.tensorize(j, "fusion_probe_add_four")
    print("tensorized")


if __name__ == "__main__":
    main()
