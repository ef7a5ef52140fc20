// Hopper's own instructions for cuda_on_cpu.hpp, which includes this: wgmma, bulk copies (TMA), mbarriers.
//
// Everything finishes as late as it may. A bulk copy arrives when no thread can go on without it; a wgmma reads shared
// memory and its sums when its thread waits for its group. Until then the registers of its sums hold rubbish.
//
// Checked while a kernel runs, because a GPU would not report it:
//   * no bulk copy writes where a wgmma in flight still reads, and no wgmma reads where a copy still writes;
//   * all 128 threads of a warpgroup issue the same products, from the same descriptors;
//   * no sum is touched while a product is in flight; a fence follows a write to a sum before the next product;
//   * an mbarrier is used after it was made and the block has passed a barrier, and copies know of it (proxy fence);
//   * an mbarrier gets no more arrivals in a phase than it waits for; nothing is in flight when a block ends.
// Descriptors are decoded (start, both offsets, swizzle), tensor maps too (size, pitch, box, swizzle, zeros past an edge).
//
// Not supported: operands of A in registers, transposed operands, float8 and sparse products, sums of float16, clusters
// and multicast, bulk stores, reductions, tensor maps of other ranks, setmaxnreg, time. The layouts follow the PTX manual
// as we read it; they have not been compared with a GPU.
#include <map>
#include <tuple>
#include <utility>

#define HOST_DEVICE
#define __grid_constant__
typedef unsigned char uchar;
using nvcuda::wmma::together;

// --- dynamic shared memory -----------------------------------------------------------------------

static const uint32_t WINDOW = 1024;  // where shared memory begins in its own address space; the GPU reserves the first KiB
alignas(1024) inline uint8_t dynamic_shared[227 * 1024];
inline uint32_t dynamic_bytes;  // as the host code asked for

inline uint32_t shared_address(const void* p) { return (uint32_t)((const uint8_t*)p - dynamic_shared) + WINDOW; }
inline uint8_t* shared_at(uint32_t address, uint32_t bytes, const char* who) {
  if (address < WINDOW || address - WINDOW + bytes > dynamic_bytes) fail("%s shared memory at %u, and the block has %u bytes of it.", who, address - WINDOW, dynamic_bytes);
  return dynamic_shared + (address - WINDOW);
}

// The 16-byte pieces of a row are permuted by the row's number; copies and products compute the place from the address.
enum Swizzle { SWIZZLE_NONE, SWIZZLE_32, SWIZZLE_64, SWIZZLE_128 };  // as the driver numbers them
inline uint32_t swizzled(uint32_t address, int mode) { return address ^ (address >> 3 & ((1 << mode) - 1) << 4); }

struct Span {
  uint32_t from, to;
  bool meets(const Span& other) const { return from < other.to && other.from < to; }
};

// --- mbarriers -----------------------------------------------------------------------------------

struct MBarrier {
  int expected, pending; int64_t bytes; unsigned phase;
  unsigned maker, epoch;  // who made it, and how many barriers of the block the maker had passed
  bool published;         // to the copies, by a proxy fence of its maker
};
inline std::map<uint32_t, MBarrier> mbarriers;

