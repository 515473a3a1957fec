// Enough of CUDA to run the kernels of csrc/kernels on the host, one block at a time: each thread of the
// block is a fiber. Fibers run in turn from one meeting point (a barrier or a shuffle) to the next, so that
// every thread has to come to the same meeting points in the same order; a kernel that does not is reported.
#pragma once

#include <math.h>
#include <setjmp.h>
#include <stdint.h>
#include <string.h>
#include <ucontext.h>

#include <deque>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static  // blocks run one after another

struct Index3 {
  unsigned x, y, z;
};
inline Index3 threadIdx, blockIdx, blockDim, gridDim;
inline std::vector<float> dynamic_shared;

namespace cuda_on_host {

// Made once and reused by every later block. After its first run a fiber is entered by longjmp: unlike
// swapcontext that makes no system call, and a block meets tens of thousands of times.
struct Fiber {
  ucontext_t context;
  std::vector<char> stack =
      std::vector<char>(64 * 1024 + 1088);  // no power of two: it would share cache sets
  jmp_buf place;
  bool started = false, done = false;
  unsigned meetings = 0;
};

inline std::deque<Fiber> fibers;  // never moved: contexts point into themselves
inline ucontext_t first_return;
inline jmp_buf scheduler;
inline size_t current;
inline float exchanged[2][1024];

inline void leave() {
  if (_setjmp(fibers[current].place) == 0) _longjmp(scheduler, 1);
}

inline void meet() {
  ++fibers[current].meetings;
  leave();
}

using Kernel = void (*)(int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t,
                        int64_t, int64_t, int64_t, int64_t, float, float);

struct Call {
  Kernel kernel;
  int64_t integers[13];
  float reals[2];
};
inline Call call;

// Pointers and integers travel apart from floats in the calling conventions of x86-64 and aarch64, and
// arguments that a function does not take are left alone: one type serves every kernel.
inline void fiber_main() {
  for (;;) {
    const int64_t* i = call.integers;
    call.kernel(i[0], i[1], i[2], i[3], i[4], i[5], i[6], i[7], i[8], i[9], i[10], i[11], i[12],
                call.reals[0], call.reals[1]);
    fibers[current].done = true;
    leave();
  }
}

inline void enter(Fiber& fiber) {
  if (_setjmp(scheduler) != 0) return;
  if (fiber.started) _longjmp(fiber.place, 1);
  fiber.started = true;
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack.data();
  fiber.context.uc_stack.ss_size = fiber.stack.size();
  makecontext(&fiber.context, fiber_main, 0);
  swapcontext(&first_return, &fiber.context);
}

inline bool run_block(unsigned threads) {
  while (fibers.size() < threads) fibers.emplace_back();
  for (size_t i = 0; i < threads; ++i) {
    fibers[i].done = false;
    fibers[i].meetings = 0;
  }
  for (;;) {
    unsigned done = 0;
    for (current = 0; current < threads; ++current) {
      threadIdx = {unsigned(current) % blockDim.x, unsigned(current) / blockDim.x, 0};
      enter(fibers[current]);
      done += fibers[current].done;
    }
    if (done == threads) return true;
    if (done != 0) {  // some ended where others still wait: those are given up
      fibers.clear();
      return false;
    }
  }
}

}  // namespace cuda_on_host

inline void __syncthreads() { cuda_on_host::meet(); }

inline float __shfl_xor_sync(unsigned, float value, int offset) {
  using namespace cuda_on_host;
  float* const values = exchanged[fibers[current].meetings % 2];
  values[current] = value;
  meet();
  return values[current ^ size_t(offset)];
}

inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }

// Runs the whole grid. 0: done; 1: threads of a block did not meet; 2: a shape the kernels do not know.
extern "C" int cuda_on_host_run(void* kernel, const unsigned* grid, const unsigned* block,
                                unsigned shared_bytes, const int64_t* integers, const float* reals) {
  using namespace cuda_on_host;
  const unsigned threads = block[0] * block[1];
  if (threads == 0 || threads > 1024 || threads % 32 != 0 || block[2] != 1) return 2;
  call.kernel = reinterpret_cast<Kernel>(kernel);
  memcpy(call.integers, integers, sizeof(call.integers));
  memcpy(call.reals, reals, sizeof(call.reals));
  blockDim = {block[0], block[1], block[2]};
  gridDim = {grid[0], grid[1], grid[2]};
  for (blockIdx.z = 0; blockIdx.z < grid[2]; ++blockIdx.z)
    for (blockIdx.y = 0; blockIdx.y < grid[1]; ++blockIdx.y)
      for (blockIdx.x = 0; blockIdx.x < grid[0]; ++blockIdx.x) {
        dynamic_shared.assign(shared_bytes / sizeof(float), NAN);
        if (!run_block(threads)) return 1;
      }
  return 0;
}
