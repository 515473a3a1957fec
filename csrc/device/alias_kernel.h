// The one boxed kernel that gives the device all of ATen.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/DispatchKeySet.h>

#include "device/alias_plan.h"

namespace tefl::device {

/// Runs an operator's kernel of the alias device on the device's memory, or on copies of it where nobody else
/// can compute on it. One object for each operator.
class AliasKernel final : public c10::OperatorKernel {
 public:
  explicit AliasKernel(const c10::FunctionSchema& schema) : plan_(schema) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack);

 private:
  AliasPlan plan_;
};

/// The same for operators of other libraries, which have a kernel for the alias device and none for ours. An
/// operator that has neither is an error that says so.
void alias_fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace tefl::device
