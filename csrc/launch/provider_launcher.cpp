#include "launch/provider_launcher.h"

#include "device/provider.h"

namespace tefl::launch {
namespace {

const tefl_launch& table() { return *device::active().launch; }

class ProviderLauncher final : public Launcher {
 public:
  c10::Device native(c10::Device device) const override { return device; }

  Module load(c10::Device device, const void* image, size_t bytes) const override {
    device::ensure_initialized();
    tefl_module module = nullptr;
    device::check(table().module_load(device.index(), image, bytes, &module), "module_load");
    return module;
  }

  Function function(Module module, const std::string& name) const override {
    tefl_function function = nullptr;
    device::check(table().module_function(static_cast<tefl_module>(module), name.c_str(), &function),
                  "module_function");
    return function;
  }

  void allow_shared(Function, uint32_t) const override {}  // a provider's launch takes any size it has

  void launch(c10::Device, Function function, const Config& config, void* stream, void* const* parameters,
              uint32_t parameter_count) const override {
    const auto& [grid, block, shared_bytes] = config;
    const uint32_t blocks[3] = {grid.x, grid.y, grid.z}, threads[3] = {block.x, block.y, block.z};
    device::check(table().launch(static_cast<tefl_function>(function), blocks, threads, shared_bytes,
                                 static_cast<tefl_stream>(stream), parameters, parameter_count),
                  "launch");
  }
};

}  // namespace

const Launcher& provider_launcher() {
  static const auto* launcher = new ProviderLauncher;
  return *launcher;
}

}  // namespace tefl::launch
