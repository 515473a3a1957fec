#include "device/pinned.h"

#include <c10/core/CPUAllocator.h>

#include <map>
#include <mutex>

#include "device/lifetime.h"
#include "device/provider.h"

namespace tefl::device {
namespace {

struct Ranges {
  std::mutex mutex;
  std::map<uintptr_t, size_t> bytes;  // by first address
};

Ranges& ranges() {
  static auto* instance = new Ranges;  // never destroyed: deleters may run after main
  return *instance;
}

void release(void* pointer) {
  if (pointer == nullptr || !may_release()) return;
  {
    std::lock_guard<std::mutex> lock(ranges().mutex);
    ranges().bytes.erase(reinterpret_cast<uintptr_t>(pointer));
  }
  if (runtime().host_free != nullptr) {
    runtime().host_free(pointer);
  } else {
    c10::GetDefaultCPUAllocator()->raw_deallocate(pointer);
  }
}

void* acquire(size_t bytes) {
  if (runtime().host_malloc == nullptr) return c10::GetDefaultCPUAllocator()->raw_allocate(bytes);
  void* pointer = nullptr;
  check(runtime().host_malloc(bytes, &pointer), "host_malloc");
  return pointer;
}

class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    ensure_initialized();
    void* pointer = bytes == 0 ? nullptr : acquire(bytes);
    if (pointer != nullptr) {
      std::lock_guard<std::mutex> lock(ranges().mutex);
      ranges().bytes[reinterpret_cast<uintptr_t>(pointer)] = bytes;
    }
    return {pointer, pointer, &release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* destination, const void* source, std::size_t bytes) const override {
    default_copy_data(destination, source, bytes);
  }
};

}  // namespace

c10::Allocator& pinned_allocator() {
  static auto* instance = new PinnedAllocator;  // never destroyed: storages keep the pointer
  return *instance;
}

bool is_pinned(const void* pointer) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  std::lock_guard<std::mutex> lock(ranges().mutex);
  const auto after = ranges().bytes.upper_bound(address);
  if (after == ranges().bytes.begin()) return false;
  const auto& [begin, bytes] = *std::prev(after);
  return address < begin + bytes;
}

}  // namespace tefl::device
