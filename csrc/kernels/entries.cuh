// Names of the entry points. A kernel is instantiated for five pairs of element types and five layouts of a
// row:
//
//   types   bf16_bf16 bf16_f32 f16_f16 f16_f32 f32_f32    the input's and the weight's
//   layout  n1 n2 n4   16-byte vectors, 1, 2 or 4 a thread, kept in registers
//           loop       16-byte vectors, any number, each pass reads the row again
//           scalar     any number of columns at any alignment
//
// and is called tefl_<kernel>_<types>_<layout>, for example tefl_rmsnorm_fwd_bf16_f32_n2.
#pragma once

#include "vec.cuh"

#define TEFL_FOR_LAYOUTS(ENTRY, TYPES, T, W) \
  ENTRY(TYPES##_n1, T, W, kVector<T>, 1)     \
  ENTRY(TYPES##_n2, T, W, kVector<T>, 2)     \
  ENTRY(TYPES##_n4, T, W, kVector<T>, 4)     \
  ENTRY(TYPES##_loop, T, W, kVector<T>, 0)   \
  ENTRY(TYPES##_scalar, T, W, 1, 0)

#define TEFL_FOR_TYPES(ENTRY)                    \
  TEFL_FOR_LAYOUTS(ENTRY, bf16_bf16, bf16, bf16) \
  TEFL_FOR_LAYOUTS(ENTRY, bf16_f32, bf16, f32)   \
  TEFL_FOR_LAYOUTS(ENTRY, f16_f16, f16, f16)     \
  TEFL_FOR_LAYOUTS(ENTRY, f16_f32, f16, f32)     \
  TEFL_FOR_LAYOUTS(ENTRY, f32_f32, f32, f32)

/// The most threads a block may have; the launch side keeps to them. What a thread keeps decides: LayerNorm's
/// backward has two sums for each column it keeps, and with four vectors needs more than 512 threads leave
/// it.
#define TEFL_FORWARD_THREADS(KEPT) ((KEPT) == 2 ? 512 : 1024)
#define TEFL_RMSNORM_BACKWARD_THREADS(KEPT) 512
#define TEFL_LAYERNORM_BACKWARD_THREADS(KEPT) ((KEPT) == 4 ? 256 : 512)
