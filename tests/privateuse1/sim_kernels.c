/* Kernels for the simulator's tests. */
#include <time.h>

#include "tefl_sim_kernel.h"

static void nap(long nanoseconds) {
  struct timespec duration = {0, nanoseconds};
  nanosleep(&duration, 0);
}

/* gate(flag): done when the host, or another kernel, has set *flag. */
static int32_t gate_block(const tefl_sim_block* block, void* const* parameters) {
  volatile int32_t* flag = *(volatile int32_t**)parameters[0];
  (void)block;
  while (!__atomic_load_n(flag, __ATOMIC_ACQUIRE)) nap(200000);
  return 0;
}

/* store(pointer, value): *pointer = value. */
static int32_t store_block(const tefl_sim_block* block, void* const* parameters) {
  (void)block;
  __atomic_store_n(*(int32_t**)parameters[0], *(int32_t*)parameters[1], __ATOMIC_RELEASE);
  return 0;
}

/* index(pointer): pointer[i] = i over the blocks, x fastest. */
static int32_t index_block(const tefl_sim_block* block, void* const* parameters) {
  uint32_t i = (block->index[2] * block->grid[1] + block->index[1]) * block->grid[0] + block->index[0];
  (*(int32_t**)parameters[0])[i] = (int32_t)i;
  return 0;
}

/* shared(pointer): *pointer = bytes of shared memory that could be written. */
static int32_t shared_block(const tefl_sim_block* block, void* const* parameters) {
  uint32_t i;
  for (i = 0; i < block->shared_bytes; i++) ((char*)block->shared)[i] = 1;
  **(int32_t**)parameters[0] = (int32_t)i;
  return 0;
}

/* fail(code): an error of the device. */
static int32_t fail_block(const tefl_sim_block* block, void* const* parameters) {
  (void)block;
  return *(int32_t*)parameters[0];
}

/* fail_on(pointer, code): the same, of the device that the pointer belongs to. */
static int32_t fail_on_block(const tefl_sim_block* block, void* const* parameters) {
  (void)block;
  return *(int32_t*)parameters[1];
}

/* nap_ms(milliseconds): takes that long. */
static int32_t nap_block(const tefl_sim_block* block, void* const* parameters) {
  (void)block;
  nap(*(int32_t*)parameters[0] * 1000000L);
  return 0;
}

static const uint32_t pointer_bytes[] = {sizeof(void*)};
static const uint32_t store_bytes[] = {sizeof(void*), sizeof(int32_t)};
static const uint32_t number_bytes[] = {sizeof(int32_t)};

const tefl_sim_kernel gate = {gate_block, 1, pointer_bytes};
const tefl_sim_kernel store = {store_block, 2, store_bytes};
const tefl_sim_kernel index_blocks = {index_block, 1, pointer_bytes};
const tefl_sim_kernel shared = {shared_block, 1, pointer_bytes};
const tefl_sim_kernel fail = {fail_block, 1, number_bytes};
const tefl_sim_kernel fail_on = {fail_on_block, 2, store_bytes};
const tefl_sim_kernel nap_ms = {nap_block, 1, number_bytes};
