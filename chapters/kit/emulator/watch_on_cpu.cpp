// Watches every access: see watch_on_cpu.hpp. It is the same for every kernel, so it is compiled once.
#include "cuda_on_cpu.hpp"

std::vector<uint32_t> times;
static std::vector<Clock> known;  // by thread

std::vector<Memory*>& shared_arrays() { static std::vector<Memory*> all; return all; }
std::vector<Memory>& arguments() { static std::vector<Memory> all; return all; }
void new_arguments(size_t count) { arguments().clear(); arguments().reserve(count); }
Memory* new_argument(const char* name, void* data, size_t items, size_t item) {
  arguments().push_back({name, false, (char*)data, items * item, item});
  return &arguments().back();
}

static Access now() { return {epoch, times[current], (uint16_t)current, false}; }

void threads_know_nothing(unsigned n) {
  times.assign(n, 1);
  known.assign(n, Clock(n, 0));
}
void publish(Clock& to) {
  Clock& mine = known[current];
  to.resize(mine.size(), 0);
  for (size_t t = 0; t < mine.size(); t++) to[t] = max(to[t], mine[t]);
  to[current] = times[current]++;
}
void learn(const Clock& from) {
  Clock& mine = known[current];
  for (size_t t = 0; t < from.size(); t++) mine[t] = max(mine[t], from[t]);
}
void meet_in_memory(unsigned first, unsigned mask) {
  Clock all(times.size(), 0);
  unsigned was = current;
  for (unsigned lane = 0; lane < 32; lane++) if (mask >> lane & 1) { current = first + lane; publish(all); }
  for (unsigned lane = 0; lane < 32; lane++) if (mask >> lane & 1) { current = first + lane; learn(all); }
  current = was;
}

// Whether `a` is an access by another thread that no barrier orders before what this thread does now.
static bool unordered(const Memory& m, const Access& a) {
  if (!a.epoch) return false;
  if (a.epoch < block_start) return !m.shared;  // another block; shared memory begins anew with each block
  if (a.epoch < epoch || a.thread == current) return false;
  return a.thread == MANY || known[current][a.thread] < a.time;
}
// A reader among `r` that this thread has not waited for.
static bool unordered(const Memory& m, const Reads& r, Access& which) {
  for (unsigned lane = 0; r.epoch && lane < 32; lane++) if (r.lanes >> lane & 1) {
    which = {r.epoch, r.time, (uint16_t)(r.warp * 32 + lane), false};
    if (unordered(m, which)) return true;
  }
  return false;
}

static std::string element(const Memory& m, size_t i) {
  if (!m.name) return "byte " + std::to_string(i) + " of its dynamic shared memory";
  return std::string(m.name) + "[" + std::to_string(i) + "]" + (m.shared ? " in shared memory" : "");
}

static void race(const Memory& m, size_t i, const Access& other, const char* did, const char* other_did) {
  bool several = other.thread == MANY, other_block = other.epoch < block_start;
  std::string who = several ? "several threads" : thread_name(other.thread), verb = other_did;
  if (other_block) {
    unsigned long b = block_of(other.epoch);
    who += " of block (" + std::to_string(b % gridDim.x) + ", " + std::to_string(b / gridDim.x % gridDim.y) + ", " + std::to_string(b / gridDim.x / gridDim.y) + ")";
  }
  if (!several) verb += "s";
  std::string missing = !m.name ? "__syncthreads() or an mbarrier is missing" : !several && other.thread / 32 == current / 32
      ? "__syncthreads() or, within this warp, __syncwarp() is missing" : "__syncthreads() is missing";
  missing = other_block ? "two blocks may run in any order: let one block do both, or begin another kernel" : "no barrier separates them: " + missing;
  suspect_nothing();
  fail("%s %s, which %s %s, and %s.", did, element(m, i).c_str(), who.c_str(), verb.c_str(), missing.c_str());
}

