#include "dispatch/writes.h"

#include <ATen/core/Tensor.h>

namespace tefl::dispatch {
namespace {

std::optional<uint32_t> version(const at::Tensor& tensor) {
  if (!tensor.defined()) return std::nullopt;
  const c10::VariableVersion& counter = tensor.unsafeGetTensorImpl()->version_counter();
  if (!counter.enabled()) return std::nullopt;  // inference tensors have none
  return counter.current_version();
}

bool is_written(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

}  // namespace

ReadOnly::ReadOnly(const c10::FunctionSchema& schema) : arity_(schema.arguments().size()) {
  for (size_t i = 0; i < arity_; ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    if (argument.type()->str().find("Tensor") == std::string::npos) continue;
    if (is_written(argument)) {
      written_.push_back(i);
      continue;
    }
    positions_.push_back(i);
    names_.push_back(argument.name());
  }
}

template <class Visit>
void ReadOnly::each_tensor(const torch::jit::Stack& stack, const std::vector<size_t>& positions,
                           Visit visit) const {
  const c10::IValue* const first = stack.data() + (stack.size() - arity_);
  for (size_t i = 0; i < positions.size(); ++i) {
    const c10::IValue& value = first[positions[i]];
    if (value.isTensor()) {
      visit(i, value.toTensor());
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) visit(i, tensor);
    } else if (value.isOptionalTensorList()) {
      for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
        if (tensor) visit(i, *tensor);
      }
    }
  }
}

bool ReadOnly::is_written_too(const torch::jit::Stack& stack, const at::Tensor& tensor) const {
  bool shares = false;
  each_tensor(stack, written_, [&](size_t, const at::Tensor& other) {
    shares = shares || (other.defined() && other.has_storage() && tensor.is_alias_of(other));
  });
  return shares;
}

Versions ReadOnly::versions(const torch::jit::Stack& stack) const {
  Versions found;
  each_tensor(stack, positions_, [&](size_t, const at::Tensor& tensor) {
    const bool is_silent =
        !written_.empty() && tensor.defined() && tensor.has_storage() && is_written_too(stack, tensor);
    found.push_back(is_silent ? std::nullopt : version(tensor));
  });
  return found;
}

const std::string* ReadOnly::written(const torch::jit::Stack& stack, const Versions& since) const {
  const std::string* name = nullptr;
  size_t next = 0;
  each_tensor(stack, positions_, [&](size_t i, const at::Tensor& tensor) {
    const std::optional<uint32_t> before = since[next++];
    if (before && version(tensor) != before && name == nullptr) name = &names_[i];
  });
  return name;
}

}  // namespace tefl::dispatch
