// Hopper's instructions: see hopper_on_cpu.hpp. Compiled once, for every kernel.
#include "cuda_on_cpu.hpp"

#include <map>

static uint8_t* shared_at(uint32_t address, uint32_t bytes, const char* who) {
  if (address < WINDOW || address - WINDOW + bytes > dynamic_bytes) fail("%s shared memory at %u, and the block has %u bytes of it.", who, address - WINDOW, dynamic_bytes);
  return dynamic_shared + (address - WINDOW);
}

// --- mbarriers -----------------------------------------------------------------------------------

struct MBarrier {
  int expected, pending; int64_t bytes; unsigned phase;
  unsigned maker; uint32_t made;  // who made it, and in which epoch
  bool published;                 // to the copies, by a proxy fence of its maker
  Clock arriving, done;           // what those who arrived in this phase did, and those of the phases before
};
static std::map<uint32_t, MBarrier> mbarriers;

static MBarrier& mbarrier(uint32_t address) {
  auto found = mbarriers.find(address);
  if (found == mbarriers.end()) fail("uses an mbarrier at %u in shared memory, where none was made.", address - WINDOW);
  MBarrier& it = found->second;
  if (it.maker != current && it.made == epoch) fail("uses an mbarrier that thread %u makes, and no barrier of the block separates them: __syncthreads() is missing.", it.maker);
  return it;
}
static void settle(MBarrier& it) {
  if (it.pending || it.bytes) return;
  it.phase++;
  it.pending = it.expected;
  it.done = it.arriving;
}
void mbarrier_init(uint32_t address, uint32_t count) {
  shared_at(address, 8, "makes an mbarrier in");
  if (address % 8) fail("makes an mbarrier at %u, which is not a multiple of 8.", address - WINDOW);
  if (mbarriers.count(address)) fail("makes an mbarrier at %u, where thread %u has made one already.", address - WINDOW, mbarriers[address].maker);
  mbarriers[address] = {(int)count, (int)count, 0, 0, current, epoch, false, {}, {}};
}
void fence_proxy_async() { for (auto& it : mbarriers) if (it.second.maker == current) it.second.published = true; }
void mbarrier_arrive(uint32_t address, uint32_t count, bool predicate) {
  if (!predicate) return;
  MBarrier& it = mbarrier(address);
  it.pending -= count;
  if (it.pending < 0) fail("arrives at an mbarrier at %u, which has all %d arrivals of its phase %u already: the threads before did not wait for this phase, or too few are expected.", address - WINDOW, it.expected, it.phase);
  publish(it.arriving);
  settle(it);
}
void mbarrier_arrive_expect(uint32_t address, uint32_t bytes) {
  mbarrier(address).bytes += bytes;
  mbarrier_arrive(address, 1);
}
void mbarrier_wait(const void* p, int parity) {
  uint32_t address = shared_address(p);
  mbarrier(address);
  if (parity & ~1) fail("waits for the parity %d of the mbarrier at %u; a parity is 0 or 1.", parity, address - WINDOW);
  wait_until([=] { return (int)(mbarriers[address].phase & 1) != parity; }, [=] {
    const MBarrier& it = mbarriers[address];
    return "for an mbarrier (at " + std::to_string(address - WINDOW) + ", in phase " + std::to_string(it.phase) + ", which lacks "
        + std::to_string(it.pending) + " of " + std::to_string(it.expected) + " arrivals and " + std::to_string(it.bytes) + " bytes)";
  });
  learn(mbarriers[address].done);
}

// --- bulk copies -----------------------------------------------------------------------------------

struct BulkCopy { CUtensorMap map; std::array<int64_t, 5> at; uint32_t to, barrier; Span span; unsigned thread; };
static std::vector<BulkCopy> bulk_copies;  // asked for, not yet arrived
static bool read_by_wgmma(const Span& span);
static Memory pool;