inline MBarrier& mbarrier(uint32_t address) {
  auto found = mbarriers.find(address);
  if (found == mbarriers.end()) fail("uses an mbarrier at %u in shared memory, where none was made.", address - WINDOW);
  MBarrier& it = found->second;
  if (it.maker != current && fibers[current].block_epoch == it.epoch) fail("uses an mbarrier that thread %u makes, and no barrier of the block stands between them.", it.maker);
  return it;
}
inline void settle(MBarrier& it) {
  if (it.pending == 0 && it.bytes == 0) { it.phase++; it.pending = it.expected; }
}
inline void mbarrier_init(uint32_t address, uint32_t count) {
  shared_at(address, 8, "makes an mbarrier in");
  if (address % 8) fail("makes an mbarrier at %u, which is not a multiple of 8.", address - WINDOW);
  mbarriers[address] = {(int)count, (int)count, 0, 0, current, fibers[current].block_epoch, false};
}
inline void fence_proxy_async() { for (auto& it : mbarriers) if (it.second.maker == current) it.second.published = true; }
inline void mbarrier_arrive(uint32_t address, uint32_t count, bool predicate = true) {
  if (!predicate) return;
  MBarrier& it = mbarrier(address);
  it.pending -= count;
  if (it.pending < 0) fail("arrives at an mbarrier at %u that waits for nobody in this phase.", address - WINDOW);
  settle(it);
}
inline void mbarrier_arrive_expect(uint32_t address, uint32_t bytes) {
  mbarrier(address).bytes += bytes;
  mbarrier_arrive(address, 1);
}
inline void mbarrier_wait(const void* p, int parity) {  // until the phase of this parity is over
  uint32_t address = shared_address(p);
  mbarrier(address);
  wait_until([=] { return (int)(mbarriers[address].phase & 1) != parity; }, "for an mbarrier");
}

// --- bulk copies -----------------------------------------------------------------------------------

struct alignas(64) CUtensorMap {  // as tensor_maps.py packs it: rank 2, the innermost first
  uint64_t base, size[2], pitch;
  uint32_t box[2], item_bytes, swizzle;
  uint64_t rest[10];
};
static_assert(sizeof(CUtensorMap) == 128, "of the size that CUDA says");

struct BulkCopy { CUtensorMap map; int64_t at[2]; uint32_t to, barrier; Span span; };
inline std::vector<BulkCopy> bulk_copies;  // asked for, not yet arrived

inline bool read_by_wgmma(const Span& span);

inline void bulk_copy(uint32_t to, const void* map, int c0, int c1, uint32_t barrier) {
  BulkCopy it;
  memcpy(&it.map, map, sizeof it.map);
  uint32_t bytes = it.map.box[0] * it.map.box[1] * it.map.item_bytes;
  shared_at(to, bytes, "copies to");
  if (to % (it.map.swizzle ? 1024 : 128)) fail("copies to %u in shared memory, where no tile of this swizzle can begin.", to - WINDOW);
  it.at[0] = c0; it.at[1] = c1; it.to = to; it.barrier = barrier; it.span = {to, to + bytes};
  if (!mbarrier(barrier).published) fail("hands an mbarrier to a bulk copy that does not know it: no proxy fence since it was made.");
  if (read_by_wgmma(it.span)) fail("copies to %u in shared memory, which a wgmma under way still reads.", to - WINDOW);
  for (auto& other : bulk_copies) if (other.span.meets(it.span)) fail("copies to %u in shared memory, which another bulk copy still fills.", to - WINDOW);
  bulk_copies.push_back(it);
}
inline void arrive(const BulkCopy& it) {
  const CUtensorMap& map = it.map;
  uint32_t row_bytes = map.box[0] * map.item_bytes;
  for (uint32_t r = 0; r < map.box[1]; r++) for (uint32_t c = 0; c < map.box[0]; c++) {
    int64_t x = it.at[0] + c, y = it.at[1] + r;
    uint32_t to = swizzled(it.to + r * row_bytes + c * map.item_bytes, map.swizzle);
    uint8_t* place = dynamic_shared + (to - WINDOW);
    bool inside = x >= 0 && y >= 0 && x < (int64_t)map.size[0] && y < (int64_t)map.size[1];
    if (inside) memcpy(place, (uint8_t*)map.base + y * map.pitch + x * map.item_bytes, map.item_bytes);
    else memset(place, 0, map.item_bytes);
  }
  MBarrier& barrier = mbarriers[it.barrier];
  barrier.bytes -= it.span.to - it.span.from;
  settle(barrier);
}
inline bool one_copy_arrives(bool newest) {  // called when no thread can go on
  if (bulk_copies.empty()) return false;
  auto which = newest ? bulk_copies.end() - 1 : bulk_copies.begin();
  BulkCopy it = *which;
  bulk_copies.erase(which);
  arrive(it);
  return true;
}

