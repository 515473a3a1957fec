// The backward of RMSNorm and LayerNorm: the input's gradient, and of the weight's (and bias's) gradient one
// partial row a block. `reduce_partials` adds those up in a fixed order: no atomics, the same bits every
// time.
//
//   h = (x - mean) * rstd,  g = grad * (weight + offset)
//   dinput = rstd * (g - h * mean(g * h) - mean(g)) + add      (mean and mean(g) for LayerNorm only)
//   dweight = sum over rows of grad * h,  dbias = sum over rows of grad
#pragma once

#include "norm_forward.cuh"

namespace tefl {

template <typename T, typename W>
struct BackwardArgs {
  const T* grad;
  const T* input;
  const T* add;  // NULL where nothing is added to dinput
  const float* mean;
  const float* rstd;
  const W* weight;
  T* dinput;       // contiguous
  float* dweight;  // [gridDim.x, columns]
  float* dbias;    // [gridDim.x, columns], or NULL where nobody wants it
  int64_t rows, columns;
  int64_t grad_stride, input_stride, add_stride;  // elements from one row to the next
  float offset;
};

/// One block's partial row of a weight's gradient, of which this thread owns the columns of its vectors.
/// kKept > 0: in registers until `store`, which adds up the rows of the block through `shared`, an array of
/// blockDim.y * blockDim.x * kKept * V floats (unused where blockDim.y == 1).
/// kKept == 0: in memory, for blocks of one row. A thread always meets the same columns, so that nobody else
/// touches what it adds to.
template <int V, int kKept>
class PartialRow {
 public:
  __device__ PartialRow(float* row, int64_t columns) : row_(row), columns_(columns) {
    if constexpr (kKept == 0)
      if (row_) for_each_vector<V, 0>(columns_, [&](int, int64_t c) { Pack<float, V>{}.store(row_ + c); });
  }

  /// Adds `term(j)` to the j-th element of vector i, which starts at `column`.
  template <typename Term>
  __device__ void add(int i, int64_t column, Term term) {
    if constexpr (kKept > 0) {
#pragma unroll
      for (int j = 0; j < V; ++j) sums_[i].at[j] += term(j);
    } else if (row_) {
      auto sums = Pack<float, V>::load(row_ + column);
#pragma unroll
      for (int j = 0; j < V; ++j) sums.at[j] += term(j);
      sums.store(row_ + column);
    }
  }

  __device__ void store(float* shared) {
    if constexpr (kKept > 0) {
      if (!row_) return;
      if (blockDim.y > 1) gather(shared);
      if (threadIdx.y == 0)
        for_each_vector<V, kKept>(columns_, [&](int i, int64_t c) { sums_[i].store(row_ + c); });
    }
  }

 private:
  __device__ void gather(float* shared) {
    const int thread = threadIdx.y * blockDim.x + threadIdx.x, threads = blockDim.x * blockDim.y;
    __syncthreads();  // another partial row may still be reading `shared`
#pragma unroll
    for (int k = 0; k < kKept * V; ++k) shared[k * threads + thread] = sums_[k / V].at[k % V];
    __syncthreads();
    if (threadIdx.y > 0) return;
    for (int y = 1; y < blockDim.y; ++y)
#pragma unroll
      for (int k = 0; k < kKept * V; ++k)
        sums_[k / V].at[k % V] += shared[k * threads + y * blockDim.x + thread];
  }

  float* const row_;
  const int64_t columns_;
  Pack<float, V> sums_[kKept > 0 ? kKept : 1] = {};
};

/// One thread's share; kKept as in NormForward.
template <Norm kNorm, typename T, typename W, int V, int kKept>
class NormBackward {
 public:
  __device__ explicit NormBackward(const BackwardArgs<T, W>& args)
      : args_(args),
        dweight_(args.dweight + int64_t(blockIdx.x) * args.columns, args.columns),
        dbias_(args.dbias ? args.dbias + int64_t(blockIdx.x) * args.columns : nullptr, args.columns) {}

