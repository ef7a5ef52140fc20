// CUDA's names in C++, to run a kernel that TVM wrote for a GPU on a CPU: one fiber per thread, one block after another.
//
// Checked while a kernel runs, because a GPU would not report it:
//   * every access of an argument or of shared memory lies inside it, and a wide access is aligned;
//   * shared memory holds poison when a block starts, and is read only where a thread has written;
//   * two threads that touch one element of shared or global memory, one of them writing, have a barrier between them,
//     and two blocks do not touch one element at all (watch_on_cpu.hpp says what counts as a barrier);
//   * every thread of the block reaches each barrier; the lanes that a mask names reach each shuffle, and no lane reads
//     from one that has ended; all 32 lanes reach each tensor-core operation;
//   * what an asynchronous copy fills is not touched before its thread has waited for it.
// Tensor cores: 16 x 16 x 16 fragments of nvcuda::wmma with float32 sums. Which lane holds which element is scrambled on
// purpose, because CUDA does not document it. Asynchronous copies (cp.async) arrive as late as they may, when their thread
// waits for them; their destination is poisoned as soon as they start, because they may also arrive at once.
// mma_on_cpu.hpp has mma.sync and ldmatrix, hopper_on_cpu.hpp wgmma, bulk copies and mbarriers. Not supported: other
// shapes of fragments, memory fences, named barriers, grids that wait for each other.
//
// Each kernel becomes a library with its own copy of everything here: its symbols are hidden. What does not depend on the
// kernel stands in the .cpp files, which are compiled once.
#include <setjmp.h>

#include <cmath>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <type_traits>
#include <vector>

#include "watch_on_cpu.hpp"

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
  inline T operator-(T a) { return T(-(float)a); } \
  inline bool operator<(T a, T b) { return (float)a < (float)b; } \
  inline bool operator>(T a, T b) { return (float)a > (float)b; } \
  inline bool operator<=(T a, T b) { return (float)a <= (float)b; } \
  inline bool operator>=(T a, T b) { return (float)a >= (float)b; } \
  inline bool operator==(T a, T b) { return (float)a == (float)b; } \
  inline bool operator!=(T a, T b) { return (float)a != (float)b; }
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
inline nv_bfloat162 make_nv_bfloat162(nv_bfloat16 a, nv_bfloat16 b) { return {a, b}; }
inline half4 make_half4(half a, half b, half c, half d) { return {a, b, c, d}; }
inline nv_bfloat164 make_nv_bfloat164(nv_bfloat16 a, nv_bfloat16 b, nv_bfloat16 c, nv_bfloat16 d) { return {a, b, c, d}; }
struct longlong2 { int64_t x, y; };
inline int2 make_int2(int a, int b) { return {a, b}; }
inline longlong2 make_longlong2(int64_t a, int64_t b) { return {a, b}; }
#define ROUNDED(T, name, function) inline T name(T x) { return T(function((float)x)); }
#define FUNCTIONS(T) \
  ROUNDED(T, hexp, expf) ROUNDED(T, hlog, logf) ROUNDED(T, hsqrt, sqrtf) ROUNDED(T, hrsqrt, 1.0f / sqrtf) \
  ROUNDED(T, hsin, sinf) ROUNDED(T, hcos, cosf) ROUNDED(T, htanh, tanhf)
FUNCTIONS(half)
FUNCTIONS(nv_bfloat16)
inline nv_bfloat16 __float2bfloat16_rn(float f) { return nv_bfloat16(f); }
inline nv_bfloat16 __float2bfloat16(float f) { return nv_bfloat16(f); }
inline float __bfloat162float(nv_bfloat16 b) { return b; }
template <class T, class = void> struct Loaded { typedef T type; };  // what reading a thing gives
template <class T> struct Loaded<T, std::void_t<typename T::Value>> { typedef typename T::Value type; };
template <class A, class B> using Both = std::common_type_t<typename Loaded<A>::type, typename Loaded<B>::type>;
template <class A, class B> static inline Both<A, B> max(A a, B b) { Both<A, B> x = a, y = b; return x > y ? x : y; }
template <class A, class B> static inline Both<A, B> min(A a, B b) { Both<A, B> x = a, y = b; return x < y ? x : y; }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline float __int_as_float(int i) { float f; memcpy(&f, &i, 4); return f; }

