#include "device/host_access.h"

#include <vector>

#include "device/lifetime.h"
#include "device/provider.h"

namespace tefl::device {
namespace {

bool told = false;

struct OpenMemory {
  c10::DeviceIndex index;
  void* pointer;
  size_t bytes;
};

thread_local std::vector<OpenMemory> opened;

}  // namespace

bool host_access_is_told() noexcept { return told; }

void learn_host_access() {
  told = active().alias == TEFL_ALIAS_CPU && runtime().host_access_begin != nullptr;
}

void begin_host_access(c10::DeviceIndex index, void* pointer, size_t bytes) {
  check(runtime().host_access_begin(index, pointer, bytes), "host_access_begin");
}

void end_host_access(c10::DeviceIndex index, void* pointer, size_t bytes) noexcept {
  if (may_release()) runtime().host_access_end(index, pointer, bytes);
}

void begin_host_access_in_scope(c10::DeviceIndex index, void* pointer, size_t bytes) {
  begin_host_access(index, pointer, bytes);
  opened.push_back({index, pointer, bytes});
}

void end_host_access_of_freed(void* pointer) noexcept {
  for (size_t i = opened.size(); i-- > 0;) {
    if (opened[i].pointer != pointer) continue;
    end_host_access(opened[i].index, opened[i].pointer, opened[i].bytes);
    opened[i].pointer = nullptr;
    return;
  }
}

HostAccessScope::HostAccessScope() noexcept : before_(told ? opened.size() : 0) {}

HostAccessScope::~HostAccessScope() {
  if (C10_LIKELY(!told)) return;
  for (; opened.size() > before_; opened.pop_back()) {
    const OpenMemory& memory = opened.back();
    if (memory.pointer != nullptr) end_host_access(memory.index, memory.pointer, memory.bytes);
  }
}

}  // namespace tefl::device
