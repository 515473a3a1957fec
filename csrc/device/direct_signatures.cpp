#include "device/direct_signatures.h"

#include <algorithm>

namespace tefl::device {
namespace {

// Kernels over lists that write them in place.
constexpr const char* kListKernels[] = {"aten::_foreach_", "aten::_fused_", "aten::_amp_foreach_"};

bool is_list_kernel(const std::string& name) {
  return std::any_of(std::begin(kListKernels), std::end(kListKernels),
                     [&](const char* start) { return name.rfind(start, 0) == 0; });
}

// "" where it is a view.
std::string text_of(const c10::Argument& argument) {
  const std::string type = argument.real_type()->str();
  if (argument.alias_info() == nullptr) return type;
  if (!argument.alias_info()->isWrite()) return "";
  return type == "Tensor[]" ? type : type + "!";
}

}  // namespace

std::string schema_text(const c10::FunctionSchema& schema) {
  if (schema.name().find("resize") != std::string::npos) return "";  // in C++ they write through const
  std::string all, results;
  for (const c10::Argument& argument : schema.arguments()) {
    const std::string text = text_of(argument);
    const bool list = argument.alias_info() != nullptr && text == "Tensor[]";
    if (text.empty() || (list && !is_list_kernel(schema.name()))) return "";
    all += text + " ";
  }
  for (const c10::Argument& argument : schema.returns()) {
    const std::string text = text_of(argument);
    if (text.empty()) return "";
    results += (results.empty() ? "" : " ") + text;
  }
  return all + "-> " + results;
}

}  // namespace tefl::device
