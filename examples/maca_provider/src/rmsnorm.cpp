// rmsnorm.cpp: the vendor's own kernel. On hardware this file would hold device code and a launch; here the
// engine's thread is the device, and the launch is a command on a stream.
#include <cmath>
#include <string>
#include <vector>

#include "element.h"
#include "engine.h"
#include "maca.h"
#include "status.h"

namespace maca {
namespace {

// How rows of one element type are read and written.
struct Format {
  int64_t bytes;
  void (*load)(const void* source, int64_t count, float* values);
  void (*store)(const float* values, int64_t count, void* destination);
};

const Format& format_of(maca_type type) {
  static const Format formats[] = {
      {4, load_as<Float32, float>, store_as<Float32, float>},
      {2, load_as<BFloat16, BFloat16>, store_as<BFloat16, BFloat16>},
      {2, load_as<Float16, Float16>, store_as<Float16, Float16>},
  };
  if (type < MACA_FLOAT32 || type > MACA_FLOAT16) {
    throw Error(TEFL_ERR_INVALID,
                "element type " + std::to_string(type) + " is none of 0 float32, 1 bfloat16, 2 float16");
  }
  return formats[type];
}

struct Problem {
  char* out;
  float* rsigma;
  const char* input;
  const void* weight;
  Format out_format, input_format, weight_format;
  int64_t rows, columns;
  float eps;
  bool zero_centered_gamma;
};

// Eight partial sums: the compiler can keep them in vector registers, and each is an eighth as long as one
// sum would be, so rounding errors grow more slowly.
float sum_of_squares(const float* values, int64_t count) {
  constexpr int64_t kLanes = 8;
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += values[i + lane] * values[i + lane];
  }
  for (; i < count; ++i) lanes[i % kLanes] += values[i] * values[i];
  float sum = 0;
  for (float lane : lanes) sum += lane;
  return sum;
}

std::vector<float> gamma_of(const Problem& problem) {
  std::vector<float> gamma(static_cast<size_t>(problem.columns));
  problem.weight_format.load(problem.weight, problem.columns, gamma.data());
  if (problem.zero_centered_gamma) {
    for (float& value : gamma) value += 1.0f;
  }
  return gamma;
}

void normalize_rows(const Problem& problem) {
  const std::vector<float> gamma = gamma_of(problem);
  std::vector<float> row(gamma.size());
  for (int64_t r = 0; r < problem.rows; ++r) {
    problem.input_format.load(problem.input + r * problem.columns * problem.input_format.bytes,
                              problem.columns, row.data());
    const float mean = sum_of_squares(row.data(), problem.columns) / static_cast<float>(problem.columns);
    const float rsigma = 1.0f / std::sqrt(mean + problem.eps);
    for (size_t c = 0; c < row.size(); ++c) row[c] *= rsigma * gamma[c];
    problem.out_format.store(row.data(), problem.columns,
                             problem.out + r * problem.columns * problem.out_format.bytes);
    problem.rsigma[r] = rsigma;
  }
}

}  // namespace
}  // namespace maca

tefl_status maca_rmsnorm_fwd(void* out, float* rsigma, const void* input, const void* weight,
                             maca_type out_type, maca_type input_type, maca_type weight_type, int64_t rows,
                             int64_t columns, float eps, int32_t zero_centered_gamma, tefl_stream stream) {
  using namespace maca;
  return guarded([&] {
    require(rows >= 0 && columns >= 0, "rows and columns must not be negative");
    const Problem problem{static_cast<char*>(out),
                          rsigma,
                          static_cast<const char*>(input),
                          weight,
                          format_of(out_type),
                          format_of(input_type),
                          format_of(weight_type),
                          rows,
                          columns,
                          eps,
                          zero_centered_gamma != 0};
    if (rows > 0) submit(stream, {nullptr, [problem] { normalize_rows(problem); }, nullptr});
  });
}

const char* maca_last_error(void) { return maca::message_of_this_thread().c_str(); }
