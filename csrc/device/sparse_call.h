// One call of an operator that meets sparse tensors: their parts go in as the alias device's, results come
// back.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <utility>
#include <vector>

#include "device/alias_plan.h"

namespace tefl::device {

/// The twin of AliasCall for tensors in coordinate form, whose memory is that of two dense ones, indices and
/// values. Parts that share a Storage get aliases that share one; a tensor passed twice is one alias. Only
/// where the alias device can reach the memory.
class SparseCall {
 public:
  SparseCall(const AliasPlan& plan, const c10::OperatorHandle& op) : plan_(plan), op_(op) {}

  /// Replaces the arguments on top of `stack`. Throws where operands are on several devices.
  void enter(torch::jit::Stack& stack);
  /// Replaces the results on top of `stack`, and gives written arguments what they have become.
  void leave(torch::jit::Stack& stack);

  /// The device's index; after enter().
  c10::DeviceIndex index() const { return index_; }

 private:
  struct Twin {
    at::Tensor alias, original;
    bool written;
  };

  void to_alias(c10::IValue& value, size_t argument);
  at::Tensor alias_of(const at::Tensor& tensor, size_t argument);
  at::Tensor new_alias(const at::Tensor& tensor);
  at::Tensor alias_of_dense(const at::Tensor& tensor);

  at::Tensor original_of(const at::Tensor& result);
  at::Tensor dense_original_of(const at::Tensor& result);
  void give_back(const Twin& twin);

  const AliasPlan& plan_;
  const c10::OperatorHandle& op_;
  c10::DeviceIndex index_ = -1;
  std::vector<Twin> twins_;  // whole arguments, and the parts of sparse ones
  std::vector<std::pair<c10::Storage, c10::Storage>> storages_;  // ours, and its alias
};

/// Runs an operator's kernel of the alias device on the device's sparse tensors. One object for each
/// operator.
class SparseKernel final : public c10::OperatorKernel {
 public:
  explicit SparseKernel(const c10::FunctionSchema& schema) : plan_(schema) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack);

 private:
  AliasPlan plan_;
};

/// The same for operators that have a kernel of the alias device by some other way, or none.
void sparse_fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace tefl::device
