// Loading a device binary and launching a function of it, on whichever runtime serves a tensor's device.
#pragma once

#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace tefl::launch {

struct Size3 {
  uint32_t x = 1, y = 1, z = 1;
};

/// The shape of one launch: blocks, threads in a block, dynamic shared memory of a block.
struct Config {
  Size3 grid, block;
  uint32_t shared_bytes = 0;
};

/// A runtime's handles. A module belongs to the device it was loaded on, a function to its module.
using Module = void*;
using Function = void*;

/// One way to run compiled kernels. There are two: the CUDA driver, and the claimed provider's launch table.
/// All functions may be called from any thread and throw a c10::Error that names the runtime's function and
/// its reason; torch.AcceleratorError's C++ type where earlier asynchronous work failed.
class Launcher {
 public:
  virtual ~Launcher() = default;

  /// The device as this launcher's runtime knows it: a claimed device that is an alias of cuda runs there.
  virtual c10::Device native(c10::Device device) const = 0;

  /// Loads `bytes` bytes of machine code on `device`, which is current and native.
  virtual Module load(c10::Device device, const void* image, size_t bytes) const = 0;

  virtual Function function(Module module, const std::string& name) const = 0;

  /// Lets `function` be launched with `shared_bytes` of dynamic shared memory.
  virtual void allow_shared(Function function, uint32_t shared_bytes) const = 0;

  /// Enqueues `function` on `stream` of `device`, which is current and native. parameters[i] points to the
  /// value of parameter i.
  virtual void launch(c10::Device device, Function function, const Config& config, void* stream,
                      void* const* parameters, uint32_t parameter_count) const = 0;
};

/// The launcher that serves tensors on `device`; throws where there is none, and says why.
const Launcher& launcher_for(c10::Device device);

/// Why `launcher_for(device)` would throw; empty where it would not. Starts no runtime.
std::string unavailable(c10::DeviceType type);

}  // namespace tefl::launch
