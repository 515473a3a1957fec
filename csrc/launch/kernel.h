// A binary and its kernels, loaded on each device when first launched there.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/SmallVector.h>

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "launch/launcher.h"

namespace tefl::launch {

/// The machine code of one or more kernels. Shared by its kernels; loaded once a device, thread-safely; never
/// unloaded, since launches may be under way until the process ends.
class Binary {
 public:
  explicit Binary(std::string image) : image_(std::move(image)) {}

  /// The function `name` on `device`, which is current and native to `launcher`.
  Function function(const Launcher& launcher, c10::Device device, const std::string& name);

 private:
  const std::string image_;
  std::mutex mutex_;
  std::map<std::pair<c10::DeviceType, c10::DeviceIndex>, Module> modules_;
};

/// The handle of the current stream of `native`, a device that is native to its launcher.
void* current_stream(c10::Device native);

/// The values of a kernel's parameters, each at the start of a word of its own.
using Words = c10::SmallVector<uint64_t, 24>;

/// One function of a binary, and the types of its parameters.
class Kernel {
 public:
  /// `signature` has one letter for each parameter:
  ///   p  pointer      i  int32      l  int64      f  float32      d  float64
  ///   0  pointer that is always null and for which the caller passes nothing
  Kernel(std::shared_ptr<Binary> binary, std::string name, std::string signature);

  const std::string& name() const { return name_; }
  const std::string& signature() const { return signature_; }

  /// Enqueues the kernel on `device`'s current stream. A grid with no blocks launches nothing. Errors name
  /// the kernel, the device and the shape of the launch.
  void launch(c10::Device device, const Config& config, const Words& words);

  /// The same on `stream` of `native`, which is current and native to `launcher`.
  void enqueue(const Launcher& launcher, c10::Device native, void* stream, const Config& config,
               const Words& words);

 private:
  static constexpr size_t kDevices = 128;  // of each of the two native device types

  struct Loaded {
    std::atomic<Function> function{nullptr};
    std::atomic<uint32_t> shared_bytes{kFreeSharedBytes};
  };
  // What a launch may use without asking.
  static constexpr uint32_t kFreeSharedBytes = 48 * 1024;

  Function ready(const Launcher& launcher, c10::Device native, uint32_t shared_bytes);
  void note(c10::Device native, void* stream) const;

  const std::shared_ptr<Binary> binary_;
  const std::string name_, signature_;
  const char* const lasting_name_;  // the same, for the stream's log
  // Read without a lock at every launch.
  std::array<Loaded, 2 * kDevices> loaded_{};
};

}  // namespace tefl::launch
