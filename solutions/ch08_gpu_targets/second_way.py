"""Another correct design for exercises 8.2 and 8.5.

**8.2, one warp per block.** The reference has blocks of 64 threads. This one has blocks of 32, each with 4 × 8 sums in
its registers. It requests as few bytes. No thread waits for another warp, and each thread has more independent
additions, but a multiprocessor needs twice as many blocks to be as full.

**8.5, through shared memory.** The reference loads a fragment whose 16 rows are the same 16 biases: rows that are 0
elements apart. The documentation asks for a distance that is a multiple of 16 bytes, and 0 is one, but it does not
mention this use. NVRTC 13.5 compiles it to one load per pair of biases. This design does not rely on it. It writes 16
rows of biases to shared memory and loads those. That costs 1 KiB per warp, and two more synchronizations within the
warp.
"""

from solutions.ch08_gpu_targets import gpu_schedules
from solutions.ch08_gpu_targets.gpu_schedules import *


def schedule_within_limits(sch: Schedule, block: SBlockRV) -> None:
    total = sch.cache_write(block, 0, "local")
    i, j, k = sch.get_loops(block)
    i0, i1, i2 = sch.split(i, [None, 4, 8])
    j0, j1, j2 = sch.split(j, [None, 8, 4])
    k0, k1 = sch.split(k, [None, 8])
    sch.reorder(i0, j0, i1, j1, k0, k1, i2, j2)
    for loop, tag in {
        i0: "blockIdx.y",
        j0: "blockIdx.x",
        i1: "threadIdx.y",
        j1: "threadIdx.x",
    }.items():
        sch.bind(loop, tag)
    sch.decompose_reduction(block, k0)
    sch.reverse_compute_at(total, j1, preserve_unit_loops=True)
    sch.vectorize(sch.get_loops(total)[-1])
    sch.unroll(i2)
    sch.unroll(j2)
    for name in ("B", "A"):
        reads = [str(region.source.name) for region in sch.get(block).reads]
        copy = sch.cache_read(block, reads.index(name), "shared")
        sch.compute_at(copy, k0)
        _, y, x = sch.split(sch.fuse(*sch.get_loops(copy)[-2:]), [None, 4, 8])
        sch.bind(y, "threadIdx.y")
        sch.bind(x, "threadIdx.x")
        sch.storage_align(copy, 0, axis=-2, factor=8, offset=1)


SIXTEEN_ROWS = """
template <class Fragment> __device__ void start_from_row(Fragment* sums, int n, const float* row) {
  __shared__ alignas(64) float rows[8192];
  int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  int own = thread / 32 * 256;
  for (int e = thread % 32; e < 256; e += 32) rows[own + e] = row[e % 16];
  __syncwarp();
  nvcuda::wmma::load_matrix_sync(sums[n], &rows[own], 16, nvcuda::wmma::mem_row_major);
  __syncwarp();
}
"""


def bias_fragment() -> tuple[tirx.PrimFunc, tirx.PrimFunc]:
    desc, _ = gpu_schedules.bias_fragment()  # what it computes is the same

    @T.prim_func(s_tir=True)
    def impl(bias: T.handle, sums: T.handle) -> None:
        C = T.match_buffer(bias, (16,), "float32", align=64, offset_factor=1, scope="global")
        S = wmma.tile(sums, "float32", wmma.SUM_SCOPE, strided=True)
        with T.sblock("root"):
            T.reads(C[0:16])
            T.writes(S[0:16, 0:16])
            T.evaluate(
                T.cuda.func_call(
                    "start_from_row",
                    S.data,
                    wmma.fragment_index(S),
                    C.access_ptr("r"),
                    source_code=SIXTEEN_ROWS,
                )
            )

    return desc, impl
