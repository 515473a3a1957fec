/* tefl_sim_kernel.h: what a "device binary" of the simulator is.
 *
 * A binary is the bytes of a shared library for this machine, as `cc -shared -fPIC` writes it. A kernel is a
 * constant of type `tefl_sim_kernel`, exported under the kernel's name:
 *
 *     static int32_t scale_block(const tefl_sim_block* block, void* const* parameters) {
 *       float* x = *(float**)parameters[0];
 *       for (uint32_t i = 0; i < block->threads[0]; i++) x[block->index[0] * block->threads[0] + i] *= 2;
 *       return 0;
 *     }
 *     static const uint32_t scale_bytes[] = {sizeof(float*)};
 *     const tefl_sim_kernel scale = {scale_block, 1, scale_bytes};
 *
 * (In C++ the constant is declared `extern "C" const`.)
 */
#ifndef TEFL_SIM_KERNEL_H_
#define TEFL_SIM_KERNEL_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One block of a launch. Its threads do not exist: the function does the work of all of them. */
typedef struct tefl_sim_block {
  uint32_t grid[3];    /* blocks in the launch (x, y, z) */
  uint32_t threads[3]; /* threads in a block */
  uint32_t index[3];   /* this block, each below `grid` */
  void* shared;        /* `shared_bytes` of block memory, aligned to 64 bytes; NULL if there is none */
  uint32_t shared_bytes;
} tefl_sim_block;

/* A kernel. `run` is called once for each block, x fastest, one after another on the stream's thread;
 * parameters[i] points to a copy of the i-th parameter's value. It returns 0, or a code that makes the launch
 * an asynchronous error of the stream: later blocks are then left out. It must not throw or exit. */
typedef struct tefl_sim_kernel {
  int32_t (*run)(const tefl_sim_block* block, void* const* parameters);
  uint32_t parameter_count;
  const uint32_t* parameter_bytes; /* size of each parameter's value; NULL if there is none */
} tefl_sim_kernel;

#ifdef __cplusplus
}
#endif

#endif /* TEFL_SIM_KERNEL_H_ */