// --- wgmma -----------------------------------------------------------------------------------------

struct Descriptor {
  uint32_t start, leading, stride; int mode;
  explicit Descriptor(uint64_t d) : start((d & 0x3fff) << 4), leading((d >> 16 & 0x3fff) << 4), stride((d >> 32 & 0x3fff) << 4) {
    static const int modes[] = {SWIZZLE_NONE, SWIZZLE_128, SWIZZLE_64, SWIZZLE_32};
    mode = modes[d >> 62];
    if (d >> 49 & 7) fail("gives a descriptor with a base offset, which is not known here.");
  }
  // Where element k of row r lies: rows in groups of eight; a row has 16 bytes without a swizzle, else the swizzle's width.
  uint32_t at(int r, int k) const {
    uint32_t groups = start + r / 8 * stride;
    if (mode == SWIZZLE_NONE) return groups + k / 8 * leading + r % 8 * 16 + k % 8 * 2;
    return swizzled(groups + r % 8 * (16 << mode) + k * 2, mode);
  }
  Span span(int rows) const {
    uint32_t low = ~0u, high = 0;
    for (int r = 0; r < rows; r++) for (int k = 0; k < 16; k += 8) { uint32_t a = at(r, k); low = a < low ? a : low; high = a + 16 > high ? a + 16 : high; }
    return {low, high};
  }
};

struct Product {
  uint64_t a, b; bool adds; int columns; float (*value)(const uint8_t*);
  std::vector<float*> sums; long group;  // -1: not committed
  Span reads_a, reads_b;
};
struct Sums { float held; int in_flight; uint32_t fenced; };
struct WarpgroupThread {
  std::vector<Product> products; size_t issued = 0, done = 0; long groups = 0; bool fenced = false;
  std::vector<std::pair<uint64_t, uint64_t>> asked;  // the descriptors of all products so far
  std::map<float*, Sums> sums;
};
inline std::vector<WarpgroupThread> warpgroup_threads;
static const float RUBBISH = -1234567;  // not a sum of any test; an addition changes it, while NaN would stay NaN

inline uint32_t bits(float f) { uint32_t u; memcpy(&u, &f, 4); return u; }
inline bool read_by_wgmma(const Span& span) {
  for (auto& thread : warpgroup_threads) for (auto& p : thread.products) if (p.reads_a.meets(span) || p.reads_b.meets(span)) return true;
  return false;
}
template <class T> static float element_at(const uint8_t* p) { T v; memcpy(&v, p, sizeof v); return (float)v; }

