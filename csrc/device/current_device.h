// Which devices there are and which one a thread works on.
#pragma once

#include <c10/core/Device.h>

namespace tefl::device {

constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;

/// How many devices the process sees; 0 where the provider cannot say. Starts no runtime.
c10::DeviceIndex device_count() noexcept;

/// The calling thread's current device; 0 until somebody sets another.
c10::DeviceIndex current_device() noexcept;

/// Makes `index` the calling thread's current device and returns the one before. A negative index changes
/// nothing; one out of range is an error that says how many there are. Starts the runtime where the vendor's
/// side has a current device of its own.
c10::DeviceIndex exchange_device(c10::DeviceIndex index);

/// The same for destructors: no range check, and a provider's refusal is ignored.
void set_device_unchecked(c10::DeviceIndex index) noexcept;

/// `index` if it names a device, the current device if it is negative, else an error.
c10::DeviceIndex resolve_index(c10::DeviceIndex index);

inline c10::Device device_at(c10::DeviceIndex index) { return {kType, index}; }

}  // namespace tefl::device
