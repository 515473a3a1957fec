// The forward of RMSNorm and LayerNorm, with or without a residual that is added first.
//
//   RMSNorm    out = x * rstd * (weight + offset),                 rstd = 1 / sqrt(mean(x^2) + eps)
//   LayerNorm  out = (x - mean) * rstd * (weight + offset) + bias, rstd = 1 / sqrt(mean((x - mean)^2) + eps)
//
// `offset` is 1 for a zero-centred weight, else 0. Arithmetic and statistics are float32; LayerNorm's
// variance is taken from the centred values, in a second pass. The residual sum is stored rounded to T, and
// that rounded sum is what is normalised: the backward, which sees only the stored sum, then differentiates
// exactly the function that was computed.
#pragma once

#include "rows.cuh"
#include "vec.cuh"

namespace tefl {

enum class Norm { kRms, kLayer };

template <typename T, typename W>
struct ForwardArgs {
  const T* input;     // columns lie side by side
  const T* residual;  // read where the kernel adds
  const W* weight;
  const W* bias;    // NULL where there is none
  T* out;           // contiguous
  T* residual_out;  // contiguous, written where the kernel adds
  float* mean;      // written by LayerNorm
  float* rstd;
  int64_t rows, columns;
  int64_t input_stride, residual_stride;  // elements from one row to the next
  float eps, offset;
};

/// One thread's share. kKept vectors of V elements stay in registers; with kKept == 0 each pass reads the row
/// anew, which serves any number of columns.
template <Norm kNorm, bool kAdd, typename T, typename W, int V, int kKept>
class NormForward {
 public:
  __device__ explicit NormForward(const ForwardArgs<T, W>& args) : args_(args) {}

  __device__ void run() {
    const int64_t step = int64_t(gridDim.x) * blockDim.y;
    for (int64_t base = int64_t(blockIdx.x) * blockDim.y; base < args_.rows; base += step) {
      row_ = base + threadIdx.y;
      // The idle rows of the last block have no columns but take part in the sums.
      columns_ = row_ < args_.rows ? args_.columns : 0;
      one_row();
    }
  }

 private:
  using Values = Pack<T, V>;
  using Weights = Pack<W, V>;
  static constexpr bool kLayer = kNorm == Norm::kLayer;

  __device__ void one_row() {
    // All loads are under way before the first value is waited for.
    if constexpr (kKept > 0)
      for_each_vector<V, kKept>(columns_, [&](int i, int64_t c) { kept_[i] = first_read(c); });
    float mean = 0.0f, rstd;
    if constexpr (kLayer) {
      mean = sum([&](int i, int64_t c) { return kKept > 0 ? kept_[i] : first_read(c); },
                 [](float x) { return x; }) /
             float(args_.columns);
      rstd = reciprocal_deviation(sum([&](int i, int64_t c) { return read_again(i, c); },
                                      [&](float x) { return (x - mean) * (x - mean); }));
    } else {
      rstd = reciprocal_deviation(sum([&](int i, int64_t c) { return kKept > 0 ? kept_[i] : first_read(c); },
                                      [](float x) { return x * x; }));
    }
    if (columns_ > 0 && threadIdx.x == 0) {
      args_.rstd[row_] = rstd;
      if constexpr (kLayer) args_.mean[row_] = mean;
    }
    for_each_vector<V, kKept>(columns_, [&](int i, int64_t c) { write(i, c, mean, rstd); });
  }

  __device__ float reciprocal_deviation(float squares) const {
    return rsqrtf(squares / float(args_.columns) + args_.eps);
  }

  __device__ Values first_read(int64_t column) const {
    Values x = Values::load(args_.input + row_ * args_.input_stride + column);
    if constexpr (kAdd) {
      const Values r = Values::load(args_.residual + row_ * args_.residual_stride + column);
#pragma unroll
      for (int j = 0; j < V; ++j) x.at[j] = from_float<T>(to_float(x.at[j]) + to_float(r.at[j]));
      x.store(args_.residual_out + row_ * args_.columns + column);
    }
    return x;
  }

  __device__ Values read_again(int i, int64_t column) const {
    if constexpr (kKept > 0)
      return kept_[i];
    else if constexpr (kAdd)
      return Values::load(args_.residual_out + row_ * args_.columns + column);
    else
      return Values::load(args_.input + row_ * args_.input_stride + column);
  }

  /// The sum of `term` over the row's values as `read` gives them.
  template <typename Read, typename Term>
  __device__ float sum(Read read, Term term) {
    float total[1] = {0.0f};
    for_each_vector<V, kKept>(columns_, [&](int i, int64_t c) {
      const Values x = read(i, c);
#pragma unroll
      for (int j = 0; j < V; ++j) total[0] += term(to_float(x.at[j]));
    });
    row_sum_(total);
    if constexpr (kKept > 0 && sizeof(T) < 4)
#pragma unroll
      for (int i = 0; i < kKept; ++i) kept_[i].stay_packed();
    return total[0];
  }

  __device__ void write(int i, int64_t column, float mean, float rstd) const {
    const Values x = read_again(i, column);
    const Weights w = Weights::load(args_.weight + column);  // in cache: every row wants it
    Weights b = {};
    if (kLayer && args_.bias) b = Weights::load(args_.bias + column);
    Values out;
#pragma unroll
    for (int j = 0; j < V; ++j) {
      float y = (to_float(x.at[j]) - mean) * rstd * (to_float(w.at[j]) + args_.offset);
      if constexpr (kLayer) y += to_float(b.at[j]);
      out.at[j] = from_float<T>(y);
    }
    out.store(args_.out + row_ * args_.columns + column);
  }

  const ForwardArgs<T, W>& args_;
  int64_t row_, columns_;
  Values kept_[kKept > 0 ? kKept : 1];
  RowSum<1> row_sum_;
};

}  // namespace tefl