inline void wgmma_fence() {
  together();
  WarpgroupThread& me = warpgroup_threads[current];
  me.fenced = true;
  for (auto& s : me.sums) if (!s.second.in_flight) s.second.fenced = bits(*s.first);
}
inline void wgmma_commit() {
  together();
  WarpgroupThread& me = warpgroup_threads[current];
  for (auto& p : me.products) if (p.group < 0) p.group = me.groups;
  me.groups++;
}
template <class T, int N, size_t... I, class All> static void issue(All all, std::index_sequence<I...>) {
  static_assert(std::tuple_size<All>::value == N / 2 + 3, "half as many sums as columns, two descriptors, and scale-d");
  together();
  if ((current | 127) >= fibers.size()) fail("issues a wgmma in a warpgroup of fewer than 128 threads.");
  WarpgroupThread& me = warpgroup_threads[current];
  Product p{(uint64_t)std::get<N / 2>(all), (uint64_t)std::get<N / 2 + 1>(all), (bool)std::get<N / 2 + 2>(all), N, element_at<T>, {&std::get<I>(all)...}, -1, {}, {}};
  if (!me.fenced) fail("issues a wgmma, and no wgmma.fence comes before it.");
  p.reads_a = Descriptor(p.a).span(64); p.reads_b = Descriptor(p.b).span(N);
  for (const Span& s : {p.reads_a, p.reads_b}) {
    shared_at(s.from, s.to - s.from, "multiplies from");
    for (auto& copy : bulk_copies) if (copy.span.meets(s)) fail("multiplies from %u in shared memory, which a bulk copy still fills.", s.from - WINDOW);
  }
  for (float* sum : p.sums) {
    auto known = me.sums.find(sum);
    if (known == me.sums.end()) known = me.sums.insert({sum, {0, 0, bits(*sum)}}).first;
    Sums& s = known->second;
    if (!s.in_flight) {
      if (bits(*sum) != s.fenced) fail("wrote a sum after the last wgmma.fence, and multiplies.");
      s.held = *sum;
      *sum = RUBBISH;
    }
    s.in_flight++;
  }
  me.asked.push_back({p.a, p.b});
  me.issued++;
  me.products.push_back(p);
}
template <class T, int N, class... All> static void wgmma(All&&... all) {
  issue<T, N>(std::forward_as_tuple(all...), std::make_index_sequence<N / 2>());
}
inline void multiply(Product& p) {  // this thread's sums: rows r and r + 8, in each eight columns two neighbours
  WarpgroupThread& me = warpgroup_threads[current];
  const Descriptor a(p.a), b(p.b);
  int in_group = current & 127, row = in_group / 32 * 16 + in_group % 32 / 4, column = in_group % 4 * 2;
  float rows[2][16];
  for (int h = 0; h < 2; h++) for (int k = 0; k < 16; k++) rows[h][k] = p.value(shared_at(a.at(row + 8 * h, k), 2, "multiplies from"));
  for (int j = 0; j < p.columns / 8; j++) for (int v = 0; v < 2; v++) {
    float other[16];
    for (int k = 0; k < 16; k++) other[k] = p.value(shared_at(b.at(j * 8 + column + v, k), 2, "multiplies from"));
    for (int h = 0; h < 2; h++) {
      float* sum = p.sums[j * 4 + h * 2 + v];
      Sums& s = me.sums[sum];
      if (*sum != RUBBISH) fail("writes a sum while a wgmma that adds to it is under way.");
      float total = p.adds ? s.held : 0;
      for (int k = 0; k < 16; k++) total += rows[h][k] * other[k];
      s.held = total;
      if (--s.in_flight == 0) { *sum = total; s.fenced = bits(total); }
    }
  }
}
inline bool warpgroup_is_there(size_t count) {
  for (unsigned i = current & ~127u; i <= (current | 127u); i++) if (warpgroup_threads[i].issued < count) return false;
  return true;
}
inline void wgmma_wait(long newest) {
  together();
  WarpgroupThread& me = warpgroup_threads[current];
  while (!me.products.empty() && me.products[0].group >= 0 && me.products[0].group < me.groups - newest) {
    size_t number = me.done;
    unsigned who = current;
    wait_until([=] { unsigned was = current; current = who; bool there = warpgroup_is_there(number + 1); current = was; return there; }, "for its warpgroup");
    for (unsigned i = current & ~127u; i <= (current | 127u); i++) {
      if (warpgroup_threads[i].asked[number] != me.asked[number]) fail("and thread %u multiply by different descriptors in one wgmma.", i);
    }
    multiply(me.products[0]);
    me.products.erase(me.products.begin());
    me.done++;
  }
}
inline void hold_register(float&) {}  // wgmma.py: these two keep NVIDIA's compiler from moving code, and do nothing
inline int anew(int value) { return value; }

// --- a block ---------------------------------------------------------------------------------------

inline void hopper_starts(unsigned n) {
  memset(dynamic_shared, 0xff, sizeof dynamic_shared);
  mbarriers.clear(); bulk_copies.clear();
  warpgroup_threads.assign(n, {});
}
static const char* hopper_ends() {  // what is still in flight when all threads have ended
  if (!bulk_copies.empty()) return "a bulk copy";
  for (auto& thread : warpgroup_threads) if (!thread.products.empty()) return "a wgmma";
  return nullptr;
}