static void in_flight(const Memory& m, size_t i, const char* did) {
  unsigned starter = m.shadow[i].write.thread;
  std::string what = element(m, i);
  if (starter == current) fail("%s %s, which its own asynchronous copy still fills: a wait for the copy is missing (cp.async.wait_group).", did, what.c_str());
  fail("%s %s, which an asynchronous copy of %s still fills: that thread must wait for it (cp.async.wait_group), and then a barrier must follow.", did, what.c_str(), thread_name(starter).c_str());
}

void slow_read(Memory& m, size_t i) {
  const Access& w = m.shadow[i].write;
  if (w.epoch == IN_FLIGHT) in_flight(m, i, "reads");
  // if another thread writes it later, that may be a race, and says more
  if (m.shared && w.epoch < block_start) suspect("reads %s before any thread of its block has written it.", element(m, i).c_str());
  if (unordered(m, w)) race(m, i, w, "reads", w.atomic ? "change" : "write");
}

void record_read(Memory& m, size_t i, bool stored) {
  Shadow& s = m.shadow[i];
  uint32_t own = 1u << (current & 31);
  Reads mine{epoch, times[current], own, (uint16_t)(current / 32), stored ? own : 0};
  Reads* slot = &s.reads[0];
  for (Reads& r : s.reads) if (r.epoch == epoch && r.warp == mine.warp) {
    Access which;
    if (r.lanes & ~r.stored & own) mine.stored = 0;  // this lane has read it too
    if (unordered(m, r, which)) { mine.lanes |= r.lanes; mine.stored |= r.stored & ~own; mine.time = min(mine.time, r.time); }
    r = mine;
    return;
  }
  if (slot->epoch == epoch) slot++;
  uint32_t readers = slot->lanes & ~slot->stored;
  if (!m.shared && slot->epoch && slot->epoch < block_start && readers) s.earlier = {slot->epoch, slot->time, (uint16_t)(slot->warp * 32 + __builtin_ctz(readers)), false};
  *slot = mine;
}

// same: the value does not change, so that it does not matter who else has stored it.
static void no_reader_is_overtaken(Memory& m, size_t i, const char* did, bool same = false) {
  Shadow& s = m.shadow[i];
  Access which;
  for (Reads r : s.reads) {
    if (same) r.lanes &= ~r.stored;
    if (unordered(m, r, which)) race(m, i, which, did, r.stored >> (which.thread & 31) & 1 ? "write" : "read");
  }
  if (unordered(m, s.earlier)) race(m, i, s.earlier, did, "read");
}

void watch_write(Memory& m, size_t i, bool changes) {
  Shadow& s = m.shadow[i];
  if (s.write.epoch == IN_FLIGHT) in_flight(m, i, "writes");
  bool late = unordered(m, s.write);
  if (late && (changes || s.write.atomic)) race(m, i, s.write, "writes", s.write.atomic ? "change" : "write");
  no_reader_is_overtaken(m, i, "writes", late);
  // two threads may write the same value; the second one then counts as a reader, and whoever changes it must wait for both
  if (late) record_read(m, i, true); else s.write = now();
}

void watch_atomic(Memory& m, size_t i) {
  Shadow& s = m.shadow[i];
  if (s.write.epoch == IN_FLIGHT) in_flight(m, i, "changes");
  bool late = unordered(m, s.write);
  if (late && !s.write.atomic) race(m, i, s.write, "atomically changes", "write");
  no_reader_is_overtaken(m, i, "atomically changes");
  if (!late) s.write = now();
  else if (s.write.epoch >= block_start) s.write.thread = MANY;  // of two blocks' changes the earlier block's is kept
  s.write.atomic = true;
}

void copy_starts(Memory& m, size_t i) {
  watch_write(m, i, true);
  m.shadow[i].write = {IN_FLIGHT, 0, (uint16_t)current, false};
}
void copy_arrives(Memory& m, size_t i) { m.shadow[i].write = now(); }

Memory* memory_at(const void* p) {
  auto holds = [p](const Memory& m) { return (const char*)p >= m.data && (const char*)p < m.data + m.bytes; };
  for (Memory* m : shared_arrays()) if (holds(*m)) return m;
  for (Memory& m : arguments()) if (holds(m)) return &m;
  return nullptr;
}
