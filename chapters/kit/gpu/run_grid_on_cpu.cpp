// Runs a grid for cuda_on_cpu.hpp: one block after another, and the fibers of a block until all have ended.
//
// It is the same for every kernel, so it is compiled once.
#include "cuda_on_cpu.hpp"

static const char* waits_for(const Fiber& f) {  // in words; and what another thread waits for, if it is something else
  static char text[120];
  const char* other = nullptr;
  for (auto& g : fibers) if (g.state == WAITING && strcmp(g.what, f.what)) other = g.what;
  snprintf(text, sizeof text, other ? "waits %s, another %s" : "waits %s", f.what, other);
  return text;
}
static bool release_waiting() {
  bool any = false;
  for (auto& f : fibers) if (f.state == WAITING && f.until()) { f.state = READY; any = true; }
  return any;
}

static bool release_warps(unsigned n) {
  bool any = false;
  for (unsigned first = 0; first < n; first += 32) {
    unsigned end = first + 32 < n ? first + 32 : n, waiting = 0, done = 0;
    for (unsigned i = first; i < end; i++) { waiting += fibers[i].state == IN_WARP; done += fibers[i].state == DONE; }
    if (!waiting || waiting + done != end - first) continue;
    any = true;
    for (unsigned i = first; i < end; i++) if (fibers[i].state == IN_WARP) { fibers[i].state = READY; fibers[i].warp_epoch++; }
  }
  return any;
}

static void run_block(unsigned n, int backwards) {
  const size_t STACK = 64 << 10;
  stacks.resize(n * STACK); fibers.resize(n); exchanged.assign(n, 0);
  offered_a.assign(n, nullptr); offered_b.assign(n, nullptr);
  copies.assign(n, {}); groups.assign(n, {});
  hopper_starts(n);
  for (auto& array : shared_arrays()) {
    memset(array.data, 0xff, array.bytes);  // not a number, in every floating-point type
    for (size_t i = 0; i < array.count; i++) array.shadow[i] = Shadow();
  }
  for (unsigned i = 0; i < n; i++) {
    Fiber& f = fibers[i];
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = &stacks[i * STACK]; f.context.uc_stack.ss_size = STACK; f.context.uc_link = nullptr;
    makecontext(&f.context, enter, 0);
    f.state = READY; f.block_epoch = f.warp_epoch = 0;
    f.id = {i % blockDim.x, i / blockDim.x % blockDim.y, i / (blockDim.x * blockDim.y)};
  }
  while (!problem[0]) {
    for (unsigned k = 0; k < n && !problem[0]; k++) {
      unsigned i = backwards ? n - 1 - k : k;
      if (fibers[i].state != READY) continue;
      current = i; threadIdx = fibers[i].id;
      swapcontext(&scheduler, &fibers[i].context);
    }
    if (problem[0]) return;
    bool moved = release_warps(n) | release_waiting();
    unsigned done = 0, waiting = 0, late = 0;
    for (unsigned i = 0; i < n; i++) {
      done += fibers[i].state == DONE; waiting += fibers[i].state == AT_BARRIER;
      if (fibers[i].state != AT_BARRIER && (fibers[i].state != DONE || fibers[late].state == AT_BARRIER)) late = i;
    }
    if (done == n) {
      if (hopper_ends()) snprintf(problem, sizeof problem, "Block (%u, %u, %u) has ended, and %s is still under way.", blockIdx.x, blockIdx.y, blockIdx.z, hopper_ends());
      return;
    }
    if (waiting == n) {
      for (unsigned i = 1; i < n; i++) if (fibers[i].barrier != fibers[0].barrier) {
        current = i; threadIdx = fibers[i].id;
        snprintf(problem, sizeof problem, "Threads of block (%u, %u, %u) wait at different barriers.", blockIdx.x, blockIdx.y, blockIdx.z);
        return;
      }
      for (auto& f : fibers) { f.state = READY; f.block_epoch++; f.warp_epoch++; }
      moved = true;
    }
    if (!moved && !one_copy_arrives(backwards)) {
      const Dim3& o = fibers[late].id;
      snprintf(problem, sizeof problem, "Block (%u, %u, %u) never ends: %u of %u threads wait at a barrier, and thread (%u, %u, %u) %s.",
               blockIdx.x, blockIdx.y, blockIdx.z, waiting, n, o.x, o.y, o.z,
               fibers[late].state == DONE ? "has ended" : fibers[late].state == WAITING ? waits_for(fibers[late]) : "waits for its warp");
      return;
    }
  }
}

const char* run_grid(const unsigned* grid, const unsigned* block, int backwards) {
  problem[0] = 0;
  gridDim = {grid[0], grid[1], grid[2]}; blockDim = {block[0], block[1], block[2]};
  uint64_t blocks = (uint64_t)grid[0] * grid[1] * grid[2];
  for (uint64_t k = 0; k < blocks && !problem[0]; k++) {
    uint64_t b = backwards ? blocks - 1 - k : k;
    blockIdx = {(unsigned)(b % grid[0]), (unsigned)(b / grid[0] % grid[1]), (unsigned)(b / grid[0] / grid[1])};
    run_block(block[0] * block[1] * block[2], backwards);
  }
  return problem;
}