void bulk_copy_at(uint32_t to, const void* map, std::array<int64_t, 5> at, unsigned rank, uint32_t barrier) {
  BulkCopy it;
  memcpy(&it.map, map, sizeof it.map);
  if (it.map.rank != rank) fail("copies by %u coordinates, and the tensor map has %u dimensions.", rank, it.map.rank);
  uint32_t bytes = it.map.item_bytes;
  for (uint32_t side : it.map.box) bytes *= side;
  shared_at(to, bytes, "copies to");
  if (to % (it.map.swizzle ? 1024 : 128)) fail("copies to %u in shared memory, where no tile of this swizzle can begin.", to - WINDOW);
  it.at = at; it.to = to; it.barrier = barrier; it.span = {to, to + bytes}; it.thread = current;
  if (!mbarrier(barrier).published) fail("hands an mbarrier to a bulk copy that does not know it: no proxy fence since it was made.");
  if (read_by_wgmma(it.span)) fail("copies to %u in shared memory, which a wgmma in flight still reads.", to - WINDOW);
  for (auto& other : bulk_copies) if (other.span.meets(it.span)) fail("copies to %u in shared memory, which another bulk copy still fills.", to - WINDOW);
  auto over = mbarriers.lower_bound(to < 8 ? 0 : to - 7);
  if (over != mbarriers.end() && over->first < to + bytes) fail("copies to %u in shared memory, over the mbarrier at %u.", to - WINDOW, over->first - WINDOW);
  if (pool_is_watched) for (uint32_t b = 0; b < bytes; b++) watch_write(pool, to - WINDOW + b, true);
  bulk_copies.push_back(it);
}
static void arrive(const BulkCopy& it) {
  const CUtensorMap& map = it.map;
  for (uint32_t to = it.span.from; to < it.span.to; to += map.item_bytes) {
    uint32_t left = (to - it.to) / map.item_bytes;  // the element's number in the box, the innermost dimension first
    int64_t from = 0;
    bool inside = true;
    for (int d = 0; d < 5; d++) {
      int64_t x = it.at[d] + left % map.box[d];
      left /= map.box[d];
      inside = inside && x >= 0 && x < (int64_t)map.size[d];
      from += x * (d ? map.pitch[d - 1] : map.item_bytes);
    }
    uint8_t* place = dynamic_shared + (swizzled(to, map.swizzle) - WINDOW);
    if (inside) memcpy(place, (uint8_t*)map.base + from, map.item_bytes);
    else memset(place, 0, map.item_bytes);
  }
  MBarrier& barrier = mbarriers[it.barrier];
  barrier.bytes -= it.span.to - it.span.from;
  if (pool_is_watched) {  // who waits for the mbarrier has waited for the copy: it counts as a write of the thread that asked
    current = it.thread;
    for (uint32_t b = it.span.from; b < it.span.to; b++) pool.shadow[b - WINDOW].write = {epoch, times[current], (uint16_t)current, false};
    publish(barrier.arriving);
  }
  settle(barrier);
}
bool one_copy_arrives(size_t which) {
  if (bulk_copies.empty()) return false;
  auto chosen = bulk_copies.begin() + which % bulk_copies.size();
  BulkCopy it = *chosen;
  bulk_copies.erase(chosen);
  arrive(it);
  return true;
}
size_t copies_in_flight() { return bulk_copies.size(); }

void pool_access(int64_t at, size_t bytes, bool writes, const void* value) {
  if (at < 0 || at + bytes > dynamic_bytes) fail("touches byte %ld of its dynamic shared memory, and the block has %u bytes of it.", (long)at, dynamic_bytes);
  uint32_t from = at + WINDOW;
  for (auto& copy : bulk_copies) if (copy.span.meets({from, from + (uint32_t)bytes})) fail("%s byte %ld of its dynamic shared memory, which a bulk copy still fills: a wait for the copy's mbarrier is missing.", writes ? "writes" : "reads", (long)at);
  auto over = mbarriers.lower_bound(from - 7);
  if (over != mbarriers.end() && over->first < from + bytes) fail("%s byte %ld of its dynamic shared memory, where an mbarrier is.", writes ? "writes" : "reads", (long)at);
  for (size_t b = 0; b < bytes; b++) {
    if (writes) watch_write(pool, at + b, dynamic_shared[at + b] != ((const uint8_t*)value)[b]);
    else watch_read(pool, at + b);
  }
}

