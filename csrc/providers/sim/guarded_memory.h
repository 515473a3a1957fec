// Device memory that is kept from the host, and who may touch it when.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "config.h"
#include "tefl_provider.h"

namespace tefl_sim {

/// What configured_guarding() said at the first call.
Guarding guarding() noexcept;

/// The simulator's own address of `bytes` bytes of device `index`, or of the host, from `pointer` on. Throws
/// Failure where memory is guarded and they lie in no allocation.
char* own_address(int32_t index, const void* pointer, size_t bytes);

/// Opens all memory of a device while it lives: what a kernel touches is not known beforehand.
class KernelAccess {
 public:
  explicit KernelAccess(int32_t index);
  ~KernelAccess();
  KernelAccess(const KernelAccess&) = delete;
  KernelAccess& operator=(const KernelAccess&) = delete;

 private:
  const int32_t index_;
};

/// What a closed address is, in words; nothing where it is not guarded memory. Waits for no lock for long, so
/// that a signal handler may call it. `text` has room for `bytes` bytes.
bool describe_closed_address(const void* address, char* text, size_t bytes) noexcept;

/// The two functions of the table.
void fill_host_access(tefl_runtime& table);

}  // namespace tefl_sim
