#include "dispatch/autograd.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include "dispatch/policy.h"
#include "dispatch/tensors.h"

namespace tefl::dispatch {
namespace {

using torch::autograd::Edge;
using torch::autograd::edge_list;

Edge edge_to(const at::Tensor& tensor) {
  const bool is_connected = tensor.defined() && tensor.requires_grad();
  return is_connected ? torch::autograd::impl::gradient_edge(tensor) : Edge();
}

Edge edge_to(const c10::IValue& value) { return value.isTensor() ? edge_to(value.toTensor()) : Edge(); }

bool wants_gradient(const c10::IValue& value) {
  bool found = false;
  each_tensor(value, [&](const at::Tensor& tensor) {
    found = found || (tensor.defined() && tensor.requires_grad());
  });
  return found;
}

// Connects a result to the node. One that is an argument handed back, or that has a history already, is
// connected as a tensor of its own, so that nobody else's history changes.
template <class Pointer>
void connect(c10::IValue& result, const Pointer& node) {
  if (!result.isTensor() || !result.toTensor().defined() ||
      !torch::autograd::isDifferentiableType(result.toTensor().scalar_type())) {
    node->add_input_metadata(torch::autograd::Node::undefined_input());
    return;
  }
  if (result.toTensor().requires_grad()) {
    const at::AutoDispatchBelowADInplaceOrView below;
    result = result.toTensor().detach();
  }
  torch::autograd::set_history(result.toTensor(), node);
}

}  // namespace

Autograd::Autograd(const c10::OperatorHandle& op, std::optional<BackwardData> backward)
    : op_(op),
      name_(op.operator_name().name.substr(op.operator_name().name.find("::") + 2)),
      backward_(std::move(backward)) {
  const auto& arguments = op.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!mentions_tensor(arguments[i])) continue;
    tensors_.push_back(i);
    if (is_written(arguments[i])) writes_.push_back(i);
  }
}

void Autograd::call(c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const Call call{keys & c10::after_autograd_keyset, stack, stack->size() - op_.schema().arguments().size()};
  const bool is_wanted = examine(call) && c10::GradMode::is_enabled();
  if (!writes_.empty()) {
    if (is_wanted) refuse_unseen_writes(call);
    const std::vector<at::Tensor> written = this->written(call);
    below(call);
    return bump_versions(written);
  }
  if (!is_wanted) return below(call);
  if (backward_) return record(call, *formula());
  record_refusal(call);
}

void Autograd::below(const Call& call) const {
  // Implementations are left PyTorch's count of writes, by which the router knows one that writes its input.
  const at::AutoDispatchBelowAutograd guard;
  op_.redispatchBoxed(call.keys, call.stack);
}

void Autograd::record(const Call& call, const Formula& formula) const {
  refuse_gradients_of_lists(call);
  const c10::IValue* const arguments = call.stack->data() + call.begin;
  edge_list edges;
  edges.reserve(formula.edges.size());
  for (const size_t argument : formula.edges) edges.push_back(edge_to(arguments[argument]));
  const auto node = make_node<BackwardNode>(formula, current_token(), std::move(edges));
  // The op takes its arguments off the stack.
  const c10::SmallVector<c10::IValue, 8> inputs(arguments, arguments + op_.schema().arguments().size());
  below(call);
  c10::IValue* const results = call.stack->data() + call.begin;
  for (size_t i = 0; i < formula.positions.size(); ++i) {
    if (formula.positions[i] != Formula::kNowhere) connect(results[i], node);
  }
  node->save(inputs.data(), results);
}

void Autograd::record_refusal(const Call& call) const {
  edge_list edges;
  each_tensor(call, [&](const at::Tensor& tensor) { edges.push_back(edge_to(tensor)); });
  const auto node = make_node<RefusingNode>(name_, std::move(edges));
  below(call);
  for (size_t i = call.begin; i < call.stack->size(); ++i) connect((*call.stack)[i], node);
}

void Autograd::each_tensor(const Call& call, c10::function_ref<void(const at::Tensor&)> visit) const {
  for (const size_t i : tensors_) dispatch::each_tensor((*call.stack)[call.begin + i], visit);
}

bool Autograd::examine(const Call& call) const {
  bool requires_grad = false;
  each_tensor(call, [&](const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    TORCH_CHECK_NOT_IMPLEMENTED(!tensor._fw_grad(/*level=*/0).defined(), "tefl::", name_,
                                " does not support forward-mode automatic differentiation (torch.func.jvp, "
                                "dual tensors). Use reverse "
                                "mode (torch.func.vjp, backward()), or PyTorch's own operations there.");
    requires_grad |= tensor.requires_grad();
  });
  return requires_grad;
}

void Autograd::refuse_gradients_of_lists(const Call& call) const {
  for (const size_t i : tensors_) {
    const c10::IValue& value = (*call.stack)[call.begin + i];
    const bool is_wanted = !value.isTensor() && wants_gradient(value);
    TORCH_CHECK_NOT_IMPLEMENTED(!is_wanted, "tefl::", name_, " has no derivative with regard to the tensors ",
                                "in the list ", op_.schema().arguments()[i].name(), ", and one of them ",
                                "requires grad. Pass them detached, [t.detach() for t in ...], or call the ",
                                "op under torch.no_grad().");
  }
}

void Autograd::refuse_unseen_writes(const Call& call) const {
  for (const size_t i : writes_) {
    TORCH_CHECK(!wants_gradient((*call.stack)[call.begin + i]), "tefl::", name_, ": argument ",
                op_.schema().arguments()[i].name(),
                " requires grad, and the op writes it, which cannot be differentiated. Call it under "
                "torch.no_grad().");
  }
}

std::vector<at::Tensor> Autograd::written(const Call& call) const {
  std::vector<at::Tensor> tensors;
  for (const size_t i : writes_) {
    dispatch::each_tensor((*call.stack)[call.begin + i],
                          [&](const at::Tensor& tensor) { tensors.push_back(tensor); });
  }
  return tensors;
}

// So that a graph which saved a written tensor notices.
void Autograd::bump_versions(const std::vector<at::Tensor>& written) const {
  for (const at::Tensor& tensor : written) {
    if (tensor.defined() && !tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
  }
}

const Formula* Autograd::formula() {
  const Formula* formula = formula_.load(std::memory_order_acquire);
  if (formula != nullptr) return formula;
  // Without a lock, which a fork could leave locked: of two threads here one throws its own away.
  auto made = std::make_unique<Formula>(op_.schema(), backward_->op, backward_->feeds, backward_->grads,
                                        backward_->differentiable);
  if (!formula_.compare_exchange_strong(formula, made.get(), std::memory_order_acq_rel)) return formula;
  return made.release();
}

}  // namespace tefl::dispatch
