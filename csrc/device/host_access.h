// Telling a provider that asks for it when the host computes on device memory in place.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Storage.h>

#include <cstddef>

namespace tefl::device {

/// Whether the provider wants to be told: it has the functions, and the host is where operators run.
bool host_access_is_told() noexcept;
/// Asks the claimed provider's table. Called once, by claim().
void learn_host_access();

void begin_host_access(c10::DeviceIndex index, void* pointer, size_t bytes);
/// A refusal is ignored: the memory may be gone, and so may the section.
void end_host_access(c10::DeviceIndex index, void* pointer, size_t bytes) noexcept;

/// The same for memory that the calling thread allocated for the operator it runs: ended by the outermost
/// HostAccessScope, or when the memory is freed.
void begin_host_access_in_scope(c10::DeviceIndex index, void* pointer, size_t bytes);
void end_host_access_of_freed(void* pointer) noexcept;

class HostAccessScope {
 public:
  HostAccessScope() noexcept;
  ~HostAccessScope();
  HostAccessScope(const HostAccessScope&) = delete;
  HostAccessScope& operator=(const HostAccessScope&) = delete;

 private:
  size_t before_;
};

}  // namespace tefl::device
