// PTX's instructions for tensor cores in C++: `mma.sync` of m16n8k16, `ldmatrix`, and `cp.async` between plain addresses.
//
// The lanes hold the elements that the PTX ISA documents ("Matrix fragments for mma.m16n8k16 with floating point type",
// "ldmatrix"). Checked while a kernel runs, besides what cuda_on_cpu.hpp checks: all 32 lanes of the warp arrive at the
// same instruction; addresses are aligned and lie inside their array; each row that ldmatrix reads is watched for races.
// Sums are float32, one product added after the other; a GPU adds several at a time. Not supported: other shapes,
// integers, sparse matrices.
#pragma once

// An address in shared memory has 32 bits in PTX; here they are the number of the array (from 1) and the byte in it.
static const unsigned ARRAY_SHIFT = 24;
inline unsigned __cvta_generic_to_shared(const void* p) {
  const char* at = (const char*)p;
  auto& all = shared_arrays();
  for (size_t i = 0; i < all.size(); i++)
    if (at >= (char*)all[i].data && at < (char*)all[i].data + all[i].bytes) return (unsigned)((i + 1) << ARRAY_SHIFT | (at - (char*)all[i].data));
  fail("takes an address that lies outside shared memory for one in it.");
  return 0;
}

struct SharedPlace {  // `bytes` bytes in shared memory, inside an array and aligned
  SharedArray* of; size_t at, bytes;
  SharedPlace(unsigned address, size_t bytes, const char* user) : at(address & ((1u << ARRAY_SHIFT) - 1)), bytes(bytes) {
    size_t array = address >> ARRAY_SHIFT;
    if (array < 1 || array > shared_arrays().size()) fail("gives %s the address %u, which lies in no array of shared memory.", user, address);
    of = &shared_arrays()[array - 1];
    if (at + bytes > of->bytes) fail("gives %s bytes %zu to %zu of %s, which has %zu bytes.", user, at, at + bytes - 1, of->name, of->bytes);
    if (at % bytes) fail("gives %s byte %zu of %s, which is not a multiple of %zu.", user, at, of->name, bytes);
  }
  char* data() const { return (char*)of->data + at; }
  size_t item() const { return of->bytes / of->count; }
  void reading() const { for (size_t b = 0; b < bytes; b += item()) watch_read(of->shadow[(at + b) / item()], of->name, (at + b) / item()); }
  void writing(const char* values) const {
    for (size_t b = 0; b < bytes; b += item()) watch_write(of->shadow[(at + b) / item()], of->name, (at + b) / item(), memcmp(data() + b, values + b, item()));
    memcpy(data(), values, bytes);
  }
};

inline void cp_async_bytes(unsigned to, const void* from, int bytes) {
  if (bytes != 4 && bytes != 8 && bytes != 16) fail("copies %d bytes asynchronously; it can be 4, 8 or 16.", bytes);
  const char* data = (const char*)from;
  bool inside = false;
  for (auto& a : arguments()) inside |= data >= a.data && data + bytes <= a.data + a.bytes;
  if (!inside) fail("copies bytes asynchronously from outside the kernel's arrays.");
  if ((uintptr_t)from % bytes) fail("copies %d bytes asynchronously from an address that is not aligned.", bytes);
  SharedPlace place(to, bytes, "cp.async");
  char rubbish[16]; memset(rubbish, 0xff, sizeof rubbish);
  place.writing(rubbish);  // from now on the bytes may arrive at any time, so no thread may read the old ones
  copies[current].push_back([=] { place.writing(data); });
}
inline void cp_async_cg_bytes(unsigned to, const void* from, int bytes) {
  if (bytes != 16) fail("copies %d bytes by cp.async.cg, which copies 16.", bytes);
  cp_async_bytes(to, from, bytes);
}
// TVM's older copies name the arrays, so each address must lie in its own.
template <int BYTES, class T, size_t N> static void cp_async(Shared<T, N>& to, int64_t at, const Argument<T>& from, int64_t start) {
  const int64_t n = BYTES / sizeof(T);
  if (start < 0 || start + n > from.size) from.outside(start, n);
  if (at < 0 || at + n > (int64_t)N) fail("copies to %s[%ld] in shared memory, and %s has %zu elements.", to.name, (long)at, to.name, N);
  cp_async_bytes(__cvta_generic_to_shared(to.data + at), from.data + start, BYTES);
}

// --- one instruction for 32 lanes ----------------------------------------------------------------

struct Met { const char* instruction; unsigned epoch; };
inline std::vector<Met> met;  // by thread: the instruction of its warp at which it arrived last

