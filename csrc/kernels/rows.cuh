// How a block is laid over rows: blockDim.x threads work on one row, blockDim.y rows share the block.
//
// blockDim.x is a power of two up to 32 (then a row's threads lie within one warp), or a multiple of 32 with
// blockDim.y == 1. The block as a whole is a multiple of 32, so every warp is full.
#pragma once

#include <stdint.h>

namespace tefl {

constexpr int kWarp = 32;
constexpr int kMaxWarps = 32;

/// Sums over the threads of a row; every thread of the row gets the sums. All threads of the block take part.
template <int kValues>
class RowSum {
 public:
  __device__ void operator()(float (&value)[kValues]) {
    const int lanes = blockDim.x < kWarp ? blockDim.x : kWarp;
    within_warp(value, lanes);
    if (blockDim.x > kWarp) across_warps(value);
  }

 private:
  __device__ static void within_warp(float (&value)[kValues], int lanes) {
    for (int offset = lanes / 2; offset > 0; offset /= 2)
#pragma unroll
      for (int k = 0; k < kValues; ++k) value[k] += __shfl_xor_sync(0xffffffffu, value[k], offset);
  }

  // The scratch alternates between two halves: the barrier of the next sum then separates this sum's reads
  // from the sum after next's writes, and one barrier a sum is enough.
  __device__ void across_warps(float (&value)[kValues]) {
    __shared__ float scratch[2][kValues][kMaxWarps];
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, warps = blockDim.x / kWarp;
#pragma unroll
    for (int k = 0; k < kValues; ++k)
      if (lane == 0) scratch[half_][k][warp] = value[k];
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kValues; ++k) value[k] = lane < warps ? scratch[half_][k][lane] : 0.0f;
    within_warp(value, kWarp);
    half_ ^= 1;
  }

  int half_ = 0;
};

/// Calls `f(i, column)` for each vector of V columns that this thread owns in a row of `columns`.
/// kKept > 0: at most kKept vectors, unrolled, i = 0 .. kKept-1, so that f may index registers by i.
/// kKept == 0: as many as the row has, i = 0.
template <int V, int kKept, typename F>
__device__ __forceinline__ void for_each_vector(int64_t columns, F&& f) {
  if constexpr (kKept > 0) {
#pragma unroll
    for (int i = 0; i < kKept; ++i) {
      const int64_t column = (int64_t(i) * blockDim.x + threadIdx.x) * V;
      if (column < columns) f(i, column);
    }
  } else {
    const int64_t step = int64_t(blockDim.x) * V;
    for (int64_t column = int64_t(threadIdx.x) * V; column < columns; column += step) f(0, column);
  }
}

}  // namespace tefl
