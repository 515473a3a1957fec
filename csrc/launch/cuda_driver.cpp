#include "launch/cuda_driver.h"

#include <dlfcn.h>

#include <atomic>
#include <memory>

namespace tefl::launch {
namespace {

constexpr const char* kLibrary = "libcuda.so.1";

std::string last_dl_error() {
  const char* reason = dlerror();
  return reason ? reason : "";
}

// The library stays open for the life of the process, as the CUDA runtime keeps it.
std::unique_ptr<CudaDriver> open_driver(std::string& reason) {
  void* library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    reason = std::string("the CUDA driver library ") + kLibrary + " cannot be loaded (" + last_dl_error() +
             "): install the NVIDIA driver, or add its folder to LD_LIBRARY_PATH";
    return nullptr;
  }
  auto driver = std::make_unique<CudaDriver>();
#define TEFL_LOOK_UP(member, symbol, parameters)                                       \
  driver->member = reinterpret_cast<decltype(driver->member)>(dlsym(library, symbol)); \
  if (driver->member == nullptr) {                                                     \
    reason = std::string(kLibrary) + " has no " + symbol +                             \
             ": the NVIDIA driver is too old, CUDA 12 or newer is needed";             \
    return nullptr;                                                                    \
  }
  TEFL_CUDA_FUNCTIONS(TEFL_LOOK_UP)
#undef TEFL_LOOK_UP
  if (const CuResult result = driver->init(0); result != kCudaSuccess) {
    reason = "cuInit failed: " + describe(*driver, result);
    return nullptr;
  }
  return driver;
}

}  // namespace

const CudaDriver* find_cuda_driver(std::string& reason) {
  static std::atomic<const CudaDriver*> found{nullptr};
  if (const CudaDriver* driver = found.load(std::memory_order_acquire)) return driver;
  const CudaDriver* opened = open_driver(reason).release();
  if (opened == nullptr) return nullptr;
  // Of two threads that open it at once both have the same functions: the loser's table is dropped.
  const CudaDriver* first = nullptr;
  if (found.compare_exchange_strong(first, opened)) return opened;
  delete opened;
  return first;
}

std::string describe(const CudaDriver& driver, CuResult result) {
  const char *name = nullptr, *text = nullptr;
  driver.error_name(result, &name);
  driver.error_string(result, &text);
  return std::string(name ? name : "error " + std::to_string(result)) + " (" + (text ? text : "unknown") +
         ")";
}

}  // namespace tefl::launch
