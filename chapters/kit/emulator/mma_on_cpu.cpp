// Tensor cores and asynchronous copies: fragments of wmma, mma.sync, ldmatrix, cp.async. Compiled once, for every kernel.
#include "cuda_on_cpu.hpp"

// --- wmma ----------------------------------------------------------------------------------------

// Element e of the tile, counted along its rows, is x[s] of lane l where (8 l + s) * 37 = e modulo 256.
static int element(int s) { return ((current & 31) * 8 + s) * 37 & 255; }
static int64_t offset(int e, const Tile& t) { return (t.rows ? (e >> 4) * t.ld + (e & 15) : (e & 15) * t.ld + (e >> 4)) * t.item; }

static void one_tile(unsigned first, unsigned) {  // the lanes must agree on it
  const Tile& one = *(const Tile*)fibers[first].operands;
  for (unsigned lane = 1; lane < 32; lane++) {
    const Tile& other = *(const Tile*)fibers[first + lane].operands;
    if (other.at != one.at || other.ld != one.ld) fail("and other lanes of its warp give %s different tiles.", fibers[first].call);
  }
}
// The memory that an element lies in, and its number there.
static Memory& find_element(const char* p, size_t& i, const char* does) {
  Memory* m = memory_at(p);
  if (!m) fail("%s a tile that reaches outside the kernel's arrays.", does);
  i = (p - m->data) / m->item;
  return *m;
}
void load_tile(float* x, const Tile& tile) {
  with_warp("load_matrix_sync", ~0u, true, one_tile, (void*)&tile);
  for (int s = 0; s < 8; s++) {
    const char* p = tile.at + offset(element(s), tile);
    size_t i;
    Memory& m = find_element(p, i, "loads");
    watch_read(m, i);
    x[s] = tile.number(p);
  }
}
void store_tile(const float* x, const Tile& tile, void (*put)(char*, float)) {
  with_warp("store_matrix_sync", ~0u, true, one_tile, (void*)&tile);
  for (int s = 0; s < 8; s++) {
    char* p = (char*)tile.at + offset(element(s), tile);
    char value[8];
    put(value, x[s]);
    size_t i;
    Memory& m = find_element(p, i, "stores");
    watch_write(m, i, memcmp(p, value, tile.item));
    memcpy(p, value, tile.item);
  }
}

struct Fragments { float* d; const float *a, *b, *c; };
static const Fragments& fragments(unsigned thread) { return *(const Fragments*)fibers[thread].operands; }

static void multiply_fragments(unsigned first, unsigned) {
  float a[256], b[256];
  for (unsigned p = 0; p < 256; p++) {
    a[p * 37 & 255] = fragments(first + p / 8).a[p & 7];
    b[p * 37 & 255] = fragments(first + p / 8).b[p & 7];
  }
  for (unsigned p = 0; p < 256; p++) {
    const Fragments& lane = fragments(first + p / 8);
    int e = p * 37 & 255;
    float sum = lane.c[p & 7];
    for (int k = 0; k < 16; k++) sum += a[(e & 240) + k] * b[k * 16 + (e & 15)];
    lane.d[p & 7] = sum;  // no other lane reads it, and this one has read its own
  }
}
void multiply_tiles(float* d, const float* a, const float* b, const float* c) {
  Fragments mine{d, a, b, c};
  with_warp("mma_sync", ~0u, true, multiply_fragments, &mine);
}

// --- addresses of shared memory --------------------------------------------------------------------

static const unsigned ARRAY_SHIFT = 24;
unsigned __cvta_generic_to_shared(const void* p) {
  const char* at = (const char*)p;
  auto& all = shared_arrays();
  for (size_t i = 0; i < all.size(); i++)
    if (at >= all[i]->data && at < all[i]->data + all[i]->bytes) return (unsigned)((i + 1) << ARRAY_SHIFT | (at - all[i]->data));
  fail("takes an address that lies outside shared memory for one in it.");
}

struct SharedPlace {  // `bytes` bytes in shared memory, inside an array and aligned
  Memory* of; size_t at, bytes;
  SharedPlace(unsigned address, size_t bytes, const char* user) : at(address & ((1u << ARRAY_SHIFT) - 1)), bytes(bytes) {
    size_t array = address >> ARRAY_SHIFT;
    if (array < 1 || array > shared_arrays().size()) fail("gives %s the address %u, which lies in no array of shared memory.", user, address);
    of = shared_arrays()[array - 1];
    if (at + bytes > of->bytes) fail("gives %s bytes %zu to %zu of %s, which has %zu bytes.", user, at, at + bytes - 1, of->name, of->bytes);
    if (at % bytes) fail("gives %s byte %zu of %s, which is not a multiple of %zu.", user, at, of->name, bytes);
  }
  char* data() const { return of->data + at; }
  void each(void (*what)(Memory&, size_t)) const { for (size_t i = at / of->item; i * of->item < at + bytes; i++) what(*of, i); }
};

// --- cp.async --------------------------------------------------------------------------------------

struct Copy { SharedPlace to; const char* from; long group; };  // group -1: not committed
static std::vector<std::vector<Copy>> copies;  // by thread: started, not yet waited for
static std::vector<long> groups;               // by thread: how many it has committed

