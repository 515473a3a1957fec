// Faults that TEFL_SIM_FAULTS asks for.
#pragma once

#include <cstdint>

#include "error.h"

namespace tefl_sim {

/// What can be made to fail: the functions of the tables, and at the end work that was enqueued. In the order
/// of `kCallNames` in faults.cpp.
enum class Call : uint8_t {
  kDeviceProperties,
  kDeviceSynchronize,
  kMalloc,
  kFree,
  kMemoryInfo,
  kHostMalloc,
  kHostFree,
  kMemcpyAsync,
  kMemsetAsync,
  kStreamPriorityRange,
  kStreamCreate,
  kStreamDestroy,
  kStreamDefault,
  kStreamQuery,
  kStreamSynchronize,
  kStreamWaitEvent,
  kEventCreate,
  kEventDestroy,
  kEventRecord,
  kEventQuery,
  kEventSynchronize,
  kEventElapsedMs,
  kModuleLoad,
  kModuleUnload,
  kModuleFunction,
  kNever,   // functions that cannot be made to fail
  kMemcpy,  // a copy fails when the stream gets to it
  kMemset,
  kLaunch,
  kHang,  // any of the three never ends
};

/// Reads TEFL_SIM_FAULTS: "malloc:100,stream_synchronize:3*", a function and which of its calls fail, with a
/// * every such call. Throws Failure on anything else.
void configure_faults();

/// Counts a call, and says whether it is one that is to fail.
bool fault_is_due(Call call) noexcept;

/// Throws Failure, with the status that a real failure of the function has, where one is due.
void fail_if_due(Call call);

/// Runs `body` as `guarded` does, unless the call is one that is to fail.
template <typename Body>
tefl_status guarded(Call call, Body&& body) noexcept {
  return guarded([&] {
    fail_if_due(call);
    return body();
  });
}

}  // namespace tefl_sim