// --- wgmma -----------------------------------------------------------------------------------------

Descriptor::Descriptor(uint64_t d) : start((d & 0x3fff) << 4), leading((d >> 16 & 0x3fff) << 4), stride((d >> 32 & 0x3fff) << 4) {
  static const int modes[] = {SWIZZLE_NONE, SWIZZLE_128, SWIZZLE_64, SWIZZLE_32};
  mode = modes[d >> 62];
  if (d >> 49 & 7) fail("gives a descriptor with a base offset, which is not known here.");
}
// Rows in groups of eight; a row has 16 bytes without a swizzle, else the swizzle's width.
uint32_t Descriptor::at(int r, int k) const {
  uint32_t groups = start + r / 8 * stride;
  if (mode == SWIZZLE_NONE) return groups + k / 8 * leading + r % 8 * 16 + k % 8 * 2;
  return swizzled(groups + r % 8 * (16 << mode) + k * 2, mode);
}
Span Descriptor::span(int rows) const {
  uint32_t low = ~0u, high = 0;
  for (int r = 0; r < rows; r++) for (int k = 0; k < 16; k += 8) { uint32_t a = at(r, k); low = min(low, a); high = max(high, a + 16); }
  return {low, high};
}

struct Product {
  uint64_t a, b; bool adds; int columns; float (*number)(const char*);
  std::vector<float*> sums; long group;  // -1: not committed
  Span reads_a, reads_b;
};
struct Sum { float held = 0; int in_flight = 0; uint32_t fenced = 0; bool known = false; };
struct WarpgroupThread {
  std::vector<Product> products; size_t issued = 0, done = 0; long groups = 0; bool fenced = false;
  std::vector<std::pair<uint64_t, uint64_t>> asked;  // the descriptors of all products so far
  std::vector<std::pair<float*, std::vector<Sum>>> sums;  // by array of registers
};
static std::vector<WarpgroupThread> warpgroup_threads;
static const float POISON = -1234567;  // not a sum of any test; an addition changes it, while NaN would stay NaN

static uint32_t bits(float f) { uint32_t u; memcpy(&u, &f, 4); return u; }
static bool read_by_wgmma(const Span& span) {
  for (auto& thread : warpgroup_threads) for (auto& p : thread.products) if (p.reads_a.meets(span) || p.reads_b.meets(span)) return true;
  return false;
}

