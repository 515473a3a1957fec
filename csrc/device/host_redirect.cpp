#include "device/host_redirect.h"

#include <c10/core/CPUAllocator.h>

#include "device/allocator.h"
#include "device/host_access.h"

namespace tefl::device {
namespace {

constexpr uint8_t kPriority = 200;  // above PyTorch's own (0) and the usual replacements

thread_local c10::DeviceIndex redirected_to = -1;
c10::Allocator* wrapped = nullptr;

// raw_allocate gives out bare pointers, so that freeing one must ask whose it is.
void free_either(void* pointer) {
  if (pointer == nullptr) return;
  if (find_block(pointer)) {
    free_block(pointer);
  } else {
    wrapped->raw_deleter()(pointer);
  }
}

class HostAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (C10_LIKELY(redirected_to < 0)) return wrapped->allocate(bytes);
    void* pointer = allocate_block_for_host(bytes, redirected_to);
    if (C10_UNLIKELY(host_access_is_told()) && pointer != nullptr) {
      begin_host_access_in_scope(redirected_to, pointer, bytes);
    }
    return {pointer, pointer, &free_block, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return wrapped->raw_deleter() == nullptr ? nullptr : &free_either;
  }
  bool is_simple_data_ptr(const c10::DataPtr& data) const override {
    return data.get_deleter() == &free_block || wrapped->is_simple_data_ptr(data);
  }
  void copy_data(void* destination, const void* source, std::size_t bytes) const override {
    default_copy_data(destination, source, bytes);
  }
};

}  // namespace

bool install_host_redirect() {
  static auto* host = new HostAllocator;  // never destroyed: storages keep the pointer
  wrapped = c10::GetCPUAllocator();
  c10::SetCPUAllocator(host, kPriority);
  return c10::GetCPUAllocator() == host;
}

RedirectHostMemory::RedirectHostMemory(c10::DeviceIndex index) noexcept : before_(redirected_to) {
  redirected_to = index;
}

RedirectHostMemory::~RedirectHostMemory() { redirected_to = before_; }

}  // namespace tefl::device
