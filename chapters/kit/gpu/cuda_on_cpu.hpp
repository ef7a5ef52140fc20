// CUDA's names in C++, to run a kernel that TVM wrote for a GPU on a CPU: one fiber per thread, one block after another.
//
// Checked while a kernel runs, because a GPU would not report it:
//   * every access of an argument lies inside it, and a wide access is aligned;
//   * shared memory holds rubbish when a block starts;
//   * two threads that touch one element of shared memory, one of them writing, have a barrier between them;
//   * every thread of the block reaches each barrier, every lane of the warp each shuffle and each tensor-core operation.
// Tensor cores: 16 x 16 x 16 fragments of nvcuda::wmma with float32 sums. Which lane holds which element is scrambled on
// purpose, because CUDA does not document it. Asynchronous copies (cp.async) arrive as late as they may, when their thread
// waits for them; their destination is rubbish as soon as they start, because they may also arrive at once.
// mma_on_cpu.hpp has mma.sync and ldmatrix, hopper_on_cpu.hpp wgmma, bulk copies and mbarriers. Not supported: other
// shapes of fragments, atomics, grids that wait for each other.
//
// Each kernel becomes a library with its own copy of everything here: its symbols are hidden.
#include <ucontext.h>

#include <cmath>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <type_traits>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __forceinline__ static inline
#define __launch_bounds__(...)
#define __restrict__

typedef unsigned int uint;
struct Dim3 { unsigned x, y, z; };
inline Dim3 threadIdx, blockIdx, blockDim, gridDim;

// --- numbers -------------------------------------------------------------------------------------

inline uint16_t bf16_bits(float f) {
  uint32_t u; memcpy(&u, &f, 4);
  if ((u & 0x7fffffff) > 0x7f800000) return (u >> 16) | 0x40;
  return (u + 0x7fff + ((u >> 16) & 1)) >> 16;  // to nearest, ties to even
}

struct half {  // each operation rounds once, as the GPU's does
  _Float16 v;
  half() = default;
  explicit half(float f) : v((_Float16)f) {}
  operator float() const { return (float)v; }
};
struct nv_bfloat16 {
  uint16_t v;
  nv_bfloat16() = default;
  explicit nv_bfloat16(float f) : v(bf16_bits(f)) {}
  operator float() const { uint32_t u = (uint32_t)v << 16; float f; memcpy(&f, &u, 4); return f; }
};
typedef half __half;
typedef nv_bfloat16 __nv_bfloat16;
struct half2 { half x, y; };
struct nv_bfloat162 { nv_bfloat16 x, y; };
struct alignas(8) half4 { half x, y, z, w; };
struct alignas(8) nv_bfloat164 { nv_bfloat16 x, y, z, w; };
typedef half2 __half2;
typedef nv_bfloat162 __nv_bfloat162;
#define ARITHMETIC(T) \
  inline T operator+(T a, T b) { return T((float)a + (float)b); } \
  inline T operator-(T a, T b) { return T((float)a - (float)b); } \
  inline T operator*(T a, T b) { return T((float)a * (float)b); } \
  inline T operator/(T a, T b) { return T((float)a / (float)b); } \
  inline bool operator<(T a, T b) { return (float)a < (float)b; } \
  inline bool operator>(T a, T b) { return (float)a > (float)b; }
ARITHMETIC(half)
ARITHMETIC(nv_bfloat16)
struct uint2 { uint x, y; };
struct uint4 { uint x, y, z, w; };
struct int2 { int x, y; };
struct int4 { int x, y, z, w; };
struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
inline float2 make_float2(float a, float b) { return {a, b}; }
inline float4 make_float4(float a, float b, float c, float d) { return {a, b, c, d}; }
inline half __float2half_rn(float f) { return half(f); }
inline half __float2half(float f) { return half(f); }
inline float __half2float(half h) { return h; }
inline half2 make_half2(half a, half b) { return {a, b}; }
inline half4 make_half4(half a, half b, half c, half d) { return {a, b, c, d}; }
struct longlong2 { int64_t x, y; };
inline int2 make_int2(int a, int b) { return {a, b}; }
inline longlong2 make_longlong2(int64_t a, int64_t b) { return {a, b}; }
inline half hexp(half h) { return half(expf((float)h)); }
inline nv_bfloat16 __float2bfloat16_rn(float f) { return nv_bfloat16(f); }
inline nv_bfloat16 __float2bfloat16(float f) { return nv_bfloat16(f); }
inline float __bfloat162float(nv_bfloat16 b) { return b; }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline float __int_as_float(int i) { float f; memcpy(&f, &i, 4); return f; }
template <class T> static inline T max(T a, T b) { return a > b ? a : b; }
template <class T> static inline T min(T a, T b) { return a < b ? a : b; }

