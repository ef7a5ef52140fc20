// PTX's instructions for tensor cores in C++: `mma.sync` of m16n8k16, `ldmatrix`, and `cp.async` between plain addresses.
//
// The lanes hold the elements that the PTX ISA documents ("Matrix fragments for mma.m16n8k16 with floating point type",
// "ldmatrix"). Checked while a kernel runs, besides what cuda_on_cpu.hpp checks: all 32 lanes of the warp arrive at the
// same instruction; addresses are aligned and lie inside their array; each row that ldmatrix reads is watched for races.
// Sums are float32, one product added after the other; a GPU adds several at a time. Not supported: other shapes,
// integers, sparse matrices.
#pragma once

// An address in shared memory has 32 bits in PTX; here they are the number of the array (from 1) and the byte in it.
unsigned __cvta_generic_to_shared(const void* p);

void cp_async_bytes(unsigned to, const void* from, int bytes);
void cp_async_cg_bytes(unsigned to, const void* from, int bytes);
// TVM's older copies name the arrays, so each address must lie in its own.
template <int BYTES, class T, size_t N> static void cp_async(Shared<T, N>& to, int64_t at, const Argument<T>& from, int64_t start) {
  const int64_t items = BYTES / sizeof(T);
  if (start < 0 || start + items > from.size) outside(*from.memory, start, items);
  if (at < 0 || at + items > (int64_t)N) outside(to.memory, at, items);
  cp_async_bytes(__cvta_generic_to_shared(to.data + at), (T*)from + start, BYTES);
}

// r: the registers of this lane, one per matrix.
void load_matrices(uint32_t* const* r, unsigned matrices, bool transposed, unsigned address);
template <bool TRANSPOSED> static void ldmatrix(uint32_t& a, unsigned p) { uint32_t* r[] = {&a}; load_matrices(r, 1, TRANSPOSED, p); }
template <bool TRANSPOSED> static void ldmatrix(uint32_t& a, uint32_t& b, unsigned p) { uint32_t* r[] = {&a, &b}; load_matrices(r, 2, TRANSPOSED, p); }
template <bool TRANSPOSED> static void ldmatrix(uint32_t& a, uint32_t& b, uint32_t& c, uint32_t& d, unsigned p) { uint32_t* r[] = {&a, &b, &c, &d}; load_matrices(r, 4, TRANSPOSED, p); }

struct MmaOperands { uint32_t a[4], b[2]; float c[4], d[4]; float (*number)(const char*); };
void multiply_m16n8k16(MmaOperands& mine);
template <class T> static void mma_m16n8k16(float& d0, float& d1, float& d2, float& d3, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1, float c0, float c1, float c2, float c3) {
  MmaOperands mine{{a0, a1, a2, a3}, {b0, b1}, {c0, c1, c2, c3}, {}, number_at<T>};
  multiply_m16n8k16(mine);
  d0 = mine.d[0]; d1 = mine.d[1]; d2 = mine.d[2]; d3 = mine.d[3];
}
