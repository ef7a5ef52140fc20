"""Says that the sums start from zero."""

from solutions.ch08_gpu_targets.gpu_schedules import *

EXERCISE = "8.11"
WHAT = "sums that start from zero, as the stock intrinsic's do"
WHY = (
    "The fused init is `D[vi, vj] = C[vj]`. `tensorize` compares the description with the loops, and refuses one that "
    "says something else."
)
READ = "chapters/ch08_gpu_targets/lesson.md, “Tensor cores that start from the bias”"


def bias_fragment() -> tuple[tirx.PrimFunc, tirx.PrimFunc]:

    @T.prim_func(s_tir=True)
    def desc(bias: T.handle, sums: T.handle) -> None:
        C = T.match_buffer(bias, (16,), "float32", align=64, offset_factor=1, scope="global")
        S = T.match_buffer(
            sums, (16, 16), "float32", align=64, offset_factor=16, scope=wmma.SUM_SCOPE
        )
        with T.sblock("root"):
            T.reads(C[0:16])
            T.writes(S[0:16, 0:16])
            for i, j in T.grid(16, 16):
                with T.sblock("init"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    S[vi, vj] = T.float32(0)

    @T.prim_func(s_tir=True)
    def impl(bias: T.handle, sums: T.handle) -> None:
        row, one = T.int32(), T.int32()
        C = T.match_buffer(bias, (16,), "float32", align=64, offset_factor=1, scope="global")
        S = T.match_buffer(
            sums,
            (16, 16),
            "float32",
            align=64,
            offset_factor=16,
            scope=wmma.SUM_SCOPE,
            strides=[row, one],
        )
        with T.sblock("root"):
            T.reads(C[0:16])
            T.writes(S[0:16, 0:16])
            T.evaluate(
                T.cuda.func_call(
                    "start_from_row",
                    S.data,
                    wmma.fragment_index(S, row),
                    C.access_ptr("r"),
                    source_code=START_FROM_ROW,
                )
            )

    return desc, impl
