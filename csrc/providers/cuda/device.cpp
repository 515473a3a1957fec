#include "context.h"
#include "error.h"
#include "tables.h"
#include "visible.h"

namespace tefl_cuda {
namespace {

tefl_status init() {
  return guarded([] { start(); });
}

tefl_status device_count(int32_t* count) {
  return guarded([&] { *count = visible_devices(); });
}

int attribute(CuDevice device, int which) {
  int value = 0;
  check(driver().device_attribute(&value, which, device), "cuDeviceGetAttribute");
  return value;
}

tefl_status device_properties(int32_t index, tefl_device_properties* properties) {
  return guarded([&] {
    const CuDevice device = device_at(index);
    size_t bytes = 0;
    check(driver().device_name(properties->name, sizeof(properties->name), device), "cuDeviceGetName");
    check(driver().device_memory(&bytes, device), "cuDeviceTotalMem");
    properties->total_memory = bytes;
    properties->arch_major = attribute(device, kCapabilityMajor);
    properties->arch_minor = attribute(device, kCapabilityMinor);
    properties->multiprocessor_count = attribute(device, kMultiprocessorCount);
  });
}

tefl_status device_synchronize(int32_t index) {
  return guarded([&] {
    const Current context(index);
    check(driver().context_synchronize(), "cuCtxSynchronize");
  });
}

}  // namespace

void fill_devices(tefl_runtime& table) {
  table.init = init;
  table.device_count = device_count;
  table.device_properties = device_properties;
  table.set_current_device = nullptr;  // the CUDA runtime's current device is PyTorch's to set
  table.device_synchronize = device_synchronize;
}

}  // namespace tefl_cuda
