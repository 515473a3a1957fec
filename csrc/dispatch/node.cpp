#include "dispatch/node.h"

#include <ATen/ops/zeros.h>
#include <c10/util/FunctionRef.h>

#include <algorithm>

#include "dispatch/policy.h"

namespace tefl::dispatch {
namespace {

using torch::autograd::SavedVariable;
using torch::autograd::TypeAndSize;
using torch::autograd::variable_list;
using torch::dynamo::autograd::CompiledNodeArgs;
using torch::dynamo::autograd::PackedArgs;
using torch::dynamo::autograd::SwapSavedVariables;

bool holds_tensor(const c10::Argument& argument) {
  const c10::Type& type = *argument.type();
  return type.isSubtypeOf(*c10::TensorType::get()) || type.isSubtypeOf(*c10::OptionalType::ofTensor());
}

// What the backward op is fed with, apart from the gradients; each list in the order of the feeds.
struct Kept {
  const std::vector<at::Tensor>& tensors;
  const std::vector<c10::IValue>& constants;
  const std::vector<bool>& needs;
};

torch::jit::Stack arguments_of(const Formula& formula, const variable_list& grads, const Kept& kept,
                               c10::function_ref<at::Tensor(size_t)> zeros) {
  torch::jit::Stack stack;
  stack.reserve(formula.feeds.size());
  auto tensor = kept.tensors.begin();
  auto constant = kept.constants.begin();
  const auto push = [&](at::Tensor value, bool may_be_none) {
    if (value.defined() || !may_be_none) {
      stack.emplace_back(std::move(value));
    } else {
      stack.emplace_back();
    }
  };
  for (size_t i = 0; i < formula.feeds.size(); ++i) {
    const Feed& feed = formula.feeds[i];
    if (feed.kind == Feed::kGrad) {
      const size_t position = formula.positions[feed.index];
      const at::Tensor& grad = grads[position];
      push(grad.defined() || formula.may_be_none[i] ? grad : zeros(position), formula.may_be_none[i]);
    } else if (feed.kind == Feed::kNeeds) {
      stack.emplace_back(static_cast<bool>(kept.needs[formula.slots[feed.index]]));
    } else if (feed.kind == Feed::kInput && formula.slots[feed.index] == Formula::kNowhere) {
      stack.push_back(*constant++);
    } else {
      push(*tensor++, formula.may_be_none[i]);
    }
  }
  return stack;
}

// The gradients of the inputs that need one.
variable_list differentiate(const Formula& formula, const variable_list& grads, const Kept& kept,
                            c10::function_ref<at::Tensor(size_t)> zeros) {
  variable_list gradients(formula.edges.size());
  const bool any = std::any_of(grads.begin(), grads.end(), [](const at::Tensor& g) { return g.defined(); });
  if (!any) return gradients;
  torch::jit::Stack stack = arguments_of(formula, grads, kept, zeros);
  formula.backward.callBoxed(stack);
  for (size_t slot = 0; slot < gradients.size(); ++slot) {
    const int source = formula.gradients[slot];
    if (source != Formula::kNowhere && kept.needs[slot]) gradients[slot] = stack[source].toTensor();
  }
  return gradients;
}

void collect(CompiledNodeArgs& args, const c10::IValue& constant) {
  // Part of the key, and not lifted to an input of the graph: options of an op hardly ever change.
  args.collect(static_cast<uint8_t>(constant.isDouble() ? 1 : constant.isInt() ? 2 : 0));
  if (constant.isDouble()) {
    args.collect(constant.toDouble());
  } else if (constant.isInt()) {
    args.collect(constant.toInt());
  } else {
    args.collect(constant, /*nested=*/true);
  }
}

c10::TypePtr type_of(const c10::IValue& value) {
  return value.isTensor() ? c10::TypePtr(c10::TensorType::get()) : value.type();
}

}  // namespace

Formula::Formula(const c10::FunctionSchema& forward, const std::string& backward_op, std::vector<Feed> feeds_,
                 const std::vector<int>& grads, const std::vector<size_t>& differentiable)
    : node_name(c10::OperatorName(forward.name(), "").name.substr(forward.name().find("::") + 2) +
                "Backward"),
      backward(c10::Dispatcher::singleton().findSchemaOrThrow(backward_op.c_str(), "")),
      feeds(std::move(feeds_)),
      positions(forward.returns().size(), kNowhere) {
  for (const c10::Argument& argument : backward.schema().arguments()) {
    may_be_none.push_back(argument.type()->kind() == c10::TypeKind::OptionalType);
  }
  for (size_t i = 0; i < forward.arguments().size(); ++i) {
    const bool has_edge = holds_tensor(forward.arguments()[i]);
    slots.push_back(has_edge ? static_cast<int>(edges.size()) : kNowhere);
    if (!has_edge) continue;
    edges.push_back(i);
    gradients.push_back(grads[i]);
  }
  int position = 0;
  for (const size_t result : differentiable) positions[result] = position++;
}

void BackwardNode::save(const c10::IValue* inputs, const c10::IValue* outputs) {
  saved_.reserve(formula_.feeds.size());
  for (const Feed& feed : formula_.feeds) {
    if (feed.kind == Feed::kOutput) {
      const bool is_output = formula_.positions[feed.index] != Formula::kNowhere;
      saved_.emplace_back(outputs[feed.index].toTensor(), is_output);
    } else if (feed.kind == Feed::kInput && formula_.slots[feed.index] == Formula::kNowhere) {
      constants_.push_back(inputs[feed.index]);
    } else if (feed.kind == Feed::kInput) {
      const c10::IValue& input = inputs[feed.index];
      saved_.emplace_back(input.isTensor() ? input.toTensor() : at::Tensor(), /*is_output=*/false);
    }
  }
}

void BackwardNode::release_variables() {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (SavedVariable& variable : saved_) variable.reset_data();
  constants_.clear();
  is_released_ = true;
}

std::vector<at::Tensor> BackwardNode::unpack() {
  const std::lock_guard<std::mutex> lock(mutex_);
  TORCH_CHECK(!is_released_, torch::autograd::ERR_BACKWARD_TWICE);
  std::vector<at::Tensor> tensors;
  tensors.reserve(saved_.size());
  for (const SavedVariable& variable : saved_) tensors.push_back(variable.unpack(getptr()));
  return tensors;
}

std::vector<bool> BackwardNode::needs() const {
  std::vector<bool> needs(formula_.edges.size());
  for (size_t slot = 0; slot < needs.size(); ++slot) needs[slot] = task_should_compute_output(slot);
  return needs;
}

variable_list BackwardNode::apply(variable_list&& grads) {
  // Before the token applies: unpacking may recompute a forward, which has contexts of its own.
  const std::vector<at::Tensor> tensors = unpack();
  const std::vector<c10::IValue> constants = constants_;
  const TokenGuard guard(token_);
  return differentiate(formula_, grads, {tensors, constants, needs()},
                       [this](size_t position) { return input_metadata(position).zeros_like(); });
}

void BackwardNode::compiled_args(CompiledNodeArgs& args) const {
  args.collect(reinterpret_cast<uint64_t>(&formula_));
  args.collect(saved_, /*is_output=*/true);
  for (const c10::IValue& constant : constants_) collect(args, constant);
  for (const bool needed : needs()) args.collect(needed);
  outputs_.resize(num_inputs());
  for (size_t i = 0; i < num_inputs(); ++i) {
    const auto sizes = input_metadata(i).shape_as_dim_vector();
    outputs_[i].sym_sizes = sizes.vec();
    outputs_[i].options = input_metadata(i).options();
  }
  args.collect(outputs_);
}

variable_list BackwardNode::apply_with_saved(const variable_list& grads, SwapSavedVariables& swapped) {
  swapped.before(saved_);
  swapped.before(outputs_);
  PackedArgs packed;
  for (const at::Tensor& tensor : unpack()) packed.pack(tensor);
  for (const TypeAndSize& output : outputs_) packed.pack(output);
  std::vector<c10::TypePtr> schema;
  for (const c10::IValue& value : packed.vec()) schema.push_back(type_of(value));
  // The constants and needs are part of the key, so the function may have them as they are.
  const auto function = [&formula = formula_, constants = constants_, needs = needs(), count = saved_.size()](
                            const variable_list& grads, const std::vector<c10::IValue>& values) {
    PackedArgs packed(values);
    std::vector<at::Tensor> tensors;
    for (size_t i = 0; i < count; ++i) tensors.push_back(packed.unpack<at::Tensor>());
    std::vector<TypeAndSize> outputs;
    for (size_t i = count; i < values.size(); ++i) outputs.push_back(packed.unpack<TypeAndSize>());
    return differentiate(formula, grads, {tensors, constants, needs}, [&](size_t position) {
      return at::zeros_symint(outputs[position].sym_sizes, outputs[position].options);
    });
  };
  const auto& compiler = torch::dynamo::autograd::getPyCompilerInterface();
  // As a custom function, so that torch numbers the name: the function is another one each time.
  const std::string bound = compiler->bind_function(swapped.get_py_compiler(), name(), function, schema,
                                                    /*is_custom_function=*/true);
  const auto metadata =
      torch::dynamo::autograd::IValuePacker<std::vector<std::optional<torch::autograd::InputMetadata>>>::pack(
          torch::dynamo::autograd::get_input_metadata(next_edges()));
  variable_list gradients = compiler->call_function(swapped.get_py_compiler(), "apply_functional", bound,
                                                    grads, packed.vec(), metadata);
  swapped.after(saved_);
  swapped.after(outputs_);
  return gradients;
}

variable_list RefusingNode::apply(variable_list&& grads) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "tefl::", op_,
                              " has no derivative, and a gradient through it was asked for. If it is the "
                              "backward of another op, this "
                              "was a second derivative (create_graph=True, nested torch.func.grad): take the "
                              "first one only, or write "
                              "that part in PyTorch's own operations.");
}

}  // namespace tefl::dispatch
