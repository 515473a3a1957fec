#include "device/factory.h"

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>

#include <limits>

#include "device/allocator.h"
#include "device/current_device.h"
#include "device/provider.h"

namespace tefl::device {
namespace {

const c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

c10::Device checked_device(std::optional<at::Device> device, std::optional<at::Layout> layout,
                           std::optional<bool> pin_memory) {
  TORCH_CHECK_NOT_IMPLEMENTED(layout.value_or(at::kStrided) == at::kStrided, device_name(),
                              " has strided tensors only, layout ", *layout, " was asked for");
  TORCH_CHECK(!pin_memory.value_or(false), "pin_memory=True: only host memory can be pinned, not ",
              device_name(), "'s");
  return device_at(resolve_index(device ? device->index() : -1));
}

at::Scalar largest(at::ScalarType dtype) {
  switch (dtype) {
    case at::kBool:
      return true;
    case at::kByte:
      return std::numeric_limits<uint8_t>::max();
    case at::kChar:
      return std::numeric_limits<int8_t>::max();
    case at::kShort:
      return std::numeric_limits<int16_t>::max();
    case at::kInt:
      return std::numeric_limits<int32_t>::max();
    case at::kUInt16:
      return static_cast<int64_t>(std::numeric_limits<uint16_t>::max());
    case at::kUInt32:
      return static_cast<int64_t>(std::numeric_limits<uint32_t>::max());
    default:
      return std::numeric_limits<int64_t>::max();
  }
}

// torch.use_deterministic_algorithms: uninitialised memory is filled, so that reading it shows.
at::Tensor filled_if_deterministic(at::Tensor tensor) {
  const auto& context = at::globalContext();
  if (C10_LIKELY(!context.deterministicAlgorithms()) || !context.deterministicFillUninitializedMemory()) {
    return tensor;
  }
  const auto dtype = tensor.scalar_type();
  const bool has_nan = at::isFloatingType(dtype) || at::isComplexType(dtype);
  return tensor.fill_(has_nan ? at::Scalar(std::numeric_limits<double>::quiet_NaN()) : largest(dtype));
}

// The memory of a tensor that has none.
class NoMemory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t) override { return {nullptr, device_at(current_device())}; }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void*, const void*, std::size_t) const override {}
};

}  // namespace

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                 std::optional<at::Device> device, std::optional<bool> pin_memory,
                 std::optional<at::MemoryFormat> memory_format) {
  const c10::DeviceGuard guard(checked_device(device, layout, pin_memory));
  at::Tensor tensor =
      at::detail::empty_generic(size, &allocator(), kKeys, c10::dtype_or_default(dtype), memory_format);
  return filled_if_deterministic(std::move(tensor));
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout> layout, std::optional<at::Device> device,
                         std::optional<bool> pin_memory) {
  const c10::DeviceGuard guard(checked_device(device, layout, pin_memory));
  at::Tensor tensor =
      at::detail::empty_strided_generic(size, stride, &allocator(), kKeys, c10::dtype_or_default(dtype));
  return filled_if_deterministic(std::move(tensor));
}

at::Tensor efficient_zero_tensor(at::IntArrayRef size, std::optional<at::ScalarType> dtype,
                                 std::optional<at::Layout> layout, std::optional<at::Device> device,
                                 std::optional<bool> pin_memory) {
  static auto* no_memory = new NoMemory;  // never destroyed: storages keep the pointer
  const c10::DeviceGuard guard(checked_device(device, layout, pin_memory));
  const auto keys = kKeys | c10::DispatchKeySet(c10::DispatchKey::ZeroTensor);
  return at::detail::empty_generic(size, no_memory, keys, c10::dtype_or_default(dtype), std::nullopt);
}

}  // namespace tefl::device
