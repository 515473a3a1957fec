#include "device/profiler.h"

#include <c10/core/DeviceGuard.h>
#include <c10/util/ApproximateClock.h>
#include <torch/csrc/profiler/stubs/base.h>

#include "device/current_device.h"
#include "device/events.h"
#include "device/patience.h"
#include "device/streams.h"

namespace tefl::device {
namespace {

using torch::profiler::impl::ProfilerVoidEventStub;

constexpr float kMicrosecondsInMillisecond = 1000;

class EventStubs final : public torch::profiler::impl::ProfilerStubs {
 public:
  void record(c10::DeviceIndex* device, ProfilerVoidEventStub* event, int64_t* cpu_ns) const override {
    const auto index = current_device();
    void* created = nullptr;
    record_event(&created, current_stream(index), /*timing=*/true);
    *event = ProfilerVoidEventStub(created, [index](void* mark) { destroy_event(mark, index); });
    if (device != nullptr) *device = index;
    if (cpu_ns != nullptr) *cpu_ns = c10::getTime();
  }

  // In microseconds.
  float elapsed(const ProfilerVoidEventStub* start, const ProfilerVoidEventStub* end) const override {
    synchronize_event(start->get());
    synchronize_event(end->get());
    const double ms = elapsed_ms(start->get(), end->get(), current_device());
    return static_cast<float>(ms) * kMicrosecondsInMillisecond;
  }

  // The provider's table has no place for a vendor's own trace tool.
  void mark(const char*) const override {}
  void rangePush(const char*) const override {}
  void rangePop() const override {}

  bool enabled() const override { return true; }
  void onEachDevice(std::function<void(int)> action) const override {
    for (c10::DeviceIndex index = 0; index < device_count(); ++index) {
      const c10::DeviceGuard guard(device_at(index));
      action(index);
    }
  }
  void synchronize() const override { synchronize_device(current_device(), patience()); }
};

}  // namespace

void install_profiler() {
  static auto* stubs = new EventStubs;  // never destroyed: PyTorch keeps the pointer
  torch::profiler::impl::registerPrivateUse1Methods(stubs);
}

}  // namespace tefl::device
