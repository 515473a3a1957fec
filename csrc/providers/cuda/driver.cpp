#include "driver.h"

#include <dlfcn.h>

#include "error.h"

namespace tefl_cuda {
namespace {

constexpr const char* kLibrary = "libcuda.so.1";

[[noreturn]] void no_library() {
  const char* reason = dlerror();
  throw Failure(TEFL_ERR_UNSUPPORTED,
                std::string("the CUDA driver library ") + kLibrary + " cannot be loaded (" +
                    (reason != nullptr ? reason : "no reason") +
                    "): install the NVIDIA driver, or add its folder to LD_LIBRARY_PATH");
}

// The library stays open for the life of the process, as PyTorch keeps it.
Driver open_driver() {
  void* library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) no_library();
  Driver found;
#define TEFL_LOOK_UP(member, symbol, parameters)                                                           \
  found.member = reinterpret_cast<decltype(found.member)>(dlsym(library, symbol));                         \
  if (found.member == nullptr) {                                                                           \
    throw Failure(TEFL_ERR_UNSUPPORTED, std::string(kLibrary) + " has no " + symbol +                      \
                                            ": the NVIDIA driver is too old, CUDA 12 or newer is needed"); \
  }
  TEFL_CUDA_DRIVER(TEFL_LOOK_UP)
#undef TEFL_LOOK_UP
  return found;
}

// Results that tell of earlier work: the context is lost, whatever call happens to report it.
bool is_asynchronous(CuResult result) {
  switch (result) {
    case 214:  // CUDA_ERROR_ECC_UNCORRECTABLE
    case 700:  // CUDA_ERROR_ILLEGAL_ADDRESS
    case 702:  // CUDA_ERROR_LAUNCH_TIMEOUT
    case 710:  // CUDA_ERROR_ASSERT
    case 714:  // CUDA_ERROR_HARDWARE_STACK_ERROR
    case 715:  // CUDA_ERROR_ILLEGAL_INSTRUCTION
    case 716:  // CUDA_ERROR_MISALIGNED_ADDRESS
    case 717:  // CUDA_ERROR_INVALID_ADDRESS_SPACE
    case 718:  // CUDA_ERROR_INVALID_PC
    case 719:  // CUDA_ERROR_LAUNCH_FAILED
      return true;
    default:
      return false;
  }
}

std::string describe(CuResult result) {
  const char *name = nullptr, *text = nullptr;
  driver().error_name(result, &name);
  driver().error_string(result, &text);
  return std::string(name != nullptr ? name : "error " + std::to_string(result)) + " (" +
         (text != nullptr ? text : "unknown") + ")";
}

}  // namespace

const Driver& driver() {
  static const Driver opened = open_driver();  // tried again at the next call if this one throws
  return opened;
}

int status_of(CuResult result) {
  switch (result) {
    case kSuccess:
      return TEFL_OK;
    case kNotReady:
      return TEFL_NOT_READY;
    case kOutOfMemory:
      return TEFL_ERR_OUT_OF_MEMORY;
    case kInvalidValue:
    case kNoDevice:
    case kInvalidDevice:
    case kInvalidHandle:
      return TEFL_ERR_INVALID;
    case kNotSupported:
      return TEFL_ERR_UNSUPPORTED;
    default:
      return is_asynchronous(result) ? TEFL_ERR_DEVICE : TEFL_ERR_INTERNAL;
  }
}

void check(CuResult result, const char* function) {
  if (result == kSuccess) return;
  const int status = result == kNotReady ? TEFL_ERR_INVALID : status_of(result);
  throw Failure(status, std::string(function) + ": " + describe(result));
}

}  // namespace tefl_cuda
