#include "device/unusable.h"

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include <utility>

#include "device/current_device.h"

namespace tefl::device {
namespace {

// What both raise. Never destroyed, as what raises it.
const std::string& reason_of_refusal(const std::string* set = nullptr) {
  static const auto* kept = new std::string(*set);
  return *kept;
}

[[noreturn]] void refuse_use() { TORCH_CHECK(false, reason_of_refusal()); }

struct UnusableHooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return false; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return false; }
  void init() const override { refuse_use(); }
  c10::DeviceIndex getCurrentDevice() const override { refuse_use(); }
  void setCurrentDevice(c10::DeviceIndex) const override { refuse_use(); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { refuse_use(); }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { refuse_use(); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override { refuse_use(); }
  at::Generator getNewGenerator(c10::DeviceIndex) const override { refuse_use(); }
  c10::Device getDeviceFromPtr(void*) const override { refuse_use(); }
  c10::Allocator* getPinnedMemoryAllocator() const override { refuse_use(); }
};

class UnusableGuard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device) const override { refuse_use(); }
  c10::Device getDevice() const override { refuse_use(); }
  void setDevice(c10::Device) const override { refuse_use(); }
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 0; }
  c10::Stream getStream(c10::Device) const override { refuse_use(); }
  c10::Stream getDefaultStream(c10::Device) const override { refuse_use(); }
  c10::Stream getNewStream(c10::Device, int) const override { refuse_use(); }
  c10::Stream exchangeStream(c10::Stream) const override { refuse_use(); }
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {
    refuse_use();
  }
  void synchronizeDevice(const c10::DeviceIndex) const override { refuse_use(); }
};

}  // namespace

void install_unusable(const std::string& message) {
  if (at::isPrivateUse1HooksRegistered() || c10::impl::hasDeviceGuardImpl(kType)) return;
  reason_of_refusal(&message);
  static auto* guard = new UnusableGuard;  // never destroyed: PyTorch uses it until the very end
  const c10::impl::DeviceGuardImplRegistrar registrar(kType, guard);
  at::RegisterPrivateUse1HooksInterface(new UnusableHooks);
}

}  // namespace tefl::device
