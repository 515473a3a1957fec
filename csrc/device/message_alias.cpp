#include "device/message_alias.h"

#include <utility>

#include "device/alias_storage.h"
#include "device/alias_target.h"
#include "device/shell.h"

namespace tefl::device {
namespace {

// Of a thread: the alias of its last message, over no Storage. Empty while a message has it.
thread_local std::vector<at::Tensor> spare;

}  // namespace

MessageAlias::MessageAlias(const at::Tensor& tensor) : tensors_(std::exchange(spare, {})) {
  const auto device = alias_target().device(tensor.device().index());
  if (C10_UNLIKELY(tensors_.empty())) tensors_.push_back(new_shell(device).first);
  writable_data(tensor.storage());  // one that is copied on a write has other memory afterwards
  Shell* alias = shell_of(tensors_.front());
  alias->lay_over(allocated_storage(tensor.storage()), device);
  alias->cover(tensor.unsafeGetTensorImpl());
}

MessageAlias::~MessageAlias() {
  Shell* alias = shell_of(tensors_.front());
  if (!is_held_by_one(tensors_.front()) || alias->has_bits()) return;
  alias->lay_over({}, alias->device());
  spare = std::move(tensors_);
}

}  // namespace tefl::device
