#include "guarded_memory.h"

#include <sched.h>

#include <cstdio>
#include <mutex>

#include "device.h"
#include "error.h"
#include "tables.h"

namespace tefl_sim {
namespace {

// The allocation that `pointer` lies in, null where there is none. With the device's lock held.
Allocation* allocation_at(const Device& owner, const void* pointer) {
  const auto* address = static_cast<const char*>(pointer);
  const auto beyond = owner.allocations.upper_bound(address);
  if (beyond == owner.allocations.begin()) return nullptr;
  Allocation* found = std::prev(beyond)->second.get();
  return address < found->begin() + found->bytes() ? found : nullptr;
}

Allocation& allocation_of(const Device& owner, int32_t index, const void* pointer, size_t bytes) {
  Allocation* found = allocation_at(owner, pointer);
  const auto* address = static_cast<const char*>(pointer);
  if (found == nullptr || bytes > static_cast<size_t>(found->begin() + found->bytes() - address)) {
    invalid(std::to_string(bytes) + " bytes from the pointer on do not lie in an allocation of device " +
            std::to_string(index));
  }
  return *found;
}

tefl_status host_access_begin(int32_t index, void* pointer, size_t bytes) {
  return guarded([&] {
    Device& owner = device(index);
    const std::lock_guard<std::mutex> lock(owner.mutex);
    allocation_of(owner, index, pointer, bytes).open();
  });
}

tefl_status host_access_end(int32_t index, void* pointer, size_t bytes) {
  return guarded([&] {
    Device& owner = device(index);
    const std::lock_guard<std::mutex> lock(owner.mutex);
    allocation_of(owner, index, pointer, bytes).close();
  });
}

// In a signal handler: whoever holds the lock gives it back soon, unless it is this very thread.
bool lock_soon(std::mutex& mutex) noexcept {
  for (int attempt = 0; attempt < 10000; ++attempt) {
    if (mutex.try_lock()) return true;
    sched_yield();
  }
  return false;
}

bool describe_on(int32_t index, const void* address, char* text, size_t bytes) {
  Device& owner = device(index);
  if (!lock_soon(owner.mutex)) return false;
  const std::lock_guard<std::mutex> lock(owner.mutex, std::adopt_lock);
  const Allocation* found = allocation_at(owner, address);
  if (found == nullptr || found->is_open()) return false;
  std::snprintf(text, bytes, "byte %zu of the %zu bytes allocated at %p on device %d",
                static_cast<size_t>(static_cast<const char*>(address) - found->begin()), found->bytes(),
                static_cast<const void*>(found->begin()), index);
  return true;
}

}  // namespace

Guarding guarding() noexcept {
  static const Guarding chosen = configured_guarding();
  return chosen;
}

char* own_address(int32_t index, const void* pointer, size_t bytes) {
  auto* address = const_cast<char*>(static_cast<const char*>(pointer));
  if (index == TEFL_HOST || guarding() == Guarding::kNone) return address;
  Device& owner = device(index);
  const std::lock_guard<std::mutex> lock(owner.mutex);
  return allocation_of(owner, index, pointer, bytes).own(address);
}

KernelAccess::KernelAccess(int32_t index) : index_(index) {
  if (guarding() == Guarding::kNone) return;
  Device& owner = device(index);
  const std::lock_guard<std::mutex> lock(owner.mutex);
  ++owner.kernels;
  for (const auto& [begin, allocation] : owner.allocations) allocation->open();
}

KernelAccess::~KernelAccess() {
  if (guarding() == Guarding::kNone) return;
  Device& owner = device(index_);
  const std::lock_guard<std::mutex> lock(owner.mutex);
  --owner.kernels;
  for (const auto& [begin, allocation] : owner.allocations) allocation->close();
}

bool describe_closed_address(const void* address, char* text, size_t bytes) noexcept {
  for (int32_t index = 0; index < running_devices(); ++index) {
    if (describe_on(index, address, text, bytes)) return true;
  }
  return false;
}

void fill_host_access(tefl_runtime& table) {
  if (guarding() != Guarding::kChecked) return;
  table.host_access_begin = host_access_begin;
  table.host_access_end = host_access_end;
}

}  // namespace tefl_sim
