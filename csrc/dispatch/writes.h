// Notices an implementation that writes an argument which its op does not declare as written.
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>

#include <optional>
#include <string>
#include <vector>

namespace tefl::dispatch {

// The versions of a call's tensors, of those that the op must leave alone. None for one that cannot tell: an
// inference tensor, and one in the memory of an argument that the op writes, with which it shares its count.
using Versions = c10::SmallVector<std::optional<uint32_t>, 8>;

class ReadOnly {
 public:
  explicit ReadOnly(const c10::FunctionSchema& schema);

  Versions versions(const torch::jit::Stack& stack) const;
  // The name of an argument on top of the stack that has been written since; null if none was.
  const std::string* written(const torch::jit::Stack& stack, const Versions& since) const;

 private:
  // Visits the tensors of the arguments at these positions, with the number of the position.
  template <class Visit>
  void each_tensor(const torch::jit::Stack& stack, const std::vector<size_t>& positions, Visit visit) const;
  // Whether the tensor lies in the memory of an argument that the op writes.
  bool is_written_too(const torch::jit::Stack& stack, const at::Tensor& tensor) const;

  size_t arity_;
  std::vector<size_t> positions_;
  std::vector<std::string> names_;  // one a position
  std::vector<size_t> written_;     // positions of arguments that the op writes
};

}  // namespace tefl::dispatch
