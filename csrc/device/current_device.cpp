#include "device/current_device.h"

#include <c10/util/Exception.h>

#include <atomic>
#include <string>

#include "device/provider.h"
#include "device/shared.h"

namespace tefl::device {
namespace {

thread_local c10::DeviceIndex current = 0;
std::atomic<c10::DeviceIndex> known_count{-1};

// The vendor's own notion of a current device, if there is one, follows ours.
tefl_status tell_provider(c10::DeviceIndex index) noexcept {
  auto* set = runtime().set_current_device;
  return set != nullptr && is_initialized() ? set(index) : TEFL_OK;
}

void check_index(c10::DeviceIndex index) {
  TORCH_CHECK(index < device_count(), device_at(index), " does not exist: this process sees ",
              std::to_string(device_count()), " ", device_name(), " device(s), numbered from 0");
}

C10_NOINLINE c10::DeviceIndex query_device_count() noexcept {
  int32_t found = 0;
  if (!is_active() || runtime().device_count(&found) != TEFL_OK) return 0;
  const auto count = static_cast<c10::DeviceIndex>(found);
  known_count = count;
  return count;
}

}  // namespace

c10::DeviceIndex device_count() noexcept {
  const c10::DeviceIndex count = known_count.load(std::memory_order_relaxed);
  return C10_LIKELY(count >= 0) ? count : query_device_count();
}

// With one device there is nothing to ask; of several, a GPU's own current device counts.
c10::DeviceIndex current_device() noexcept {
  if (known_count.load(std::memory_order_relaxed) == 1) return 0;
  const auto* shared = started_shared_guard();
  return C10_UNLIKELY(shared != nullptr) ? shared->getDevice().index() : current;
}

c10::DeviceIndex exchange_device(c10::DeviceIndex index) {
  const c10::DeviceIndex before = current_device();
  if (index < 0 || index == before) return before;
  check_index(index);
  // Or the vendor's side would miss it.
  if (runtime().set_current_device != nullptr || shared_guard()) ensure_initialized();
  check(tell_provider(index), "set_current_device");
  current = index;
  if (shared_guard()) shared_guard()->setDevice(shared_device(index));
  return before;
}

void set_device_unchecked(c10::DeviceIndex index) noexcept {
  if (index < 0 || index == current_device()) return;
  tell_provider(index);
  current = index;
  if (const auto* shared = started_shared_guard()) shared->uncheckedSetDevice(shared_device(index));
}

c10::DeviceIndex resolve_index(c10::DeviceIndex index) {
  if (index < 0) return current_device();
  check_index(index);
  return index;
}

}  // namespace tefl::device
