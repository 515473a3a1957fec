// Contexts: each device's primary one, which PyTorch's CUDA runtime uses too, made current for a call.
#pragma once

#include <cstdint>

#include "driver.h"
#include "tefl_provider.h"

namespace tefl_cuda {

constexpr int32_t kMaxDevices = 128;

/// Starts the driver. Called once, before anything here.
void start();
bool started() noexcept;

/// How many devices the start found; a forked child can no longer ask the driver.
int32_t known_devices() noexcept;

/// The driver's number of device `index`. Throws Failure if there is no such device.
CuDevice device_at(int32_t index);

/// Makes a context the calling thread's current one while it lives. The CUDA runtime takes its current device
/// from the context, so the caller's must be there again afterwards.
class Current {
 public:
  /// Device `index`'s.
  explicit Current(int32_t index);
  /// The one that `stream` belongs to.
  explicit Current(tefl_stream stream);
  ~Current();
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;
};

/// A device's default stream as a handle of the ABI: the driver's is NULL for every device.
tefl_stream default_stream_of(int32_t index);

/// The driver's stream for a handle: one of `stream_create`, a default stream, or NULL, which is the default
/// stream of the calling thread's current device.
CuStream native(tefl_stream stream) noexcept;

}  // namespace tefl_cuda
