#include "device/shared_allocator.h"

#include "device/alias_storage.h"
#include "device/provider.h"
#include "device/shared.h"

namespace tefl::device {
namespace {

c10::DeviceAllocator& unstarted() { return *c10::getDeviceAllocator(alias_target().type); }

// PyTorch's allocator works only once its own runtime has been set up, and cannot be changed from then on:
// looking it up takes a cast at run time.
c10::DeviceAllocator& inner() {
  ensure_initialized();
  static c10::DeviceAllocator& allocator = unstarted();
  return allocator;
}

class SharedAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    c10::DataPtr data = inner().allocate(bytes);
    data.unsafe_set_device(device_at(data.device().index()));
    return data;
  }
  c10::DeleterFnPtr raw_deleter() const override { return inner().raw_deleter(); }
  void copy_data(void* destination, const void* source, std::size_t bytes) const override {
    inner().copy_data(destination, source, bytes);
  }
  bool initialized() override { return unstarted().initialized(); }
  void emptyCache(c10::MempoolId_t pool) override { inner().emptyCache(pool); }
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    inner().recordStream(owner_of_memory(data), shared_stream(stream));
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex index) override {
    return inner().getDeviceStats(resolve_index(index));
  }
  void resetAccumulatedStats(c10::DeviceIndex index) override {
    inner().resetAccumulatedStats(resolve_index(index));
  }
  void resetPeakStats(c10::DeviceIndex index) override { inner().resetPeakStats(resolve_index(index)); }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex index) override {
    return inner().getMemoryInfo(resolve_index(index));
  }
};

}  // namespace

c10::DeviceAllocator& shared_allocator() {
  static auto* instance = new SharedAllocator;  // never destroyed: storages keep the pointer
  return *instance;
}

}  // namespace tefl::device
