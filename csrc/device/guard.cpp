#include "device/guard.h"

#include <c10/core/DeviceCapability.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "device/allocator.h"
#include "device/current_device.h"
#include "device/events.h"
#include "device/patience.h"
#include "device/streams.h"

namespace tefl::device {
namespace {

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kType; }

  c10::Device exchangeDevice(c10::Device device) const override {
    return device_at(exchange_device(device.index()));
  }
  c10::Device getDevice() const override { return device_at(current_device()); }
  void setDevice(c10::Device device) const override { exchange_device(device.index()); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    set_device_unchecked(device.index());
  }
  c10::DeviceIndex deviceCount() const noexcept override { return device_count(); }
  void synchronizeDevice(const c10::DeviceIndex index) const override {
    synchronize_device(index, patience());
  }

  c10::Stream getStream(c10::Device device) const override {
    return current_stream(resolve_index(device.index()));
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device_at(resolve_index(device.index())));
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool urgent) const override {
    const auto index = resolve_index(device.index());
    return urgent ? new_urgent_stream(index) : new_stream(index, 0);
  }
  c10::Stream getNewStream(c10::Device device, int priority) const override {
    return new_stream(resolve_index(device.index()), priority);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override { return exchange_stream(stream); }
  bool queryStream(const c10::Stream& stream) const override { return query_stream(stream); }
  void synchronizeStream(const c10::Stream& stream) const override { synchronize_stream(stream); }
  void* getStreamNativeHandle(const c10::Stream stream) const override { return native_stream(stream); }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex index,
              const c10::EventFlag flag) const override {
    TORCH_CHECK(index < 0 || index == stream.device_index(), "an event of ", device_at(index),
                " cannot be recorded in a stream of ", stream.device());
    record_event(event, stream, flag == c10::EventFlag::BACKEND_DEFAULT);
  }
  void block(void* event, const c10::Stream& stream) const override { block_stream(event, stream); }
  bool queryEvent(void* event) const override { return query_event(event); }
  void synchronizeEvent(void* event) const override { synchronize_event(event); }
  double elapsedTime(void* start, void* end, const c10::DeviceIndex index) const override {
    return elapsed_ms(start, end, index);
  }
  void destroyEvent(void* event, const c10::DeviceIndex index) const noexcept override {
    destroy_event(event, index);
  }

  // A dtype counts where tensors of it can be allocated and converted. No provider has to say: the alias
  // device does both, for all dtypes but those whose numbers stand for others.
  c10::DeviceCapability getDeviceCapability(c10::Device device) const override {
    resolve_index(device.index());
    c10::DeviceCapability capability;
    auto& dtypes = capability.capability_data.supported_scalar_types;
    dtypes.has_QInt8 = dtypes.has_QUInt8 = dtypes.has_QInt32 = 0;
    dtypes.has_QUInt4x2 = dtypes.has_QUInt2x4 = 0;
    return capability;
  }

  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    allocator().recordStream(data, stream);
  }
};

}  // namespace

void install_guard() {
  static auto* guard = new Guard;  // never destroyed: PyTorch uses it until the very end
  c10::impl::DeviceGuardImplRegistrar registrar(kType, guard);
}

}  // namespace tefl::device
