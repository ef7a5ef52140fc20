// Who touched an element of shared or global memory last, and whether a barrier orders that before the next access.
//
// Every element has a Shadow. It holds the last write, and the threads that have read the element since the last barrier.
// What orders two accesses: the same thread; a barrier of the block; __syncwarp between lanes that its mask names; an
// mbarrier that one thread arrives at and the other waits for. A shuffle, a tensor-core instruction and __activemask make
// lanes wait for each other, and order nothing in memory. Nothing orders two blocks of a grid.
//
// Of the warps that read an element since the last barrier, two are remembered, with all of their lanes. As long as only
// barriers order warps, a write that races with any reader races with one of these two. Where mbarriers order some warps
// and not others, a race may go unseen.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

static const uint16_t MANY = 0xffff;       // as a thread: several, by atomics
static const uint32_t IN_FLIGHT = ~0u;     // as an epoch: an asynchronous copy is on its way to the element

struct Access { uint32_t epoch = 0, time = 0; uint16_t thread = 0; bool atomic = false; };  // epoch 0: there was none
// Of lanes of one warp. stored: those that have not read the element, but written the value that was in it.
struct Reads { uint32_t epoch = 0, time = 0, lanes = 0; uint16_t warp = 0; uint32_t stored = 0; };
struct Shadow {
  Access write;
  Access earlier;  // a read of global memory by an earlier block
  Reads reads[2];  // since the last barrier, of different warps
};

struct Memory {  // an array in shared memory, or an argument of the kernel
  const char* name = nullptr;
  bool shared = false;
  char* data = nullptr;
  size_t bytes = 0, item = 1;
  Shadow* shadow = nullptr;  // one per item
};

std::vector<Memory*>& shared_arrays();
std::vector<Memory>& arguments();
void new_arguments(size_t count);  // this run has so many; then each of them:
Memory* new_argument(const char* name, void* data, size_t items, size_t item);
Memory* memory_at(const void* p);  // the array or argument that p points into, or null

inline unsigned current;              // the thread that runs
inline uint32_t epoch, block_start;   // barriers of blocks so far, in the whole grid; and when this block began
extern std::vector<uint32_t> times;   // by thread: how often it has published what it did, other than at a barrier

void slow_read(Memory& m, size_t i);
void record_read(Memory& m, size_t i, bool stored = false);
void watch_write(Memory& m, size_t i, bool changes);
void watch_atomic(Memory& m, size_t i);

inline void watch_read(Memory& m, size_t i) {
  Shadow& s = m.shadow[i];
  const Access& w = s.write;
  bool before_the_barrier = w.epoch - block_start < epoch - block_start;
  if (!before_the_barrier && !(w.epoch == epoch && w.thread == current) && (w.epoch || m.shared)) slow_read(m, i);
  for (Reads& r : s.reads) if (r.epoch == epoch && r.warp == current / 32 && r.time == times[current]) { r.lanes |= 1u << (current & 31); r.stored &= ~(1u << (current & 31)); return; }
  record_read(m, i);
}

// A read into fragments. Kernels load those of a step after the last one, which nobody wrote, and do not use them.
inline void watch_load(Memory& m, size_t i) {
  uint32_t written = m.shadow[i].write.epoch;
  if (written >= block_start) watch_read(m, i); else record_read(m, i);
}

void copy_starts(Memory& m, size_t i);   // an asynchronous copy of this thread to an element
void copy_arrives(Memory& m, size_t i);  // and when the thread has waited for it

// What a thread knows of another: everything up to this time. See publish and learn.
typedef std::vector<uint32_t> Clock;     // by thread
void threads_know_nothing(unsigned n);
void publish(Clock& to);                 // add all that this thread did and knows; later it does new things
void learn(const Clock& from);           // this thread has waited for those who published to `from`
void meet_in_memory(unsigned first, unsigned mask);  // __syncwarp
