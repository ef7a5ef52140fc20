// Hopper's own instructions for cuda_on_cpu.hpp, which includes this: wgmma, bulk copies (TMA), mbarriers.
//
// Everything finishes as late as it may. A bulk copy arrives when no thread can go on without it; a wgmma reads shared
// memory and its sums when its thread waits for its group. Until then the registers of its sums hold poison.
//
// Checked while a kernel runs, because a GPU would not report it:
//   * no bulk copy writes where a wgmma in flight still reads, and no wgmma reads where a copy still writes;
//   * all 128 threads of a warpgroup issue the same products, from the same descriptors;
//   * no sum is written while a product is in flight, and none between a fence and the next product;
//   * an mbarrier is used after it was made and the block has passed a barrier, and copies know of it (proxy fence);
//   * an mbarrier is made once, and gets no more arrivals in a phase than it waits for;
//   * plain accesses of the dynamic array, as of any other: an mbarrier orders who waits after who arrived;
//   * nothing is in flight when a block ends.
// Descriptors are decoded (start, both offsets, swizzle), tensor maps too (size, pitch, box, swizzle, zeros past an edge).
//
// Not supported: operands of A in registers, transposed operands, float8 and sparse products, sums of float16, clusters
// and multicast, bulk stores, reductions, copies by maps of rank 1, 3 and 4, setmaxnreg, time. The layouts follow the PTX
// manual; on an H200 the kernels of wgmma.py gave right results, so it reads the ones that they use in the same way.
#include <array>
#include <tuple>
#include <utility>

#define HOST_DEVICE
#define __grid_constant__
typedef unsigned char uchar;

// --- dynamic shared memory -----------------------------------------------------------------------

static const uint32_t WINDOW = 1024;  // where shared memory begins in its own address space; the GPU reserves the first KiB
alignas(1024) inline uint8_t dynamic_shared[227 * 1024];
inline uint32_t dynamic_bytes;  // as the host code asked for
inline bool pool_is_watched;    // the kernel's text has plain accesses of the array

inline uint32_t shared_address(const void* p) { return (uint32_t)((const uint8_t*)p - dynamic_shared) + WINDOW; }

void pool_access(int64_t at, size_t bytes, bool writes, const void* value);
template <class T> struct PoolElement {  // ((T*)pool)[i], in plain accesses
  typedef T Value;
  T* p;
  int64_t at() const { return (char*)p - (char*)dynamic_shared; }
  T* operator&() const { return p; }
  operator T() const { pool_access(at(), sizeof(T), false, nullptr); return *p; }
  template <class U, class = std::enable_if_t<!std::is_same<U, T>::value>> explicit operator U() const { return (U)(T)*this; }
  PoolElement& operator=(T value) { pool_access(at(), sizeof(T), true, &value); *p = value; return *this; }
  PoolElement& operator=(const PoolElement& other) { return *this = (T)other; }
};
template <class T> struct Pool { T* p; PoolElement<T> operator[](int64_t i) const { return {p + i}; } };
template <class T> static Pool<T> in_pool(uchar* p) { return {(T*)p}; }

// The 16-byte pieces of a row are permuted by the row's number; copies and products compute the place from the address.
enum Swizzle { SWIZZLE_NONE, SWIZZLE_32, SWIZZLE_64, SWIZZLE_128 };  // as the driver numbers them
inline uint32_t swizzled(uint32_t address, int mode) { return address ^ (address >> 3 & ((1 << mode) - 1) << 4); }

// --- mbarriers and bulk copies -------------------------------------------------------------------

void mbarrier_init(uint32_t address, uint32_t count);
void fence_proxy_async();
void mbarrier_arrive(uint32_t address, uint32_t count, bool predicate = true);
void mbarrier_arrive_expect(uint32_t address, uint32_t bytes);
void mbarrier_wait(const void* p, int parity);  // until the phase of this parity is over

struct alignas(64) CUtensorMap {  // as tensor_maps.py packs it, the innermost dimension first
  uint64_t base, size[5], pitch[4];
  uint32_t box[5], item_bytes, swizzle, rank;
  uint64_t rest[2];
};
static_assert(sizeof(CUtensorMap) == 128, "of the size that CUDA says");

void bulk_copy_at(uint32_t to, const void* map, std::array<int64_t, 5> at, unsigned rank, uint32_t barrier);
inline void bulk_copy(uint32_t to, const void* map, int c0, int c1, uint32_t barrier) { bulk_copy_at(to, map, {c0, c1}, 2, barrier); }
inline void bulk_copy(uint32_t to, const void* map, int c0, int c1, int c2, int c3, int c4, uint32_t barrier) { bulk_copy_at(to, map, {c0, c1, c2, c3, c4}, 5, barrier); }

// --- wgmma -----------------------------------------------------------------------------------------

struct Span {
  uint32_t from, to;
  bool meets(const Span& other) const { return from < other.to && other.from < to; }
};
struct Descriptor {
  uint32_t start, leading, stride; int mode;
  explicit Descriptor(uint64_t d);
  uint32_t at(int r, int k) const;  // where element k of row r lies
  Span span(int rows) const;
};
void remember_sums(float* array, size_t count);  // so that a write after a fence is seen, also before the first product
void fence_wgmma();
template <size_t... N> static void wgmma_fence(float (&... arrays)[N]) { (remember_sums(arrays, N), ...); fence_wgmma(); }
void wgmma_commit();
void issue_wgmma(float** sums, int columns, uint64_t a, uint64_t b, bool adds, float (*number)(const char*));
template <class T, int N, size_t... I, class All> static void issue(All all, std::index_sequence<I...>) {
  static_assert(std::tuple_size<All>::value == N / 2 + 3, "half as many sums as columns, two descriptors, and scale-d");
  float* sums[] = {&std::get<I>(all)...};
  issue_wgmma(sums, N, (uint64_t)std::get<N / 2>(all), (uint64_t)std::get<N / 2 + 1>(all), (bool)std::get<N / 2 + 2>(all), number_at<T>);
}
template <class T, int N, class... All> static void wgmma(All&&... all) {
  issue<T, N>(std::forward_as_tuple(all...), std::make_index_sequence<N / 2>());
}
void wgmma_wait(long newest);
inline void hold_register(float&) {}  // wgmma.py: these two keep NVIDIA's compiler from moving code, and do nothing
inline int anew(int value) { return value; }
