#include "device/alias_plan.h"

namespace tefl::device {
namespace {

bool is_optional_of(const c10::Type& type, c10::TypeKind kind) {
  const auto* optional = type.castRaw<c10::OptionalType>();
  return optional != nullptr && optional->getElementType()->kind() == kind;
}

// Tensor?[], the type of index's and index_put's indices.
bool is_optional_tensor_list(const c10::Type& type) {
  const auto* list = type.castRaw<c10::ListType>();
  return list != nullptr && is_optional_of(*list->getElementType(), c10::TypeKind::TensorType);
}

// Batch norm writes these in training, and its schemas do not say so.
bool is_running_statistic(const std::string& name) { return name == "running_mean" || name == "running_var"; }

}  // namespace

AliasPlan::AliasPlan(const c10::FunctionSchema& schema)
    : arguments(schema.arguments().size()), returns(schema.returns().size()) {
  for (size_t i = 0; i < arguments && i < 64; ++i) {
    const auto& argument = schema.arguments()[i];
    const uint64_t bit = uint64_t{1} << i;
    if (argument.alias_info() != nullptr && argument.alias_info()->isWrite()) written |= bit;
    if (is_running_statistic(argument.name())) written |= bit;
    if (argument.name() == "indices" && is_optional_tensor_list(*argument.type())) indices |= bit;
    if (is_optional_of(*argument.type(), c10::TypeKind::GeneratorType)) generators |= bit;
  }
}

}  // namespace tefl::device