// --- threads -------------------------------------------------------------------------------------

enum State : uint8_t { READY, AT_BARRIER, IN_WARP, IN_MASK, WAITING, DONE };
struct Fiber {
  jmp_buf place;                   // where it goes on
  bool begun;                      // it has a place
  Dim3 id;
  long barrier;                    // source line of the barrier it waits at
  std::function<bool()> until;     // if WAITING: the condition it waits for, and `what` says it in words
  std::function<std::string()> what;
  // an instruction that lanes of its warp execute together; `call` is null when they have
  const char* call; unsigned mask; bool whole; void (*together)(unsigned first, unsigned mask); void* operands;
  uint64_t offered, received; unsigned source;  // in a shuffle: its value, what it gets, and the thread it gets that from
};
extern std::vector<Fiber> fibers;
extern std::vector<State> states;  // by thread
inline jmp_buf scheduler;
inline void (*kernel_body)();
inline const char* kernel_name;
inline char problem[600];

inline void leave(State state) {  // run other threads; come back when this one is READY
  states[current] = state;
  if (!_setjmp(fibers[current].place)) _longjmp(scheduler, 1);
}
[[noreturn]] void fail(const char* format, ...);
void suspect(const char* format, ...);        // fail when the block has ended, unless a race is found first
void suspect_nothing();
Dim3 place_of(unsigned thread);               // its threadIdx
std::string thread_name(unsigned thread);     // with its place, in words
unsigned long block_of(uint32_t epoch);       // the number of the block that was running
void sync_threads(long line);
void wait_until(std::function<bool()> until, std::function<std::string()> what);
// The lanes of `mask` execute `call` together: when the last one is here, `together` does it for all of them.
// whole: all 32 lanes must, and none may have ended, as for every instruction that PTX calls .aligned
void with_warp(const char* call, unsigned mask, bool whole = false, void (*together)(unsigned first, unsigned mask) = nullptr, void* operands = nullptr);
void exchange(unsigned first, unsigned mask);
inline void whole_warp(const char* call) { with_warp(call, ~0u, true); }
unsigned __activemask();

#define __syncthreads() sync_threads(__LINE__)
inline void __syncwarp(unsigned mask = ~0u) { with_warp("__syncwarp", mask, false, meet_in_memory); }

template <class T> static T from_lane(const char* call, unsigned mask, T value, int lane) {
  Fiber& me = fibers[current];
  me.offered = 0; memcpy(&me.offered, &value, sizeof value);
  me.source = (current & ~31u) + lane;
  with_warp(call, mask, false, exchange);
  T result; memcpy(&result, &me.received, sizeof result);
  return result;
}
template <class A, class T = typename Loaded<A>::type> static T __shfl_down_sync(unsigned mask, A v, unsigned d, int w = 32) {
  int l = current & 31; return from_lane<T>("__shfl_down_sync", mask, v, (l & (w - 1)) + (int)d < w ? l + (int)d : l);
}
template <class A, class T = typename Loaded<A>::type> static T __shfl_up_sync(unsigned mask, A v, unsigned d, int w = 32) {
  int l = current & 31; return from_lane<T>("__shfl_up_sync", mask, v, (l & (w - 1)) >= (int)d ? l - (int)d : l);
}
template <class A, class T = typename Loaded<A>::type> static T __shfl_xor_sync(unsigned mask, A v, int flip, int = 32) {
  return from_lane<T>("__shfl_xor_sync", mask, v, ((current & 31) ^ flip) & 31);
}
template <class A, class T = typename Loaded<A>::type> static T __shfl_sync(unsigned mask, A v, int source, int w = 32) {
  int l = current & 31; return from_lane<T>("__shfl_sync", mask, v, (l & ~(w - 1)) + (source & (w - 1)));
}

