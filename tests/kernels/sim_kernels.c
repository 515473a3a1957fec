/* Kernels for the simulated device, of the form that tefl_sim_kernel.h describes. */
#include <stddef.h>
#include <time.h>

#include "tefl_sim_kernel.h"

/* out[i] = (x ? x[i] : 0) * scale + i32 + i64 + f64, for the block's part of the elements. */
static int32_t run_mix(const tefl_sim_block* block, void* const* parameters) {
  float* out = *(float**)parameters[0];
  const float* x = *(const float**)parameters[1];
  const int32_t i32 = *(const int32_t*)parameters[2];
  const int64_t i64 = *(const int64_t*)parameters[3];
  const float scale = *(const float*)parameters[4];
  const double f64 = *(const double*)parameters[5];
  for (uint32_t t = 0; t < block->threads[0]; t++) {
    const uint32_t i = block->index[0] * block->threads[0] + t;
    out[i] = (float)((x ? x[i] : 0.0f) * scale + (float)i32 + (double)i64 + f64);
  }
  return 0;
}
static const uint32_t mix_bytes[] = {8, 8, 4, 8, 4, 8};
const tefl_sim_kernel mix = {run_mix, 6, mix_bytes};

/* out = grid, threads, shared_bytes; adds 100 to out[7] for a null second parameter. */
static int32_t run_shape(const tefl_sim_block* block, void* const* parameters) {
  int64_t* out = *(int64_t**)parameters[0];
  for (int i = 0; i < 3; i++) {
    out[i] = block->grid[i];
    out[3 + i] = block->threads[i];
  }
  out[6] = block->shared_bytes;
  out[7] += *(void**)parameters[1] == NULL ? 100 : 1;
  return 0;
}
static const uint32_t shape_bytes[] = {8, 8};
const tefl_sim_kernel shape = {run_shape, 2, shape_bytes};

/* Waits until the int32 at an address of host memory is not 0, then adds 1 to out[0]. */
static int32_t run_wait(const tefl_sim_block* block, void* const* parameters) {
  const int32_t* flag = (const int32_t*)(intptr_t)*(const int64_t*)parameters[1];
  const struct timespec pause = {0, 1000000L};
  (void)block;
  while (__atomic_load_n(flag, __ATOMIC_ACQUIRE) == 0) nanosleep(&pause, NULL);
  **(float**)parameters[0] += 1;
  return 0;
}
static const uint32_t wait_bytes[] = {8, 8};
const tefl_sim_kernel wait_for = {run_wait, 2, wait_bytes};

static int32_t run_fail(const tefl_sim_block* block, void* const* parameters) {
  (void)block;
  (void)parameters;
  return 7;
}
static const uint32_t fail_bytes[] = {8};
const tefl_sim_kernel fail = {run_fail, 1, fail_bytes};

/* out[i] = a[i] + b[i] for i < n, by any number of blocks: each does its share. */
static int32_t run_add(const tefl_sim_block* block, void* const* parameters) {
  float* out = *(float**)parameters[0];
  const float* a = *(const float**)parameters[1];
  const float* b = *(const float**)parameters[2];
  const int64_t n = *(const int64_t*)parameters[3];
  for (int64_t i = block->index[0]; i < n; i += block->grid[0]) out[i] = a[i] + b[i];
  return 0;
}
static const uint32_t add_bytes[] = {8, 8, 8, 8};
const tefl_sim_kernel add = {run_add, 4, add_bytes};