  __device__ void run(float* shared) {
    if constexpr (kKeepWeight)
      for_each_vector<V, kKept>(args_.columns,
                                [&](int i, int64_t c) { weights_[i] = Weights::load(args_.weight + c); });
    const int64_t step = int64_t(gridDim.x) * blockDim.y;
    for (int64_t base = int64_t(blockIdx.x) * blockDim.y; base < args_.rows; base += step) {
      row_ = base + threadIdx.y;
      columns_ = row_ < args_.rows ? args_.columns : 0;
      one_row();
    }
    dweight_.store(shared);
    if constexpr (kLayer) dbias_.store(shared);
  }

 private:
  using Values = Pack<T, V>;
  using Weights = Pack<W, V>;
  static constexpr bool kLayer = kNorm == Norm::kLayer;
  static constexpr bool kKeepWeight = kKept == 1 || kKept == 2;
  static constexpr int kSlots = kKept > 0 ? kKept : 1;

  __device__ void one_row() {
    rstd_ = columns_ > 0 ? args_.rstd[row_] : 0.0f;
    mean_ = kLayer && columns_ > 0 ? args_.mean[row_] : 0.0f;
    if constexpr (kKept > 0) for_each_vector<V, kKept>(columns_, [&](int i, int64_t c) { load(i, c); });
    float sums[kLayer ? 2 : 1] = {};
    for_each_vector<V, kKept>(columns_, [&](int i, int64_t c) {
      if constexpr (kKept == 0) load(0, c);
      const Weights w = weight(i, c);
#pragma unroll
      for (int j = 0; j < V; ++j) {
        const float g = grad(i, j) * (to_float(w.at[j]) + args_.offset);
        sums[0] += g * normalised(i, j);
        if constexpr (kLayer) sums[1] += g;
      }
    });
    row_sum_(sums);
    if constexpr (kKept > 0 && sizeof(T) < 4)
#pragma unroll
      for (int i = 0; i < kKept; ++i) {
        grads_[i].stay_packed();
        inputs_[i].stay_packed();
      }
    const float mean_gh = sums[0] / float(args_.columns);
    const float mean_g = kLayer ? sums[kLayer] / float(args_.columns) : 0.0f;
    for_each_vector<V, kKept>(columns_, [&](int i, int64_t c) { write(i, c, mean_gh, mean_g); });
  }

  __device__ void write(int i, int64_t column, float mean_gh, float mean_g) {
    if constexpr (kKept == 0) load(0, column);
    const Weights w = weight(i, column);
    Values add = {}, dinput;
    if (args_.add) add = Values::load(args_.add + row_ * args_.add_stride + column);
#pragma unroll
    for (int j = 0; j < V; ++j) {
      const float g = grad(i, j) * (to_float(w.at[j]) + args_.offset);
      const float dx = (g - normalised(i, j) * mean_gh - mean_g) * rstd_;
      dinput.at[j] = from_float<T>(dx + to_float(add.at[j]));
    }
    dinput.store(args_.dinput + row_ * args_.columns + column);
    dweight_.add(i, column, [&](int j) { return grad(i, j) * normalised(i, j); });
    if constexpr (kLayer) dbias_.add(i, column, [&](int j) { return grad(i, j); });
  }

  __device__ void load(int i, int64_t column) {
    grads_[i] = Values::load(args_.grad + row_ * args_.grad_stride + column);
    inputs_[i] = Values::load(args_.input + row_ * args_.input_stride + column);
  }

  __device__ Weights weight(int i, int64_t column) const {
    if constexpr (kKeepWeight)
      return weights_[i];
    else
      return Weights::load(args_.weight + column);
  }

  __device__ float grad(int i, int j) const { return to_float(grads_[i].at[j]); }
  __device__ float normalised(int i, int j) const { return (to_float(inputs_[i].at[j]) - mean_) * rstd_; }

  const BackwardArgs<T, W>& args_;
  int64_t row_, columns_;
  float rstd_, mean_;
  Values grads_[kSlots], inputs_[kSlots];
  Weights weights_[kKeepWeight ? kKept : 1];
  PartialRow<V, kKept> dweight_;
  PartialRow<V, kKept> dbias_;  // LayerNorm's
  RowSum<kLayer ? 2 : 1> row_sum_;
};

}  // namespace tefl
