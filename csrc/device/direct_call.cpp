#include "device/direct_call.h"

#include "device/alias_storage.h"
#include "device/alias_target.h"
#include "device/current_device.h"
#include "device/refused.h"

namespace tefl::device {

DirectCall::DirectCall() = default;
DirectCall::~DirectCall() = default;

C10_ALWAYS_INLINE int64_t DirectCall::lend(const at::Tensor& tensor, c10::Device device) {
  if (C10_UNLIKELY(has_operand() && device != device_)) return kRefused;
  if (C10_UNLIKELY(!lent_.has_more(1))) return kRefused;
  device_ = device;
  return static_cast<int64_t>(lent_.lend(tensor, device.index()));
}

int64_t DirectCall::enter(const at::Tensor& tensor, bool written) {
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (C10_UNLIKELY(!is_ordinary(impl))) return enter_unusual(tensor, written);
  return lend(tensor, impl->device());
}

size_t DirectCall::enter_prefix(at::TensorList tensors) {
  if (tensors.empty() || !is_ordinary(tensors.front().unsafeGetTensorImpl())) return 0;
  if (!has_operand()) device_ = tensors.front().device();
  return lent_.lend_prefix(tensors, device_);
}

// No tensor, one that is elsewhere or of another kind, or a subclass in Python, which says where it is.
C10_NOINLINE int64_t DirectCall::enter_unusual(const at::Tensor& tensor, bool written) {
  if (!tensor.defined()) return kNone;
  const c10::Device device = tensor.device();
  if (device.type() != kType) return device.is_cpu() && tensor.dim() == 0 && !written ? kNone : kRefused;
  const bool plain =
      tensor.unsafeGetTensorImpl()->unsafe_storage() && !tensor.is_quantized() && !tensor.is_nested();
  return plain ? lend(tensor, device) : kRefused;
}

void DirectCall::adopt_written(const at::Tensor& alias, const at::Tensor& original) {
  adopt(alias, original);
}

at::Tensor DirectCall::result(at::Tensor made, const c10::OperatorHandle& op) {
  const c10::TensorImpl* impl = made.unsafeGetTensorImpl();
  const bool unseen = impl->key_set().has_all(alias_target().keys) && !impl->is_python_dispatch() &&
                      made.use_count() == 1 && impl->unsafe_storage().use_count() == 1;
  if (C10_LIKELY(unseen)) return relabelled(std::move(made), device());
  return unusual_result(std::move(made), op);
}

C10_NOINLINE at::Tensor DirectCall::unusual_result(at::Tensor made, const c10::OperatorHandle& op) {
  if (!made.defined() || made.device().type() != alias_target().type) return made;
  require_result(op, made);
  return seen_elsewhere(std::move(made));
}

// A result that is an argument, or shares memory with one or with another result.
at::Tensor DirectCall::seen_elsewhere(at::Tensor made) {
  constexpr auto kKey = c10::DispatchKey::PrivateUse1;
  if (made_ == nullptr) made_ = std::make_unique<Made>();
  for (const auto& [theirs, ours] : *made_) {
    if (theirs.is_alias_of(made.storage())) return tensor_over(ours, made, kKey);
  }
  const int64_t same = lent_.find(made);
  if (same >= 0) return lent_.original(static_cast<size_t>(same));
  const int64_t over = lent_.find_storage(made.storage());
  if (over >= 0) return tensor_over(lent_.original(static_cast<size_t>(over)).storage(), made, kKey);
  made_->emplace_back(made.storage(), alias_storage(made.storage(), device_));
  return tensor_over(made_->back().second, made, kKey);
}

}  // namespace tefl::device
