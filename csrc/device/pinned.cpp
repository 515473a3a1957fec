#include "device/pinned.h"

#include <c10/util/Exception.h>
#include <pthread.h>

#include "device/current_device.h"
#include "device/lifetime.h"
#include "device/pinned_cache.h"
#include "device/provider.h"
#include "device/shared.h"

namespace tefl::device {
namespace {

PinnedCache& pinned_cache() {
  static auto* instance = new PinnedCache;  // never destroyed: deleters may run after main
  return *instance;
}

void release_pinned(void* pointer) {
  if (pointer == nullptr || !may_release()) return;
  try {
    pinned_cache().give_back(pointer);
  } catch (const std::exception& error) {
    TORCH_WARN(device_name(), ": pinned memory could not be freed: ", error.what());
  }
}

class PinnedAllocator final : public at::HostAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    ensure_initialized();
    void* pointer = bytes == 0 ? nullptr : pinned_cache().take(bytes);
    return {pointer, pointer, &release_pinned, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release_pinned; }
  void copy_data(void* destination, const void* source, std::size_t bytes) const override {
    default_copy_data(destination, source, bytes);
  }

  bool record_event(void* pointer, void*, c10::Stream stream) override { return use_pinned(pointer, stream); }
  void empty_cache() override {
    if (is_initialized()) pinned_cache().release_free_blocks();
  }
  at::HostStats get_stats() override { return pinned_cache().stats(); }
  void reset_accumulated_stats() override { pinned_cache().reset_accumulated(); }
  void reset_peak_stats() override { pinned_cache().reset_peak(); }
};

// A GPU's pinned memory is PyTorch's own, in one cache under both names.
class SharedPinnedAllocator final : public at::HostAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override { return inner().allocate(bytes); }
  c10::DeleterFnPtr raw_deleter() const override { return unstarted().raw_deleter(); }
  void copy_data(void* destination, const void* source, std::size_t bytes) const override {
    default_copy_data(destination, source, bytes);
  }

  bool record_event(void* pointer, void* context, c10::Stream stream) override {
    return inner().record_event(pointer, context, shared_stream(stream));
  }
  void empty_cache() override {
    if (is_initialized()) unstarted().empty_cache();
  }
  at::HostStats get_stats() override { return inner().get_stats(); }
  void reset_accumulated_stats() override { inner().reset_accumulated_stats(); }
  void reset_peak_stats() override { inner().reset_peak_stats(); }

 private:
  static at::HostAllocator& unstarted() { return *at::getHostAllocator(alias_target().type); }
  static at::HostAllocator& inner() {
    ensure_initialized();
    return unstarted();
  }
};

}  // namespace

at::HostAllocator& pinned_allocator() {
  // Never destroyed: storages keep the pointer.
  static auto* instance =
      shared_guard() ? static_cast<at::HostAllocator*>(new SharedPinnedAllocator) : new PinnedAllocator;
  return *instance;
}

void install_pinned_allocator() {
  at::setHostAllocator(kType, &pinned_allocator());
  pthread_atfork([] { pinned_cache().lock(); }, [] { pinned_cache().unlock(); },
                 [] { pinned_cache().unlock(); });
}

bool is_pinned(const void* pointer) { return pinned_cache().use_in(pointer, nullptr); }

bool use_pinned(const void* pointer, c10::Stream stream) { return pinned_cache().use_in(pointer, &stream); }

}  // namespace tefl::device
