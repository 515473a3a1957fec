#include "ccl/lone_alias.h"

#include <utility>

#include "device/alias_storage.h"
#include "device/alias_target.h"
#include "device/shell.h"

namespace tefl::ccl {
namespace {

// What an allocator knows memory by, borrowed: nobody may destroy it. Where the memory is no longer what the
// allocator gave, it is nobody's.
c10::DataPtr borrowed(const c10::DataPtr& owner, void* data, c10::Device device) {
  if (C10_UNLIKELY(owner.get() != data)) return {data, device};
  return {data, owner.get_context(), owner.get_deleter(), device};
}

}  // namespace

// A pointer: it is found with one look-up and no guard.
thread_local LoneAlias::Kept* LoneAlias::spare_ = nullptr;

LoneAlias::Kept LoneAlias::make(c10::Device device) {
  auto [tensor, storage] = device::new_shell(device);
  storage.unsafeGetStorageImpl()->set_resizable(false);  // to resize it would free what is borrowed
  return {{std::move(tensor)}, std::move(storage)};
}

std::unique_ptr<LoneAlias::Kept> LoneAlias::take(c10::Device device) {
  if (Kept* spare = std::exchange(spare_, nullptr); C10_LIKELY(spare != nullptr))
    return std::unique_ptr<Kept>(spare);
  struct End {
    ~End() { delete std::exchange(spare_, nullptr); }
  };
  static thread_local const End end_of_thread;
  return std::make_unique<Kept>(make(device));
}

// What may throw comes first: nothing that is borrowed is left behind.
LoneAlias::LoneAlias(const at::Tensor& tensor) : original_(tensor) {
  const auto device = device::alias_target().device(tensor.device().index());
  kept_ = take(device);
  const c10::TensorImpl* like = tensor.unsafeGetTensorImpl();
  const c10::StorageImpl* source = like->unsafe_storage().unsafeGetStorageImpl();
  void* const data = device::writable_data(like->unsafe_storage());
  device::Shell* alias = device::shell_of(kept_->list.front());
  alias->cover(like);
  c10::DataPtr pointer = borrowed(device::owner_of_memory(source->data_ptr()), data, device);
  device::cover_memory(kept_->own.unsafeGetStorageImpl(), std::move(pointer), source->nbytes());
  if (C10_UNLIKELY(!alias->is_on(device))) alias->set_storage_keep_dtype(kept_->own);  // and its device
}

LoneAlias::~LoneAlias() {
  c10::StorageImpl* own = kept_->own.unsafeGetStorageImpl();
  device::cover_memory(own, {own->mutable_data(), own->device()}, own->nbytes());
  if (C10_UNLIKELY(!device::is_as_new(kept_->list.front(), kept_->own))) replace();
  if (C10_LIKELY(spare_ == nullptr)) spare_ = kept_.release();  // else a call within this one left its own
}

// Throws nothing: hold_source() does not, and a tensor is small.
C10_NOINLINE void LoneAlias::replace() {
  device::hold_source(kept_->own, original_.storage());
  *kept_ = make(kept_->own.device());
}

}  // namespace tefl::ccl