// --- memory --------------------------------------------------------------------------------------

void outside(const Memory& m, int64_t at, int64_t items);
void not_aligned(const Memory& m, int64_t at, size_t bytes);

// One element: reading and writing it is watched.
template <class T> struct Element {
  typedef T Value;
  Memory& of; size_t i;
  T* operator&() const { return (T*)of.data + i; }
  operator T() const { watch_read(of, i); return *&*this; }
  template <class U, class = std::enable_if_t<!std::is_same<U, T>::value>> explicit operator U() const { return (U)(T)*this; }
  Element& operator=(T value) {
    watch_write(of, i, memcmp(&*this, &value, sizeof value));
    *&*this = value;
    return *this;
  }
  Element& operator=(const Element& other) { return *this = (T)other; }
  Element& operator+=(T value) { return *this = (T)*this + value; }
  Element& operator*=(T value) { return *this = (T)*this * value; }
};
// `array + i`, which is read or written several elements at a time: each of them is watched.
template <class T> struct Place {
  Memory& of; int64_t size, at;
  template <class U> explicit operator U*() const {
    int64_t items = (sizeof(U) + sizeof(T) - 1) / sizeof(T);
    if (at < 0 || at + items > size) outside(of, at, items);
    U* place = (U*)((T*)of.data + at);
    if ((uintptr_t)place % sizeof(U)) not_aligned(of, at, sizeof(U));
    return place;
  }
  Place operator+(int64_t i) const { return {of, size, at + i}; }
};
template <class U, class T> struct Wide {
  typedef U Value;
  Place<T> place; U* data;
  explicit Wide(const Place<T>& p) : place(p), data((U*)p) {}
  size_t items() const { return (sizeof(U) + sizeof(T) - 1) / sizeof(T); }
  operator U() const {
    for (size_t n = 0; n < items(); n++) watch_read(place.of, place.at + n);
    return *data;
  }
  Wide& operator=(U value) {
    size_t each = sizeof(U) / items();
    for (size_t n = 0; n < items(); n++) watch_write(place.of, place.at + n, memcmp((char*)data + n * each, (char*)&value + n * each, each));
    *data = value;
    return *this;
  }
  Wide& operator=(const Wide& other) { return *this = (U)other; }
};
template <class U, class T> static Wide<U, T> wide(const Place<T>& p) { return Wide<U, T>(p); }

// An argument: a pointer to global memory that knows its size.
template <class T> struct Argument {
  Memory* memory; int64_t size;
  Element<T> operator[](int64_t i) const { if ((uint64_t)i >= (uint64_t)size) outside(*memory, i, 1); return {*memory, (size_t)i}; }
  Place<T> operator+(int64_t i) const { return {*memory, size, i}; }
  operator T*() const { return (T*)memory->data; }  // when passed to a device function, as an array is in CUDA: not watched
};

// Shared memory: poisoned when a block starts. Layout is that of a plain array.
void new_shared_array(Memory& m);
template <class T, size_t N> struct Shared {
  alignas(64) T data[N];
  Memory memory;
  explicit Shared(const char* name) { memory = {name, true, (char*)data, sizeof data, sizeof(T)}; new_shared_array(memory); }
  Element<T> operator[](int64_t i) { if ((uint64_t)i >= N) outside(memory, i, 1); return {memory, (size_t)i}; }
  Place<T> operator+(int64_t i) { return {memory, (int64_t)N, i}; }
};

