// The functions of libcuda.so.1 that launching needs, looked up by dlopen. Types and values are those of the
// driver's stable C ABI, written down here so that the build needs no CUDA header.
#pragma once

#include <cstddef>
#include <string>

namespace tefl::launch {

using CuResult = int;
using CuDevice = int;
using CuContext = void*;
using CuModule = void*;
using CuFunction = void*;
using CuStream = void*;

constexpr CuResult kCudaSuccess = 0;
constexpr CuResult kCudaOutOfMemory = 2;
constexpr int kMaxDynamicSharedBytes = 8;  // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
constexpr int kCaptureModeRelaxed = 2;     // CU_STREAM_CAPTURE_MODE_RELAXED

// X(member, symbol, parameters)
#define TEFL_CUDA_FUNCTIONS(X)                                                                   \
  X(init, "cuInit", (unsigned))                                                                  \
  X(error_name, "cuGetErrorName", (CuResult, const char**))                                      \
  X(error_string, "cuGetErrorString", (CuResult, const char**))                                  \
  X(device_get, "cuDeviceGet", (CuDevice*, int))                                                 \
  X(primary_context_retain, "cuDevicePrimaryCtxRetain", (CuContext*, CuDevice))                  \
  X(context_get_current, "cuCtxGetCurrent", (CuContext*))                                        \
  X(context_set_current, "cuCtxSetCurrent", (CuContext))                                         \
  X(capture_mode, "cuThreadExchangeStreamCaptureMode", (int*))                                   \
  X(module_load_data, "cuModuleLoadData", (CuModule*, const void*))                              \
  X(module_get_function, "cuModuleGetFunction", (CuFunction*, CuModule, const char*))            \
  X(function_set_attribute, "cuFuncSetAttribute", (CuFunction, int, int))                        \
  X(launch_kernel, "cuLaunchKernel",                                                             \
    (CuFunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CuStream, \
     void* const*, void**))

struct CudaDriver {
#define TEFL_DECLARE(member, symbol, parameters) CuResult(*member) parameters = nullptr;
  TEFL_CUDA_FUNCTIONS(TEFL_DECLARE)
#undef TEFL_DECLARE
};

/// The driver, or NULL and in `reason` why it cannot be used. A driver once found stays.
const CudaDriver* find_cuda_driver(std::string& reason);

/// "CUDA_ERROR_INVALID_VALUE (invalid argument)".
std::string describe(const CudaDriver& driver, CuResult result);

}  // namespace tefl::launch
