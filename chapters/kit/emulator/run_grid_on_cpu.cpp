// Runs a grid for cuda_on_cpu.hpp: one block after another, and the fibers of a block until all have ended.
//
// It is the same for every kernel, so it is compiled once.
#include "cuda_on_cpu.hpp"

#include <ucontext.h>

#include <algorithm>

void copies_begin(unsigned n);  // mma_on_cpu.cpp
void hopper_begins(unsigned n);  // hopper_on_cpu.cpp
const char* hopper_ends();
bool one_copy_arrives(size_t which);
size_t copies_in_flight();

static const size_t STACK = (64 << 10) + 17 * 64;  // no power of two: the tops of all stacks shall not share cache lines
std::vector<Fiber> fibers;
std::vector<State> states;
static std::vector<char> stacks;
static std::vector<std::pair<uint32_t, uint64_t>> blocks_run;  // (first epoch, number of the block)
static unsigned at_barrier, ended;                             // threads of this block
static uint64_t drawn;                                         // state of the random numbers; 0: a fixed order

Dim3 place_of(unsigned thread) { return {thread % blockDim.x, thread / blockDim.x % blockDim.y, thread / (blockDim.x * blockDim.y)}; }
unsigned long block_of(uint32_t epoch) {
  size_t i = blocks_run.size();
  while (i > 1 && blocks_run[i - 1].first > epoch) i--;
  return blocks_run[i - 1].second;
}
static uint64_t draw() {  // xorshift
  drawn ^= drawn << 13; drawn ^= drawn >> 7; drawn ^= drawn << 17;
  return drawn >> 11;
}

// --- what is said ----------------------------------------------------------------------------------

std::string thread_name(unsigned thread) {
  Dim3 o = place_of(thread);
  return "thread (" + std::to_string(o.x) + ", " + std::to_string(o.y) + ", " + std::to_string(o.z) + ")";
}
static std::string this_block() {
  return "block (" + std::to_string(blockIdx.x) + ", " + std::to_string(blockIdx.y) + ", " + std::to_string(blockIdx.z) + ")";
}
static std::string suspicion;
static void say(const std::string& text) {
  const std::string& first = suspicion.empty() ? text : suspicion;
  if (!problem[0]) snprintf(problem, sizeof problem, "In %s, %s", kernel_name, first.c_str());
}
static std::string of_this_thread(const char* format, va_list args) {
  char what[400];
  vsnprintf(what, sizeof what, format, args);
  return thread_name(current) + " of " + this_block() + " " + what;
}
void fail(const char* format, ...) {
  va_list args; va_start(args, format);
  say(of_this_thread(format, args));
  leave(DONE);  // never resumed
  abort();
}
void suspect(const char* format, ...) {
  va_list args; va_start(args, format);
  if (suspicion.empty()) suspicion = of_this_thread(format, args);
}
void suspect_nothing() { suspicion.clear(); }

// --- what threads wait for -------------------------------------------------------------------------

void wait_until(std::function<bool()> until, std::function<std::string()> what) {
  if (until()) return;
  fibers[current].until = until; fibers[current].what = what;
  leave(WAITING);
}

void sync_threads(long line) {
  fibers[current].barrier = line;
  if (++at_barrier < fibers.size()) return leave(AT_BARRIER);
  for (unsigned i = 0; i < fibers.size(); i++) if (fibers[i].barrier != line) {
    say("threads of " + this_block() + " wait at different barriers: " + thread_name(i) + " at another one than " + thread_name(current) + ".");
    leave(DONE);
  }
  at_barrier = 0;
  epoch++;
  std::fill(states.begin(), states.end(), READY);
  leave(READY);
}