static Sum& sum_of(WarpgroupThread& me, float* sum) {
  for (auto& array : me.sums) if (sum >= array.first && sum < array.first + array.second.size()) return array.second[sum - array.first];
  me.sums.push_back({sum, std::vector<Sum>(1)});
  return me.sums.back().second[0];
}
void remember_sums(float* array, size_t count) {
  WarpgroupThread& me = warpgroup_threads[current];
  for (auto& known : me.sums) if (known.first == array && known.second.size() == count) return;
  me.sums.insert(me.sums.begin(), {array, std::vector<Sum>(count)});
}
void fence_wgmma() {
  whole_warp("wgmma.fence");
  WarpgroupThread& me = warpgroup_threads[current];
  me.fenced = true;
  for (auto& array : me.sums) for (size_t i = 0; i < array.second.size(); i++) {
    Sum& s = array.second[i];
    if (!s.in_flight) { s.fenced = bits(array.first[i]); s.known = true; }
  }
}
void wgmma_commit() {
  whole_warp("wgmma.commit_group");
  WarpgroupThread& me = warpgroup_threads[current];
  for (auto& p : me.products) if (p.group < 0) p.group = me.groups;
  me.groups++;
}
void issue_wgmma(float** sums, int columns, uint64_t a, uint64_t b, bool adds, float (*number)(const char*)) {
  whole_warp("wgmma.mma_async");
  if ((current | 127) >= fibers.size()) fail("issues a wgmma in a warpgroup of fewer than 128 threads.");
  WarpgroupThread& me = warpgroup_threads[current];
  Product p{a, b, adds, columns, number, {sums, sums + columns / 2}, -1, {}, {}};
  if (!me.fenced) fail("issues a wgmma, and no wgmma.fence comes before it: without the fence, the product may read registers and shared memory too early.");
  p.reads_a = Descriptor(a).span(64); p.reads_b = Descriptor(b).span(columns);
  for (const Span& s : {p.reads_a, p.reads_b}) {
    shared_at(s.from, s.to - s.from, "multiplies from");
    for (auto& copy : bulk_copies) if (copy.span.meets(s)) fail("multiplies from %u in shared memory, which a bulk copy still fills.", s.from - WINDOW);
  }
  for (size_t i = 0; i < p.sums.size(); i++) {
    float* sum = p.sums[i];
    Sum& s = sum_of(me, sum);
    if (!s.in_flight) {
      if (s.known && bits(*sum) != s.fenced) fail("wrote a sum after the last wgmma.fence, number %zu of the product's: a wgmma.fence is missing between the write and the product.", i);
      s.known = true;
      s.held = *sum;
      *sum = POISON;
    }
    s.in_flight++;
  }
  me.asked.push_back({a, b});
  me.issued++;
  me.products.push_back(p);
}
static void multiply(Product& p) {  // this thread's sums: rows r and r + 8, in each eight columns two neighbours
  WarpgroupThread& me = warpgroup_threads[current];
  const Descriptor a(p.a), b(p.b);
  int in_group = current & 127, row = in_group / 32 * 16 + in_group % 32 / 4, column = in_group % 4 * 2;
  float rows[2][16];
  for (int h = 0; h < 2; h++) for (int k = 0; k < 16; k++) rows[h][k] = p.number((char*)shared_at(a.at(row + 8 * h, k), 2, "multiplies from"));
  for (int j = 0; j < p.columns / 8; j++) for (int v = 0; v < 2; v++) {
    float other[16];
    for (int k = 0; k < 16; k++) other[k] = p.number((char*)shared_at(b.at(j * 8 + column + v, k), 2, "multiplies from"));
    for (int h = 0; h < 2; h++) {
      float* sum = p.sums[j * 4 + h * 2 + v];
      Sum& s = sum_of(me, sum);
      if (*sum != POISON) fail("writes a sum while a wgmma that adds to it is in flight.");
      float total = p.adds ? s.held : 0;
      for (int k = 0; k < 16; k++) total += rows[h][k] * other[k];
      s.held = total;
      if (--s.in_flight == 0) { *sum = total; s.fenced = bits(total); }
    }
  }
}
static bool warpgroup_is_there(unsigned thread, size_t count) {
  for (unsigned i = thread & ~127u; i <= (thread | 127u); i++) if (warpgroup_threads[i].issued < count) return false;
  return true;
}
void wgmma_wait(long newest) {
  whole_warp("wgmma.wait_group");
  WarpgroupThread& me = warpgroup_threads[current];
  while (!me.products.empty() && me.products[0].group >= 0 && me.products[0].group < me.groups - newest) {
    size_t number = me.done;
    unsigned who = current;
    wait_until([=] { return warpgroup_is_there(who, number + 1); }, [] { return std::string("for its warpgroup"); });
    for (unsigned i = current & ~127u; i <= (current | 127u); i++) {
      if (warpgroup_threads[i].asked[number] != me.asked[number]) fail("and thread %u multiply by different descriptors in one wgmma.", i);
    }
    multiply(me.products[0]);
    me.products.erase(me.products.begin());
    me.done++;
  }
  whole_warp("wgmma.wait_group");  // the 32 lanes' parts of a product end together
}

// --- a block ---------------------------------------------------------------------------------------

void hopper_begins(unsigned n) {
  memset(dynamic_shared, 0xff, dynamic_bytes);
  mbarriers.clear(); bulk_copies.clear();
  warpgroup_threads.assign(n, {});
  if (!pool_is_watched) return;
  static std::vector<Shadow> shadow;
  shadow.assign(dynamic_bytes, Shadow());
  pool = {nullptr, true, (char*)dynamic_shared, dynamic_bytes, 1, shadow.data()};
}
const char* hopper_ends() {  // what is still in flight when all threads have ended
  if (!bulk_copies.empty()) return "a bulk copy";
  for (auto& thread : warpgroup_threads) if (!thread.products.empty()) return "a wgmma";
  return nullptr;
}