// --- threads -------------------------------------------------------------------------------------

enum State { READY, AT_BARRIER, IN_WARP, WAITING, DONE };
struct Fiber {
  ucontext_t context;
  State state;
  Dim3 id;
  long barrier;                    // source line of the barrier it waits at
  unsigned block_epoch, warp_epoch;  // how many barriers and warp exchanges it has passed
  std::function<bool()> until;     // if WAITING: the condition it waits for, and `what` says it in words
  const char* what;
};
inline std::vector<Fiber> fibers;
inline std::vector<char> stacks;
inline std::vector<uint64_t> exchanged;  // what each lane offers in a shuffle
inline ucontext_t scheduler;
inline unsigned current;
inline void (*kernel_body)();
inline char problem[400];

inline void leave(State state) {
  unsigned me = current;
  fibers[me].state = state;
  swapcontext(&fibers[me].context, &scheduler);
  current = me;
  threadIdx = fibers[me].id;
}

inline void fail(const char* format, ...) {
  if (!problem[0]) {
    int n = snprintf(problem, sizeof problem, "Thread (%u, %u, %u) of block (%u, %u, %u) ", threadIdx.x, threadIdx.y,
                     threadIdx.z, blockIdx.x, blockIdx.y, blockIdx.z);
    va_list args; va_start(args, format); vsnprintf(problem + n, sizeof problem - n, format, args); va_end(args);
  }
  leave(DONE);  // never resumed
}

inline void wait_until(std::function<bool()> until, const char* what) {
  if (until()) return;
  fibers[current].until = until; fibers[current].what = what;
  leave(WAITING);
}
inline void sync_threads(long line) { fibers[current].barrier = line; leave(AT_BARRIER); }
#define __syncthreads() sync_threads(__LINE__)
inline void __syncwarp(unsigned = ~0u) { leave(IN_WARP); }
inline unsigned __activemask() { return ~0u; }

template <class T> static T from_lane(T value, int lane) {
  exchanged[current] = 0; memcpy(&exchanged[current], &value, sizeof value);
  leave(IN_WARP);
  unsigned source = (current & ~31u) + lane;
  if (source >= fibers.size()) source = current;
  T result; memcpy(&result, &exchanged[source], sizeof result);
  leave(IN_WARP);
  return result;
}
template <class T> static T __shfl_down_sync(unsigned, T v, unsigned d, int w = 32) {
  int l = current & 31; return from_lane(v, (l & (w - 1)) + (int)d < w ? l + (int)d : l);
}
template <class T> static T __shfl_up_sync(unsigned, T v, unsigned d, int w = 32) {
  int l = current & 31; return from_lane(v, (l & (w - 1)) >= (int)d ? l - (int)d : l);
}
template <class T> static T __shfl_xor_sync(unsigned, T v, int mask, int = 32) {
  return from_lane(v, (current & 31) ^ mask);
}
template <class T> static T __shfl_sync(unsigned, T v, int source, int w = 32) {
  int l = current & 31; return from_lane(v, (l & ~(w - 1)) + (source & (w - 1)));
}

inline void enter() { kernel_body(); leave(DONE); }

// --- memory --------------------------------------------------------------------------------------

// An argument: indexing and pointer arithmetic are checked against its size.
template <class T> struct Argument {
  T* data; int64_t size; const char* name;
  struct Place {
    const Argument& of; int64_t at;
    template <class U> explicit operator U*() const {
      int64_t wide = sizeof(U) / sizeof(T);
      if (at < 0 || at + wide > of.size) of.outside(at, wide);
      if (((uintptr_t)(of.data + at)) % sizeof(U)) fail("reads or writes %s[%ld] %zu bytes wide, which is not aligned.", of.name, (long)at, sizeof(U));
      return (U*)(of.data + at);
    }
  };
  void outside(int64_t at, int64_t wide) const {
    if (wide == 1) fail("touches %s[%ld], and %s has %ld elements.", name, (long)at, name, (long)size);
    else fail("touches %s[%ld] to [%ld], and %s has %ld elements.", name, (long)at, (long)(at + wide - 1), name, (long)size);
  }
  T& operator[](int64_t i) const { if (i < 0 || i >= size) outside(i, 1); return data[i]; }
  Place operator+(int64_t i) const { return {*this, i}; }
  operator T*() const { return data; }  // when passed to a device function, as an array is in CUDA
  friend Place operator+(const Place& p, int64_t i) { return {p.of, p.at + i}; }
};

struct Access { int thread = -1; unsigned block_epoch, warp_epoch; };
struct Shadow { Access write, read; };  // the last write and the last read of one element
struct SharedArray { void* data; size_t bytes; Shadow* shadow; size_t count; const char* name; };
inline std::vector<SharedArray>& shared_arrays() { static std::vector<SharedArray> all; return all; }

