// How an implementation in native code is handed to the router: a capsule that Python does not look into.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace tefl::dispatch {

// Called without the GIL, it replaces the arguments on the stack by the results, or throws and leaves the
// arguments as they are. `state` is passed on as it is and lives as long as the capsule does.
struct NativeKernel {
  void (*function)(void* state, const c10::OperatorHandle& op, torch::jit::Stack* stack);
  void* state;
};

// The name of a capsule that holds a NativeKernel.
constexpr const char* kNativeKernel = "tefl.native_kernel";

}  // namespace tefl::dispatch