static bool warp_is_there() {  // all lanes that the current thread's instruction needs; then it happens
  Fiber& me = fibers[current];
  unsigned first = current & ~31u, here = 0, last = std::min(first + 32, (unsigned)fibers.size());
  for (unsigned t = last; t-- > first;) {  // usually one of these still runs
    if (me.mask >> (t - first) & 1 && t != current && states[t] != IN_WARP && states[t] != DONE) return false;
  }
  for (unsigned lane = 0; lane < 32; lane++) if (me.mask >> lane & 1) {
    unsigned t = first + lane;
    if (t >= fibers.size() || states[t] == DONE) {
      if (me.whole && t >= fibers.size()) fail("executes %s in a warp of fewer than 32 threads.", me.call);
      if (me.whole) fail("executes %s, which needs all 32 lanes of its warp, and %s has ended.", me.call, thread_name(t).c_str());
      continue;
    }
    const Fiber& other = fibers[t];
    if (t != current && (other.call != me.call && (!other.call || strcmp(other.call, me.call)) || other.mask != me.mask)) return false;
    here |= 1u << lane;
  }
  if (me.together) me.together(first, here);
  for (unsigned lane = 0; lane < 32; lane++) if (here >> lane & 1) { fibers[first + lane].call = nullptr; states[first + lane] = READY; }
  return true;
}
void with_warp(const char* call, unsigned mask, bool whole, void (*together)(unsigned first, unsigned mask), void* operands) {
  Fiber& me = fibers[current];
  if (!(mask >> (current & 31) & 1)) fail("calls %s with the mask 0x%08x, which leaves out its own lane, %u.", call, mask, current & 31);
  me.call = call; me.mask = mask; me.whole = whole; me.together = together; me.operands = operands;
  leave(warp_is_there() ? READY : IN_WARP);
  while (me.call && !warp_is_there()) leave(IN_WARP);  // a lane has ended, which may be what this one waited for
}
void exchange(unsigned first, unsigned mask) {
  for (unsigned lane = 0; lane < 32; lane++) if (mask >> lane & 1) {
    Fiber& one = fibers[first + lane];
    if (one.source - first >= 32 || !(mask >> (one.source - first) & 1)) {
      current = first + lane;
      if (one.source >= fibers.size()) fail("reads lane %u by %s, and its warp has no such lane.", one.source & 31, one.call);
      const char* why = one.mask >> (one.source & 31) & 1 ? "which has ended" : "which its mask leaves out";
      fail("reads by %s from %s, %s.", one.call, thread_name(one.source).c_str(), why);
    }
    one.received = fibers[one.source].offered;
  }
}
unsigned __activemask() {  // the lanes that have come here when no lane of the warp can go on
  leave(IN_MASK);
  return fibers[current].mask;
}

// --- a block -----------------------------------------------------------------------------------------

static void enter() {
  for (;;) {  // one block after the other
    kernel_body();
    ended++;
    for (unsigned t = current & ~31u; t < fibers.size() && t <= (current | 31u); t++) if (states[t] == IN_WARP) states[t] = READY;
    leave(DONE);
  }
}

static void run_thread(unsigned i) {
  current = i;
  Fiber& f = fibers[i];
  threadIdx = f.id;
  if (_setjmp(scheduler)) return;
  if (f.begun) _longjmp(f.place, 1);
  f.begun = true;
  ucontext_t context;
  getcontext(&context);
  context.uc_stack.ss_sp = &stacks[i * STACK]; context.uc_stack.ss_size = STACK; context.uc_link = nullptr;
  makecontext(&context, enter, 0);
  setcontext(&context);
}

static bool release_waiting() {
  bool any = false;
  unsigned n = fibers.size();
  for (unsigned i = 0; i < n; i++) if (states[i] == WAITING && (current = i, fibers[i].until())) { states[i] = READY; any = true; }
  for (unsigned first = 0; first < n; first += 32) {
    unsigned mask = 0, end = std::min(first + 32, n);
    bool busy = false;
    for (unsigned i = first; i < end; i++) { busy |= states[i] == READY; mask |= (unsigned)(states[i] == IN_MASK) << (i - first); }
    if (busy || !mask) continue;
    for (unsigned i = first; i < end; i++) if (states[i] == IN_MASK) { fibers[i].mask = mask; states[i] = READY; }
    any = true;
  }
  return any;
}

static std::string describe_wait(unsigned thread) {  // what a thread that does not go on is doing
  const Fiber& f = fibers[thread];
  if (states[thread] == DONE) return thread_name(thread) + " has ended";
  if (states[thread] == AT_BARRIER) return thread_name(thread) + " waits at a barrier";
  if (states[thread] == WAITING) {
    std::string mine = f.what(), text = thread_name(thread) + " waits " + mine;
    for (unsigned i = 0; i < fibers.size(); i++) if (states[i] == WAITING && fibers[i].what() != mine) return text + ", " + thread_name(i) + " " + fibers[i].what();
    return text;
  }
  for (unsigned lane = 0; lane < 32; lane++) {
    unsigned t = (thread & ~31u) + lane;
    if (!(f.mask >> lane & 1) || t >= fibers.size() || t == thread || states[t] == DONE) continue;
    const Fiber& other = fibers[t];
    if (states[t] == IN_WARP && !strcmp(other.call, f.call) && other.mask == f.mask) continue;
    std::string text = thread_name(thread) + " waits in " + f.call + " for " + thread_name(t) + " of its warp, which ";
    if (states[t] == AT_BARRIER) return text + "waits at a barrier";
    if (states[t] == WAITING) return text + "waits " + other.what();
    if (strcmp(other.call, f.call)) return text + "waits in " + other.call;
    char masks[60]; snprintf(masks, sizeof masks, "has the mask 0x%08x and not 0x%08x", other.mask, f.mask);
    return text + masks;
  }
  return thread_name(thread) + " waits for its warp";
}

static void stuck() {
  unsigned n = fibers.size(), who = n;
  for (State state : {IN_WARP, WAITING, DONE}) for (unsigned i = 0; i < n && who == n; i++) if (states[i] == state) who = i;
  say(this_block() + " never ends: " + std::to_string(at_barrier) + " of " + std::to_string(n) + " threads wait at a barrier, and " + describe_wait(who % n) + ".");
}