inline void meet(const char* instruction) {  // instruction: a pointer that is the same for all lanes
  if (met.size() != fibers.size()) met.assign(fibers.size(), Met{nullptr, 0});
  if ((current | 31) >= fibers.size()) fail("executes %s in a warp of fewer than 32 threads.", instruction);
  unsigned epoch = fibers[current].warp_epoch;
  met[current] = {instruction, epoch};
  leave(IN_WARP);
  for (unsigned lane = current & ~31u; lane <= (current | 31u); lane++)
    if (met[lane].instruction != instruction || met[lane].epoch != epoch) fail("executes %s, and lane %u of its warp does not.", instruction, lane & 31);
}

struct Row { uint16_t x[8]; };
inline std::vector<Row> rows;  // by thread: the 16 bytes at the address it gave ldmatrix

// Lanes 8 i to 8 i + 7 give the addresses of the rows of matrix i. Of each matrix lane l gets two elements of row l / 4
// (transposed: of column l / 4), number 2 (l % 4) and the next.
template <int MATRICES, bool TRANSPOSED> static void ldmatrix_into(uint32_t* const* r, unsigned p) {
  static const char NAME[] = "ldmatrix";
  rows.resize(fibers.size());
  unsigned lane = current & 31, first = current & ~31u;
  if (lane < 8 * MATRICES) {
    SharedPlace place(p, 16, NAME);
    place.reading();
    memcpy(rows[current].x, place.data(), 16);
  }
  meet(NAME);
  for (unsigned i = 0; i < MATRICES; i++) {
    const Row* matrix = &rows[first + 8 * i];
    unsigned one = lane / 4, two = lane % 4 * 2;
    uint32_t low = TRANSPOSED ? matrix[two].x[one] : matrix[one].x[two];
    uint32_t high = TRANSPOSED ? matrix[two + 1].x[one] : matrix[one].x[two + 1];
    *r[i] = high << 16 | low;
  }
  leave(IN_WARP);  // no lane changes its row before all have read it
}
template <bool TRANSPOSED> static void ldmatrix(uint32_t& a, unsigned p) { uint32_t* r[] = {&a}; ldmatrix_into<1, TRANSPOSED>(r, p); }
template <bool TRANSPOSED> static void ldmatrix(uint32_t& a, uint32_t& b, unsigned p) { uint32_t* r[] = {&a, &b}; ldmatrix_into<2, TRANSPOSED>(r, p); }
template <bool TRANSPOSED> static void ldmatrix(uint32_t& a, uint32_t& b, uint32_t& c, uint32_t& d, unsigned p) { uint32_t* r[] = {&a, &b, &c, &d}; ldmatrix_into<4, TRANSPOSED>(r, p); }

template <class T> static void unpack(float* to, uint32_t two) {
  T halves[2]; memcpy(halves, &two, 4);
  to[0] = (float)halves[0]; to[1] = (float)halves[1];
}

// d (16, 8) = a (16, 16) @ b (16, 8) + c. Lane l holds, with g = l / 4 and t = l % 4: in register i of a, row g + 8 (i % 2),
// columns 2 t + 8 (i / 2) and the next; in register i of b, column g, rows 2 t + 8 i and the next; in numbers 0 and 1 of c
// and d, row g, columns 2 t and the next; in 2 and 3, the same columns of row g + 8.
template <class T> static void mma_m16n8k16(float& d0, float& d1, float& d2, float& d3, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1, float c0, float c1, float c2, float c3) {
  float a[8], b[4], sums[4] = {c0, c1, c2, c3};
  unpack<T>(a, a0); unpack<T>(a + 2, a1); unpack<T>(a + 4, a2); unpack<T>(a + 6, a3);
  unpack<T>(b, b0); unpack<T>(b + 2, b1);
  offered_a[current] = a; offered_b[current] = b;
  meet("mma.sync");
  unsigned first = current & ~31u, g = (current & 31) / 4, t = current % 4;
  for (unsigned o = 0; o < 4; o++)
    for (unsigned k = 0; k < 16; k++) {
      unsigned beside = k % 8 / 2, half = k / 8, column = 2 * t + o % 2;  // row g + 8 (o / 2) of a, and this column of b
      sums[o] += offered_a[first + 4 * g + beside][2 * (o / 2 + 2 * half) + k % 2] * offered_b[first + 4 * column + beside][2 * half + k % 2];
    }
  leave(IN_WARP);  // no lane changes its registers before all have read them
  d0 = sums[0]; d1 = sums[1]; d2 = sums[2]; d3 = sums[3];
}