inline bool unordered(const Access& before) {  // it was by another thread, and no barrier orders it before this access
  const Fiber& me = fibers[current];
  if (before.thread < 0 || before.thread == (int)current || before.block_epoch != me.block_epoch) return false;
  return before.thread / 32 != (int)current / 32 || before.warp_epoch == me.warp_epoch;
}
inline Access now() { return {(int)current, fibers[current].block_epoch, fibers[current].warp_epoch}; }
inline void race(const char* name, size_t i, const Access& other, const char* did, const char* other_did) {
  const Dim3& o = fibers[other.thread].id;
  fail("%s %s[%zu], which thread (%u, %u, %u) %s, and no barrier stands between them.", did, name, i, o.x, o.y, o.z, other_did);
}

inline void watch_read(Shadow& s, const char* name, size_t i) {
  if (unordered(s.write)) race(name, i, s.write, "reads", "writes");
  s.read = now();
}
inline void watch_write(Shadow& s, const char* name, size_t i, bool changes) {
  if (changes && unordered(s.write)) race(name, i, s.write, "writes", "writes");
  if (unordered(s.read)) race(name, i, s.read, "writes", "reads");
  s.write = now();
}

// Shared memory: poisoned when a block starts, watched for races. Layout is that of a plain array.
template <class T, size_t N> struct Shared {
  alignas(64) T data[N];
  Shadow shadow[N];
  const char* name;
  explicit Shared(const char* n) : name(n) { memset((void*)data, 0xff, sizeof data); shared_arrays().push_back({data, sizeof data, shadow, N, name}); }
  void reading(size_t i) const { watch_read(const_cast<Shadow&>(shadow[i]), name, i); }
  void writing(size_t i, const T& value) { watch_write(shadow[i], name, i, memcmp(&data[i], &value, sizeof value)); }
  struct Element {
    Shared& of; size_t i;
    operator T() const { of.reading(i); return of.data[i]; }
    template <class U, class = std::enable_if_t<!std::is_same<U, T>::value>> explicit operator U() const { return (U)(T)*this; }
    Element& operator=(T value) { of.writing(i, value); of.data[i] = value; return *this; }
    Element& operator=(const Element& other) { return *this = (T)other; }
    T* operator&() const { return &of.data[i]; }
  };
  Element operator[](int64_t i) {
    if (i < 0 || i >= (int64_t)N) fail("touches %s[%ld] in shared memory, and %s has %zu elements.", name, (long)i, name, N);
    return {*this, (size_t)i};
  }
  struct Place {
    typedef T Of; Shared& of; int64_t at;
    template <class U> explicit operator U*() const {
      if (at < 0 || (at + (int64_t)(sizeof(U) / sizeof(T))) > (int64_t)N) fail("touches %s[%ld] in shared memory, and %s has %zu elements.", of.name, (long)at, of.name, N);
      if (((uintptr_t)(of.data + at)) % sizeof(U)) fail("reads or writes %s[%ld] in shared memory %zu bytes wide, which is not aligned.", of.name, (long)at, sizeof(U));
      return (U*)(of.data + at);
    }
  };
  Place operator+(int64_t i) { return {*this, i}; }
  friend Place operator+(const Place& p, int64_t i) { return {p.of, p.at + i}; }
};

// `*(U*)(shared + i)`, an access of several elements at once: each of them is watched.
template <class U, class Place> struct Wide {
  typedef typename Place::Of T;
  Place place; U* data;
  explicit Wide(const Place& p) : place(p), data((U*)p) {}
  operator U() const {
    for (size_t n = 0; n < sizeof(U) / sizeof(T); n++) place.of.reading(place.at + n);
    return *data;
  }
  Wide& operator=(U value) {
    for (size_t n = 0; n < sizeof(U) / sizeof(T); n++) place.of.writing(place.at + n, ((T*)&value)[n]);
    *data = value;
    return *this;
  }
  Wide& operator=(const Wide& other) { return *this = (U)other; }
};
template <class U, class Place> static Wide<U, Place> wide(const Place& p) { return Wide<U, Place>(p); }

// --- asynchronous copies ---------------------------------------------------------------------------

inline std::vector<std::vector<std::function<void()>>> copies;  // by thread: started, not yet arrived
inline std::vector<std::vector<size_t>> groups;                 // by thread: the number of copies in each committed group

