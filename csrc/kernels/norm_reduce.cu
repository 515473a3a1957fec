// Adds up the partial rows that the norm backwards leave: out[c] = sum over r of partial[r, c], in an order
// that depends on the shape alone. Blocks of (32, kGroups) threads own 32 columns; blockIdx.y picks the first
// (weight) or the second (bias) pair.
#include "vec.cuh"

namespace tefl {

constexpr int kGroups = 32;

template <typename W>
__device__ void reduce_partials(const float* partial, W* out, int64_t rows, int64_t columns) {
  __shared__ float sums[kGroups][33];  // one more than 32: no bank conflicts
  const int64_t column = int64_t(blockIdx.x) * 32 + threadIdx.x;
  float sum = 0.0f;
  if (column < columns) {
#pragma unroll 4
    for (int64_t row = threadIdx.y; row < rows; row += kGroups) sum += partial[row * columns + column];
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= columns) return;
  for (int group = 1; group < kGroups; ++group) sum += sums[group][threadIdx.x];
  out[column] = from_float<W>(sum);
}

#define NORM_REDUCE(NAME, W)                                                                             \
  extern "C" __global__ void __launch_bounds__(32 * kGroups)                                             \
      tefl_norm_reduce_##NAME(const float* dweight_partial, W* dweight, const float* dbias_partial,      \
                              W* dbias, int64_t rows, int64_t columns) {                                 \
    const bool first = blockIdx.y == 0;                                                                  \
    reduce_partials<W>(first ? dweight_partial : dbias_partial, first ? dweight : dbias, rows, columns); \
  }

NORM_REDUCE(bf16, bf16)
NORM_REDUCE(f16, f16)
NORM_REDUCE(f32, f32)

}  // namespace tefl
