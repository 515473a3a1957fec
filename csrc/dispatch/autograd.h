// The kernel of an op's Autograd key: records a node where a gradient is wanted, and calls the op below.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/util/FunctionRef.h>

#include <atomic>
#include <string>
#include <vector>

#include "dispatch/node.h"

namespace tefl::dispatch {

// The Backward of a declaration, see tefl/dispatch/types.py.
struct BackwardData {
  std::string op;  // with its namespace
  std::vector<Feed> feeds;
  std::vector<int> grads;
  std::vector<size_t> differentiable;
};

class Autograd {
 public:
  Autograd(const c10::OperatorHandle& op, std::optional<BackwardData> backward);

  void call(c10::DispatchKeySet keys, torch::jit::Stack* stack);

 private:
  // One call: its keys, its stack, and where the arguments begin there.
  struct Call {
    c10::DispatchKeySet keys;
    torch::jit::Stack* stack;
    size_t begin;
  };

  void below(const Call& call) const;
  void record(const Call& call, const Formula& formula) const;
  void record_refusal(const Call& call) const;
  void each_tensor(const Call& call, c10::function_ref<void(const at::Tensor&)> visit) const;
  // Whether a tensor requires grad. Raises where one has a forward-mode tangent.
  bool examine(const Call& call) const;
  // A node has edges to the arguments that are tensors, and to none in a list.
  void refuse_gradients_of_lists(const Call& call) const;
  void refuse_unseen_writes(const Call& call) const;
  void bump_versions(const std::vector<at::Tensor>& written) const;
  std::vector<at::Tensor> written(const Call& call) const;
  const Formula* formula();

  const c10::OperatorHandle op_;
  const std::string name_;  // without namespace
  const std::optional<BackwardData> backward_;
  std::vector<size_t> tensors_;  // arguments that are tensors or lists of them
  std::vector<size_t> writes_;   // those of them that the op writes
  // Made at the first use, since the backward op is declared after the forward.
  std::atomic<const Formula*> formula_{nullptr};
};

}  // namespace tefl::dispatch