// Atomic operations: they order nothing; two of them may meet at one element, and a plain access may not join them.
template <class T, class F> static T atomic(T* p, F change) {
  Memory* m = memory_at(p);
  if (!m) fail("changes an address atomically that lies outside the kernel's arrays.");
  size_t first = ((char*)p - m->data) / m->item;
  for (size_t n = 0; n * m->item < sizeof(T); n++) watch_atomic(*m, first + n);
  T old = *p;
  *p = change(old);
  return old;
}
template <class T> using Given = std::common_type_t<T>;  // an operand that does not decide the type
template <class T> static T atomicAdd(T* p, Given<T> v) { return atomic(p, [=](T old) { return old + v; }); }
template <class T> static T atomicMax(T* p, Given<T> v) { return atomic(p, [=](T old) { return old > v ? old : v; }); }
template <class T> static T atomicMin(T* p, Given<T> v) { return atomic(p, [=](T old) { return old < v ? old : v; }); }
template <class T> static T atomicExch(T* p, Given<T> v) { return atomic(p, [=](T) { return v; }); }
template <class T> static T atomicCAS(T* p, Given<T> compare, Given<T> v) { return atomic(p, [=](T old) { return old == compare ? v : old; }); }

// --- asynchronous copies ---------------------------------------------------------------------------

void cp_async_commit();
void cp_async_wait(size_t newest);  // all groups but the newest arrive

// --- tensor cores --------------------------------------------------------------------------------

// A tile in an argument or in shared memory, given by its plain address. number: the element as a float.
struct Tile { const char* at; int64_t ld; bool rows; size_t item; float (*number)(const char*); };
void load_tile(float* x, const Tile& tile);
void store_tile(const float* x, const Tile& tile, void (*put)(char*, float));
void multiply_tiles(float* d, const float* a, const float* b, const float* c);
template <class T> static float number_at(const char* p) { T v; memcpy(&v, p, sizeof v); return (float)v; }
template <class T> static void put_at(char* p, float x) { T v = (T)x; memcpy(p, &v, sizeof v); }

namespace nvcuda { namespace wmma {
struct matrix_a; struct matrix_b; struct accumulator; struct row_major; struct col_major;
enum layout_t { mem_row_major, mem_col_major };
template <class Use, int M, int N, int K, class T, class Layout = void> struct fragment {
  static_assert(M == 16 && N == 16 && K == 16, "only fragments of 16 x 16 x 16 are known here");
  static const int num_elements = 8;
  float x[8];
};
template <class T> static Tile tile(const T* p, int64_t ld, bool rows) { return {(const char*)p, ld, rows, sizeof(T), number_at<T>}; }
template <class U, class T> static void load_matrix_sync(fragment<U, 16, 16, 16, T, row_major>& f, const T* p, unsigned ld) { load_tile(f.x, tile(p, ld, true)); }
template <class U, class T> static void load_matrix_sync(fragment<U, 16, 16, 16, T, col_major>& f, const T* p, unsigned ld) { load_tile(f.x, tile(p, ld, false)); }
template <class T> static void load_matrix_sync(fragment<accumulator, 16, 16, 16, T>& f, const T* p, unsigned ld, layout_t layout) { load_tile(f.x, tile(p, ld, layout == mem_row_major)); }
template <class T> static void store_matrix_sync(T* p, const fragment<accumulator, 16, 16, 16, T>& f, unsigned ld, layout_t layout) { store_tile(f.x, tile(p, ld, layout == mem_row_major), put_at<T>); }
template <class F> static void fill_fragment(F& f, float value) { for (float& x : f.x) x = value; }
template <class D, class A, class B, class C> static void mma_sync(D& d, const A& a, const B& b, const C& c) { multiply_tiles(d.x, a.x, b.x, c.x); }
}}  // namespace nvcuda::wmma

#include "mma_on_cpu.hpp"
#include "hopper_on_cpu.hpp"

// What is wrong, or "". order: 0, the first thread and the first block go first; -1, the last ones; else the seed of a
// random order of threads, warps, blocks and copies.
const char* run_grid(const unsigned* grid, const unsigned* block, int order);