inline size_t in_groups() { size_t n = 0; for (size_t g : groups[current]) n += g; return n; }
inline void cp_async_commit() { groups[current].push_back(copies[current].size() - in_groups()); }
inline void cp_async_wait(size_t newest) {  // all groups but the newest arrive
  auto& mine = groups[current];
  while (mine.size() > newest) {
    for (size_t i = 0; i < mine[0]; i++) copies[current][i]();
    copies[current].erase(copies[current].begin(), copies[current].begin() + mine[0]);
    mine.erase(mine.begin());
  }
}

// --- tensor cores --------------------------------------------------------------------------------

struct Range { const char* data; size_t bytes; const char* name; };
inline std::vector<Range>& arguments() { static std::vector<Range> all; return all; }
inline std::vector<const float*> offered_a, offered_b;  // by thread: the fragments it brings to a product

// Check one element of a tile, given by its plain address: it must lie in an argument or in shared memory.
template <class T> static void touch(const T* p, bool writes, T value) {
  const char* at = (const char*)p;
  for (auto& s : shared_arrays()) if (at >= (char*)s.data && at < (char*)s.data + s.bytes) {
    size_t i = (at - (char*)s.data) / sizeof(T);
    if (writes) watch_write(s.shadow[i], s.name, i, memcmp(p, &value, sizeof value)); else watch_read(s.shadow[i], s.name, i);
    return;
  }
  for (auto& a : arguments()) if (at >= a.data && at + sizeof(T) <= a.data + a.bytes) return;
  fail("%s a tile that reaches outside the kernel's arrays.", writes ? "stores" : "loads");
}

namespace nvcuda { namespace wmma {
struct matrix_a; struct matrix_b; struct accumulator; struct row_major; struct col_major;
enum layout_t { mem_row_major, mem_col_major };
// Element e of the tile, counted along its rows, is x[s] of lane l where (8 l + s) * 37 = e modulo 256.
template <class Use, int M, int N, int K, class T, class Layout = void> struct fragment {
  static_assert(M == 16 && N == 16 && K == 16, "only fragments of 16 x 16 x 16 are known here");
  static const int num_elements = 8;
  float x[8];
};
inline int element(int s) { return ((current & 31) * 8 + s) * 37 & 255; }
inline float held(const float* const* lanes, int e) { int p = e * 173 & 255; return lanes[p >> 3][p & 7]; }
inline void together() {  // all 32 lanes
  if ((current | 31) >= fibers.size()) fail("uses a tensor core in a warp of fewer than 32 threads.");
  leave(IN_WARP);
}
inline int64_t offset(int e, int64_t ld, bool rows) { return rows ? (e >> 4) * ld + (e & 15) : (e & 15) * ld + (e >> 4); }
template <class F, class T> static void load_tile(F& f, const T* p, int64_t ld, bool rows) {
  together();
  for (int s = 0; s < 8; s++) { const T* q = p + offset(element(s), ld, rows); touch(q, false, T()); f.x[s] = (float)*q; }
  together();
}
template <class U, class T> static void load_matrix_sync(fragment<U, 16, 16, 16, T, row_major>& f, const T* p, unsigned ld) { load_tile(f, p, ld, true); }
template <class U, class T> static void load_matrix_sync(fragment<U, 16, 16, 16, T, col_major>& f, const T* p, unsigned ld) { load_tile(f, p, ld, false); }
template <class T> static void load_matrix_sync(fragment<accumulator, 16, 16, 16, T>& f, const T* p, unsigned ld, layout_t layout) { load_tile(f, p, ld, layout == mem_row_major); }
template <class T> static void store_matrix_sync(T* p, const fragment<accumulator, 16, 16, 16, T>& f, unsigned ld, layout_t layout) {
  together();
  for (int s = 0; s < 8; s++) {
    T* q = p + offset(element(s), ld, layout == mem_row_major);
    touch(q, true, (T)f.x[s]);
    *q = (T)f.x[s];
  }
  together();
}
template <class F> static void fill_fragment(F& f, float value) { for (float& x : f.x) x = value; }
template <class D, class A, class B, class C> static void mma_sync(D& d, const A& a, const B& b, const C& c) {
  offered_a[current] = a.x; offered_b[current] = b.x;
  together();
  const float* const* as = &offered_a[current & ~31u]; const float* const* bs = &offered_b[current & ~31u];
  float sums[8];
  for (int s = 0; s < 8; s++) {
    int e = element(s), i = e >> 4, j = e & 15;
    sums[s] = c.x[s];
    for (int k = 0; k < 16; k++) sums[s] += held(as, i * 16 + k) * held(bs, k * 16 + j);
  }
  together();
  memcpy(d.x, sums, sizeof sums);
}
}}  // namespace nvcuda::wmma

#include "mma_on_cpu.hpp"
#include "hopper_on_cpu.hpp"

// What is wrong, or "": in run_grid_on_cpu.cpp.
const char* run_grid(const unsigned* grid, const unsigned* block, int backwards);
