#include "device/hooks.h"

#include <ATen/Context.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>

#include "device/allocator.h"
#include "device/copy.h"
#include "device/current_device.h"
#include "device/generator.h"
#include "device/pinned.h"
#include "device/provider.h"
#include "device/shared.h"

namespace tefl::device {
namespace {

const at::AcceleratorHooksInterface& shared_hooks() {
  return at::globalContext().getAcceleratorHooksInterface(alias_target().type);
}

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return device_count() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return is_initialized(); }
  void init() const override { start_runtime(); }

  c10::DeviceIndex deviceCount() const override { return device_count(); }
  c10::DeviceIndex getCurrentDevice() const override { return current_device(); }
  void setCurrentDevice(c10::DeviceIndex index) const override { exchange_device(index); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override { return exchange_device(index); }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    return exchange_device(index);
  }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    return default_generator(index);
  }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override { return new_generator(index); }

  c10::Device getDeviceFromPtr(void* data) const override {
    if (shared_guard()) return device_at(shared_hooks().getDeviceFromPtr(data).index());
    const auto block = find_block(data);
    TORCH_CHECK(block, "the pointer does not lie in memory of ", device_name());
    return device_at(block->device);
  }
  bool isPinnedPtr(const void* data) const override {
    if (shared_guard()) return is_initialized() && shared_hooks().isPinnedPtr(data);
    return is_pinned(data);
  }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator(); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    resize_storage(storage, bytes);
  }
};

}  // namespace

void install_hooks() { at::RegisterPrivateUse1HooksInterface(new Hooks); }

}  // namespace tefl::device
