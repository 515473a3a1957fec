// The autograd nodes of declared ops.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/dynamo/compiled_autograd.h>
#include <torch/version.h>

#include <string>
#include <vector>

namespace tefl::dispatch {

// The one place that tells torch's versions apart: nodes are held by shared_ptr before 2.13, by intrusive_ptr
// from then on.
#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 13
template <class T, class... Args>
std::shared_ptr<T> make_node(Args&&... args) {
  return std::shared_ptr<T>(new T(std::forward<Args>(args)...), torch::autograd::deleteNode);
}
#else
template <class T, class... Args>
c10::intrusive_ptr<T> make_node(Args&&... args) {
  return c10::make_intrusive<T>(std::forward<Args>(args)...);
}
#endif

// Where an argument of a backward op comes from, see Backward in tefl/dispatch/types.py.
struct Feed {
  enum Kind { kGrad, kInput, kOutput, kNeeds } kind;
  size_t index;
};

// How an op is differentiated, with all that can be read off the two schemas once.
struct Formula {
  static constexpr int kNowhere = -1;

  Formula(const c10::FunctionSchema& forward, const std::string& backward_op, std::vector<Feed> feeds,
          const std::vector<int>& grads, const std::vector<size_t>& differentiable);

  std::string node_name;
  c10::OperatorHandle backward;
  std::vector<Feed> feeds;        // one an argument of the backward op
  std::vector<bool> may_be_none;  // whether that argument is optional
  std::vector<int> slots;         // forward argument -> number of the node's edge, or kNowhere
  std::vector<size_t> edges;      // number of the node's edge -> forward argument
  std::vector<int> gradients;     // number of the node's edge -> result of the backward op, or kNowhere
  std::vector<int> positions;     // forward result -> number of the gradient that the node gets, or kNowhere
};

// Calls the backward op on what was saved, under the policy that the forward ran under.
class BackwardNode final : public torch::autograd::Node {
 public:
  BackwardNode(const Formula& formula, int64_t token, torch::autograd::edge_list&& edges)
      : Node(std::move(edges)), formula_(formula), token_(token) {}

  // Keeps what the backward op is fed with.
  void save(const c10::IValue* inputs, const c10::IValue* outputs);

  std::string name() const override { return formula_.node_name; }
  void release_variables() override;

  // Compiled autograd: what tells this node's backward from others', and the backward as one call in a graph.
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs& args) const override;
  torch::autograd::variable_list apply_with_saved(
      const torch::autograd::variable_list& grads,
      torch::dynamo::autograd::SwapSavedVariables& saved) override;

 private:
  torch::autograd::variable_list apply(torch::autograd::variable_list&& grads) override;
  std::vector<at::Tensor> unpack();
  std::vector<bool> needs() const;

  const Formula& formula_;
  const int64_t token_;
  std::vector<torch::autograd::SavedVariable> saved_;
  std::vector<c10::IValue> constants_;
  // The form of the outputs that carry a gradient; only made where compiled autograd asks.
  mutable std::vector<torch::autograd::TypeAndSize> outputs_;
  bool is_released_ = false;
};

// Keeps the connection to the inputs of an op that has no derivative, and raises when a gradient flows back.
class RefusingNode final : public torch::autograd::Node {
 public:
  RefusingNode(const std::string& op, torch::autograd::edge_list&& edges) : Node(std::move(edges)), op_(op) {}

  std::string name() const override { return op_ + "Backward"; }

 private:
  torch::autograd::variable_list apply(torch::autograd::variable_list&& grads) override;

  const std::string& op_;
};

}  // namespace tefl::dispatch
