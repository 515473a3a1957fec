// Kernel launch: a binary is a shared library for the host, see tefl_sim_kernel.h.
#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "device.h"
#include "guarded_memory.h"
#include "tables.h"
#include "tefl_sim_kernel.h"

namespace tefl_sim {
namespace {

// A temporary file that is gone with this object.
class TemporaryFile {
 public:
  TemporaryFile(const void* content, size_t bytes) {
    const char* folder = std::getenv("TMPDIR");
    path_ = std::string(folder != nullptr && *folder != '\0' ? folder : "/tmp") + "/tefl_sim_XXXXXX";
    const int file = mkstemp(path_.data());
    if (file < 0) throw Failure(TEFL_ERR_INTERNAL, "cannot write the kernel binary to " + path_);
    const auto* rest = static_cast<const char*>(content);
    ssize_t written = 1;
    for (; bytes > 0 && written > 0; rest += written, bytes -= static_cast<size_t>(written)) {
      written = write(file, rest, bytes);
      if (written < 0) written = 0;
    }
    close(file);
    if (bytes > 0) {
      unlink(path_.c_str());
      throw Failure(TEFL_ERR_INTERNAL, "cannot write the kernel binary to " + path_);
    }
  }
  ~TemporaryFile() { unlink(path_.c_str()); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  const char* path() const { return path_.c_str(); }

 private:
  std::string path_;
};

// A loaded binary. Launches hold it, so that unloading one waits for nobody and pulls no code away.
struct Module {
  Module(int32_t device, void* library) : device(device), library(library) {}
  ~Module() { dlclose(library); }
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  const int32_t device;
  void* const library;
};

struct Function {
  std::shared_ptr<Module> module;
  const tefl_sim_kernel* kernel;
  std::string name;
};

Registry<tefl_module, Module>& modules() {
  static auto* registry = new Registry<tefl_module, Module>("module");
  return *registry;
}

Registry<tefl_function, Function>& functions() {
  static auto* registry = new Registry<tefl_function, Function>("function");
  return *registry;
}

tefl_status module_load(int32_t index, const void* image, size_t bytes, tefl_module* module) {
  return guarded(Call::kModuleLoad, [&] {
    check_device(index);
    if (image == nullptr || bytes == 0) invalid("the kernel binary is empty");
    const TemporaryFile file(image, bytes);
    void* library = dlopen(file.path(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      const char* reason = dlerror();
      invalid(std::string("the kernel binary is no shared library for this machine: ") +
              (reason ? reason : ""));
    }
    *module = modules().add(std::make_shared<Module>(index, library));
  });
}

tefl_status module_unload(tefl_module module) {
  return guarded(Call::kModuleUnload, [&] {
    const auto unloaded = modules().remove(module);
    for (const auto& function : functions().all()) {
      if (function->module == unloaded) functions().remove(reinterpret_cast<tefl_function>(function.get()));
    }
  });
}

tefl_status module_function(tefl_module module, const char* name, tefl_function* function) {
  return guarded(Call::kModuleFunction, [&] {
    const auto found = modules().find(module);
    const auto* kernel = static_cast<const tefl_sim_kernel*>(dlsym(found->library, name));
    if (kernel == nullptr) invalid(std::string("the binary has no kernel '") + name + "'");
    *function = functions().add(std::make_shared<Function>(Function{found, kernel, name}));
  });
}

// One on its way: values copied, because the caller's are gone when the stream gets there.
struct Launch {
  std::shared_ptr<Function> function;
  tefl_sim_block block{};
  std::vector<std::vector<char>> values;

  void run() {
    std::vector<void*> parameters;
    for (auto& value : values) parameters.push_back(value.data());
    const std::unique_ptr<void, void (*)(void*)> shared(shared_memory(), std::free);
    block.shared = shared.get();
    for (block.index[2] = 0; block.index[2] < block.grid[2]; ++block.index[2]) {
      for (block.index[1] = 0; block.index[1] < block.grid[1]; ++block.index[1]) {
        for (block.index[0] = 0; block.index[0] < block.grid[0]; ++block.index[0])
          run_block(parameters.data());
      }
    }
  }

 private:
  void* shared_memory() const {
    if (block.shared_bytes == 0) return nullptr;
    void* memory = std::aligned_alloc(64, (size_t{block.shared_bytes} + 63) / 64 * 64);
    if (memory == nullptr) throw std::bad_alloc();
    return memory;
  }

  void run_block(void* const* parameters) {
    const int32_t code = function->kernel->run(&block, parameters);
    if (code != 0) {
      throw Failure(TEFL_ERR_DEVICE,
                    "kernel '" + function->name + "' failed with code " + std::to_string(code));
    }
  }
};

void check_launch(const Function& function, const Stream& stream, const uint32_t* grid, const uint32_t* block,
                  uint32_t parameter_count) {
  if (function.module->device != stream.device) {
    invalid("kernel '" + function.name + "' was loaded on device " + std::to_string(function.module->device) +
            ", the stream belongs to device " + std::to_string(stream.device));
  }
  for (int i = 0; i < 3; ++i) {
    if (grid[i] == 0 || block[i] == 0)
      invalid("kernel '" + function.name + "': a grid or block dimension is 0");
  }
  if (parameter_count != function.kernel->parameter_count) {
    invalid("kernel '" + function.name + "' takes " + std::to_string(function.kernel->parameter_count) +
            " parameters, got " + std::to_string(parameter_count));
  }
}

tefl_status launch(tefl_function function, const uint32_t grid[3], const uint32_t block[3],
                   uint32_t shared_bytes, tefl_stream stream, void* const* parameters,
                   uint32_t parameter_count) {
  return guarded([&] {
    auto call = std::make_shared<Launch>();
    call->function = functions().find(function);
    const auto target = streams().find(stream);
    check_launch(*call->function, *target, grid, block, parameter_count);
    std::copy(grid, grid + 3, call->block.grid);
    std::copy(block, block + 3, call->block.threads);
    call->block.shared_bytes = shared_bytes;
    for (uint32_t i = 0; i < parameter_count; ++i) {
      const auto* value = static_cast<const char*>(parameters[i]);
      call->values.emplace_back(value, value + call->function->kernel->parameter_bytes[i]);
    }
    enqueue_operation(
        *target, Call::kLaunch,
        [call, index = target->device] {
          const KernelAccess open(index);
          call->run();
        },
        "kernel '" + call->function->name + "'");
  });
}

}  // namespace

const tefl_launch* launch_table() {
  static const tefl_launch table = {sizeof(tefl_launch), module_load, module_unload, module_function, launch};
  return &table;
}

}  // namespace tefl_sim
