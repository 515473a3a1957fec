// Kernel launch: a binary is what the driver loads, a cubin, a fatbin or PTX.
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "context.h"
#include "error.h"
#include "tables.h"

namespace tefl_cuda {
namespace {

struct Function {
  CuFunction native;
  int32_t device;
};

// A loaded binary, and the functions that were asked of it.
struct Module {
  CuModule native;
  int32_t device;
  std::mutex mutex;
  std::vector<std::unique_ptr<Function>> functions;
};

Module& module_of(tefl_module handle) {
  if (handle == nullptr) invalid("a NULL module");
  return *reinterpret_cast<Module*>(handle);
}

tefl_status module_load(int32_t index, const void* image, size_t bytes, tefl_module* module) {
  return guarded([&] {
    if (image == nullptr || bytes == 0) invalid("the kernel binary is empty");
    const Current context(index);
    // PTX is a text that ends with a zero, which the caller need not have counted.
    std::string ended(static_cast<const char*>(image), bytes);
    auto loaded = std::make_unique<Module>();
    loaded->device = index;
    check(driver().module_load(&loaded->native, ended.c_str()), "cuModuleLoadData");
    *module = reinterpret_cast<tefl_module>(loaded.release());
  });
}

tefl_status module_unload(tefl_module handle) {
  return guarded([&] {
    Module& module = module_of(handle);
    const Current context(module.device);
    check(driver().module_unload(module.native), "cuModuleUnload");
    delete &module;
  });
}

tefl_status module_function(tefl_module handle, const char* name, tefl_function* function) {
  return guarded([&] {
    Module& module = module_of(handle);
    const Current context(module.device);
    auto found = std::make_unique<Function>();
    found->device = module.device;
    check(driver().module_function(&found->native, module.native, name),
          (std::string("cuModuleGetFunction of '") + name + "'").c_str());
    *function = reinterpret_cast<tefl_function>(found.get());
    const std::lock_guard<std::mutex> lock(module.mutex);
    module.functions.push_back(std::move(found));
  });
}

constexpr uint32_t kSharedWithoutAsking = 48 * 1024;

tefl_status launch(tefl_function handle, const uint32_t grid[3], const uint32_t block[3],
                   uint32_t shared_bytes, tefl_stream stream, void* const* parameters, uint32_t) {
  return guarded([&] {
    if (handle == nullptr) invalid("a NULL function");
    const Function& function = *reinterpret_cast<Function*>(handle);
    const Current context(function.device);
    if (shared_bytes > kSharedWithoutAsking) {
      check(driver().function_set_attribute(function.native, kMaxDynamicSharedBytes,
                                            static_cast<int>(shared_bytes)),
            "cuFuncSetAttribute");
    }
    check(driver().launch(function.native, grid[0], grid[1], grid[2], block[0], block[1], block[2],
                          shared_bytes, native(stream), parameters, nullptr),
          "cuLaunchKernel");
  });
}

}  // namespace

const tefl_launch* launch_table() {
  static const tefl_launch table = {sizeof(tefl_launch), module_load, module_unload, module_function, launch};
  return &table;
}

}  // namespace tefl_cuda