static void new_block() {
  unsigned n = fibers.size();
  block_start = ++epoch;
  blocks_run.push_back({epoch, (uint64_t)blockIdx.x + (uint64_t)gridDim.x * (blockIdx.y + (uint64_t)gridDim.y * blockIdx.z)});
  at_barrier = ended = 0;
  std::fill(states.begin(), states.end(), READY);
  copies_begin(n);
  hopper_begins(n);
  for (Memory* m : shared_arrays()) memset(m->data, 0xff, m->bytes);  // not a number, in every floating-point type
}

// Puts the threads in the order in which they go next. A random order lets half of the warps wait, so that others get ahead.
static void shuffle(std::vector<unsigned>& order, unsigned n) {
  uint64_t some = draw();
  order.clear();
  for (unsigned i = 0; i < n; i++) if (n <= 32 || some >> (i / 32 & 31) & 1) order.push_back(i);
  for (size_t k = order.size(); k > 1; k--) std::swap(order[k - 1], order[draw() % k]);
}

static void run_block(std::vector<unsigned>& order) {
  unsigned n = fibers.size();
  new_block();
  for (;;) {
    if (drawn) shuffle(order, n);
    bool moved = false;
    for (unsigned i : order) if (states[i] == READY) {
      run_thread(i);
      if (problem[0]) return;
      moved = true;
    }
    if (ended == n) {
      if (!suspicion.empty()) say(suspicion);
      else if (hopper_ends()) say(this_block() + " has ended, and " + hopper_ends() + " is still in flight.");
      return;
    }
    moved |= release_waiting();
    if (drawn) {
      if (copies_in_flight() && draw() % 4 == 0) moved |= one_copy_arrives(draw());
      for (State state : states) moved |= state == READY;
    }
    if (!moved && !one_copy_arrives(drawn ? draw() : order[0] ? copies_in_flight() - 1 : 0)) return stuck();
  }
}

const char* run_grid(const unsigned* grid, const unsigned* block, int order) {
  problem[0] = 0;
  suspicion.clear();
  gridDim = {grid[0], grid[1], grid[2]}; blockDim = {block[0], block[1], block[2]};
  unsigned n = block[0] * block[1] * block[2];
  drawn = order > 0 ? order * 0x9e3779b97f4a7c15ull : 0;
  epoch = 0;
  blocks_run.clear();
  stacks.resize(n * STACK); fibers.assign(n, Fiber()); states.assign(n, READY);
  for (unsigned i = 0; i < n; i++) fibers[i].id = place_of(i);
  threads_know_nothing(n);
  std::vector<void*> given;
  for (Memory* m : shared_arrays()) std::fill(m->shadow, m->shadow + m->bytes / m->item, Shadow());
  for (Memory& m : arguments()) {
    for (Memory& other : arguments()) if (&other < &m && other.data == m.data && other.item == m.item) m.shadow = other.shadow;
    if (!m.shadow) { given.push_back(calloc(m.bytes / m.item + 1, sizeof(Shadow))); m.shadow = (Shadow*)given.back(); }
  }
  std::vector<unsigned> threads(n);
  for (unsigned i = 0; i < n; i++) threads[i] = order < 0 ? n - 1 - i : i;
  uint64_t blocks = (uint64_t)grid[0] * grid[1] * grid[2];
  std::vector<uint64_t> numbers(blocks);
  for (uint64_t k = 0; k < blocks; k++) numbers[k] = order < 0 ? blocks - 1 - k : k;
  if (drawn) for (uint64_t k = blocks; k > 1; k--) std::swap(numbers[k - 1], numbers[draw() % k]);
  for (uint64_t b : numbers) {
    blockIdx = {(unsigned)(b % grid[0]), (unsigned)(b / grid[0] % grid[1]), (unsigned)(b / grid[0] / grid[1])};
    run_block(threads);
    if (problem[0]) break;
  }
  for (void* one : given) free(one);
  return problem;
}

// --- arrays ------------------------------------------------------------------------------------------

void new_shared_array(Memory& m) {
  m.shadow = new Shadow[m.bytes / m.item];
  memset(m.data, 0xff, m.bytes);
  shared_arrays().push_back(&m);
}
void outside(const Memory& m, int64_t at, int64_t items) {
  size_t size = m.bytes / m.item;
  const char* where = m.shared ? " in shared memory" : "";
  if (items == 1) fail("touches %s[%ld]%s, and %s has %zu elements.", m.name, (long)at, where, m.name, size);
  fail("touches %s[%ld] to [%ld]%s, and %s has %zu elements.", m.name, (long)at, (long)(at + items - 1), where, m.name, size);
}
void not_aligned(const Memory& m, int64_t at, size_t bytes) {
  fail("reads or writes %s[%ld] %zu bytes wide, which is not aligned.", m.name, (long)at, bytes);
}
