#include "device/histogram.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/div.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/histc.h>
#include <c10/util/Exception.h>

#include <tuple>

#include "device/implement.h"

namespace tefl::device {
namespace {

// The ends of the range: of the values where both are equal, and one to each side where these are equal too.
std::tuple<int64_t, int64_t> range_of(const at::Tensor& values, const at::Scalar& min,
                                      const at::Scalar& max) {
  int64_t low = min.to<int64_t>(), high = max.to<int64_t>();
  TORCH_CHECK(low <= high, "torch.histc: max must be larger than min");
  if (low == high && values.numel() > 0) {
    low = values.min().item<int64_t>();
    high = values.max().item<int64_t>();
  }
  return low == high ? std::make_tuple(low - 1, high + 1) : std::make_tuple(low, high);
}

// In whole numbers, as a GPU counts them: a value's bin is (value - low) * bins / (high - low), rounded down,
// and the last bin has its upper end too.
at::Tensor count_integers(const at::Tensor& self, int64_t bins, const at::Scalar& min,
                          const at::Scalar& max) {
  TORCH_CHECK(bins > 0, "torch.histc: bins is ", bins, ", must be above 0");
  const auto values = self.reshape({-1}).to(at::kLong);
  const auto [low, high] = range_of(values, min, max);
  const auto inside = values.masked_select((values >= low).logical_and(values <= high));
  const auto bin = at::div((inside - low) * bins, high - low, "floor").clamp_max(bins - 1);
  return at::bincount(bin, {}, bins).to(self.scalar_type());
}

at::Tensor histc(const at::Tensor& self, int64_t bins, const at::Scalar& min, const at::Scalar& max) {
  if (at::isIntegralType(self.scalar_type(), /*includeBool=*/false)) {
    return count_integers(self, bins, min, max);
  }
  auto result = at::empty({0}, self.options());
  return at::histc_out(result, self, bins, min, max);
}

}  // namespace

void register_histogram(torch::Library& aten) { implement(aten, "histc", histc); }

}  // namespace tefl::device
