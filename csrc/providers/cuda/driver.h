// The functions of libcuda.so.1 that the provider uses, looked up by dlopen: the build needs no CUDA, and a
// machine without an NVIDIA driver can load the provider and be told so.
#pragma once

#include <cstddef>
#include <string>

namespace tefl_cuda {

// Types and values of the driver's stable C ABI.
using CuResult = int;
using CuDevice = int;
using CuContext = struct CuContextTag*;
using CuStream = struct CuStreamTag*;
using CuEvent = struct CuEventTag*;
using CuPointer = unsigned long long;  // CUdeviceptr

constexpr CuResult kSuccess = 0, kInvalidValue = 1, kOutOfMemory = 2, kNotInitialized = 3, kNoDevice = 100,
                   kInvalidDevice = 101, kInvalidHandle = 400, kNotReady = 600, kNotSupported = 801;
constexpr int kMultiprocessorCount = 16, kCapabilityMajor = 75, kCapabilityMinor = 76;  // CUdevice_attribute
constexpr unsigned kNonBlockingStream = 1, kEventWithoutTiming = 2, kPortableHostMemory = 1;

// X(member, symbol, parameters)
#define TEFL_CUDA_DRIVER(X)                                                     \
  X(init, "cuInit", (unsigned))                                                 \
  X(error_name, "cuGetErrorName", (CuResult, const char**))                     \
  X(error_string, "cuGetErrorString", (CuResult, const char**))                 \
  X(device_count, "cuDeviceGetCount", (int*))                                   \
  X(device_get, "cuDeviceGet", (CuDevice*, int))                                \
  X(device_name, "cuDeviceGetName", (char*, int, CuDevice))                     \
  X(device_memory, "cuDeviceTotalMem_v2", (size_t*, CuDevice))                  \
  X(device_attribute, "cuDeviceGetAttribute", (int*, int, CuDevice))            \
  X(primary_context_retain, "cuDevicePrimaryCtxRetain", (CuContext*, CuDevice)) \
  X(context_get_current, "cuCtxGetCurrent", (CuContext*))                       \
  X(context_push, "cuCtxPushCurrent_v2", (CuContext))                           \
  X(context_pop, "cuCtxPopCurrent_v2", (CuContext*))                            \
  X(context_synchronize, "cuCtxSynchronize", ())                                \
  X(priority_range, "cuCtxGetStreamPriorityRange", (int*, int*))                \
  X(memory_allocate, "cuMemAlloc_v2", (CuPointer*, size_t))                     \
  X(memory_free, "cuMemFree_v2", (CuPointer))                                   \
  X(memory_info, "cuMemGetInfo_v2", (size_t*, size_t*))                         \
  X(host_allocate, "cuMemHostAlloc", (void**, size_t, unsigned))                \
  X(host_free, "cuMemFreeHost", (void*))                                        \
  X(copy, "cuMemcpyAsync", (CuPointer, CuPointer, size_t, CuStream))            \
  X(fill, "cuMemsetD8Async", (CuPointer, unsigned char, size_t, CuStream))      \
  X(stream_create, "cuStreamCreateWithPriority", (CuStream*, unsigned, int))    \
  X(stream_destroy, "cuStreamDestroy_v2", (CuStream))                           \
  X(stream_context, "cuStreamGetCtx", (CuStream, CuContext*))                   \
  X(stream_query, "cuStreamQuery", (CuStream))                                  \
  X(stream_synchronize, "cuStreamSynchronize", (CuStream))                      \
  X(stream_wait_event, "cuStreamWaitEvent", (CuStream, CuEvent, unsigned))      \
  X(event_create, "cuEventCreate", (CuEvent*, unsigned))                        \
  X(event_destroy, "cuEventDestroy_v2", (CuEvent))                              \
  X(event_record, "cuEventRecord", (CuEvent, CuStream))                         \
  X(event_query, "cuEventQuery", (CuEvent))                                     \
  X(event_synchronize, "cuEventSynchronize", (CuEvent))                         \
  X(event_elapsed, "cuEventElapsedTime", (float*, CuEvent, CuEvent))

struct Driver {
#define TEFL_DECLARE(member, symbol, parameters) CuResult(*member) parameters = nullptr;
  TEFL_CUDA_DRIVER(TEFL_DECLARE)
#undef TEFL_DECLARE
};

/// The driver's functions. Throws Failure, with the reason and its remedy, where they cannot be had. Does not
/// initialise the driver.
const Driver& driver();

/// Throws a Failure that names `function` unless `result` is success.
void check(CuResult result, const char* function);

/// The status for a driver's result.
int status_of(CuResult result);

}  // namespace tefl_cuda