static void read_source(const char* from, int bytes) {
  Memory* m = memory_at(from);
  if (!m || m->shared || from + bytes > m->data + m->bytes) fail("copies bytes asynchronously from outside the kernel's arrays.");
  for (size_t i = (from - m->data) / m->item; i * m->item < size_t(from - m->data) + bytes; i++) watch_read(*m, i);
}
void cp_async_bytes(unsigned to, const void* from, int bytes) {
  if (bytes != 4 && bytes != 8 && bytes != 16) fail("copies %d bytes asynchronously; it can be 4, 8 or 16.", bytes);
  read_source((const char*)from, bytes);
  if ((uintptr_t)from % bytes) fail("copies %d bytes asynchronously from an address that is not aligned.", bytes);
  SharedPlace place(to, bytes, "cp.async");
  place.each(copy_starts);
  memset(place.data(), 0xff, bytes);  // from now on the bytes may arrive at any time, so no thread may read the old ones
  copies[current].push_back({place, (const char*)from, -1});
}
void cp_async_cg_bytes(unsigned to, const void* from, int bytes) {
  if (bytes != 16) fail("copies %d bytes by cp.async.cg, which copies 16.", bytes);
  cp_async_bytes(to, from, bytes);
}
void cp_async_commit() {
  for (Copy& copy : copies[current]) if (copy.group < 0) copy.group = groups[current];
  groups[current]++;
}
void cp_async_wait(size_t newest) {
  auto& mine = copies[current];
  size_t arrived = 0;
  for (; arrived < mine.size() && mine[arrived].group >= 0 && mine[arrived].group + (long)newest < groups[current]; arrived++) {
    Copy& copy = mine[arrived];
    read_source(copy.from, copy.to.bytes);
    memcpy(copy.to.data(), copy.from, copy.to.bytes);
    copy.to.each(copy_arrives);
  }
  mine.erase(mine.begin(), mine.begin() + arrived);
}
void copies_begin(unsigned n) {
  copies.resize(n);
  for (auto& of_thread : copies) {
    for (Copy& copy : of_thread) copy.to.each([](Memory& m, size_t i) { m.shadow[i].write = Access(); });  // of the last block
    of_thread.clear();
  }
  groups.assign(n, 0);
}

// --- ldmatrix ----------------------------------------------------------------------------------------

struct Rows { uint16_t x[8]; uint32_t* const* r; unsigned matrices; bool transposed; };

// Lanes 8 i to 8 i + 7 give the addresses of the rows of matrix i. Of each matrix lane l gets two elements of row l / 4
// (transposed: of column l / 4), number 2 (l % 4) and the next.
static void hand_out_rows(unsigned first, unsigned) {
  const Rows* all[32];
  for (unsigned lane = 0; lane < 32; lane++) all[lane] = (const Rows*)fibers[first + lane].operands;
  for (unsigned lane = 0; lane < 32; lane++) for (unsigned i = 0; i < all[lane]->matrices; i++) {
    const Rows* const* matrix = all + 8 * i;
    unsigned one = lane / 4, two = lane % 4 * 2;
    bool transposed = all[lane]->transposed;
    uint32_t low = transposed ? matrix[two]->x[one] : matrix[one]->x[two];
    uint32_t high = transposed ? matrix[two + 1]->x[one] : matrix[one]->x[two + 1];
    *all[lane]->r[i] = high << 16 | low;
  }
}
void load_matrices(uint32_t* const* r, unsigned matrices, bool transposed, unsigned address) {
  Rows mine{{}, r, matrices, transposed};
  if ((current & 31) < 8 * matrices) {
    SharedPlace place(address, 16, "ldmatrix");
    place.each(watch_load);
    memcpy(mine.x, place.data(), 16);
  }
  with_warp("ldmatrix", ~0u, true, hand_out_rows, &mine);
}

// --- mma.sync ----------------------------------------------------------------------------------------

// d (16, 8) = a (16, 16) @ b (16, 8) + c. Lane l holds, with g = l / 4 and t = l % 4: in register i of a, row g + 8 (i % 2),
// columns 2 t + 8 (i / 2) and the next; in register i of b, column g, rows 2 t + 8 i and the next; in numbers 0 and 1 of c
// and d, row g, columns 2 t and the next; in 2 and 3, the same columns of row g + 8.
static void multiply_16_8_16(unsigned first, unsigned) {
  float a[16][16], b[8][16];
  for (unsigned lane = 0; lane < 32; lane++) {
    const MmaOperands& it = *(const MmaOperands*)fibers[first + lane].operands;
    unsigned g = lane / 4, t = lane % 4;
    for (unsigned i = 0; i < 4; i++) for (unsigned e = 0; e < 2; e++) a[g + 8 * (i % 2)][2 * t + 8 * (i / 2) + e] = it.number((const char*)&it.a[i] + 2 * e);
    for (unsigned i = 0; i < 2; i++) for (unsigned e = 0; e < 2; e++) b[g][2 * t + 8 * i + e] = it.number((const char*)&it.b[i] + 2 * e);
  }
  for (unsigned lane = 0; lane < 32; lane++) {
    MmaOperands& it = *(MmaOperands*)fibers[first + lane].operands;
    for (unsigned o = 0; o < 4; o++) {
      const float *row = a[lane / 4 + 8 * (o / 2)], *column = b[lane % 4 * 2 + o % 2];
      float sum = it.c[o];
      for (unsigned k = 0; k < 16; k++) sum += row[k] * column[k];
      it.d[o] = sum;
    }
  }
}
void multiply_m16n8k16(MmaOperands& mine) { with_warp("mma.sync", ~0u, true, multiply_16_8_16, &mine); }
