#include "ccl/aliases.h"

#include "device/alias_storage.h"
#include "device/alias_target.h"
#include "device/shell.h"

namespace tefl::ccl {

at::Tensor Aliases::of(const at::Tensor& tensor) {
  const auto index = tensor.device().index();
  if (loan_ && loan_->has_more(1)) return loan_->alias(loan_->lend(tensor, index));
  const device::OutsideInferenceMode scope;  // who writes them may be a thread that is not in it
  const auto& target = device::alias_target();
  return device::tensor_over(device::alias_storage(tensor.storage(), target.device(index)), tensor,
                             target.key);
}

Tensors Aliases::of(at::TensorList tensors) {
  Tensors aliases;
  aliases.reserve(tensors.size());
  for (const auto& tensor : tensors) aliases.push_back(of(tensor));
  return aliases;
}

Lists Aliases::of(const Lists& lists) {
  Lists aliases;
  aliases.reserve(lists.size());
  for (const auto& list : lists) aliases.push_back(of(list));
  return aliases;
}

}  // namespace tefl::ccl
