#include "ccl/lone_alias.h"

#include <new>
#include <tuple>

#include "device/alias_storage.h"
#include "device/alias_target.h"
#include "device/shell.h"

namespace tefl::ccl {
namespace {

// Over the one before, whose destructor is not to run: an alias that is kept owns no memory.
void put_data(c10::StorageImpl* storage, c10::DataPtr data) {
  new (&storage->_mutable_data_ptr_no_checks()) c10::DataPtr(std::move(data));
}

// What an allocator knows memory by, borrowed: nobody may destroy it. Where the memory is no longer what the
// allocator gave, it is nobody's.
c10::DataPtr borrowed(const c10::DataPtr& owner, void* data, c10::Device device) {
  if (C10_UNLIKELY(owner.get() != data)) return {data, device};
  return {data, owner.get_context(), owner.get_deleter(), device};
}

}  // namespace

LoneAlias::Slot LoneAlias::new_slot(c10::Device device) {
  auto [tensor, storage] = device::new_shell(device);
  return {{std::move(tensor)}, std::move(storage)};
}

// A pointer is found with one look-up and no guard.
LoneAlias::Slot* LoneAlias::kept_slot(c10::Device device) {
  static thread_local Slot* kept = nullptr;
  if (C10_LIKELY(kept != nullptr)) return kept;
  static thread_local Slot first = new_slot(device);
  return kept = &first;
}

LoneAlias::LoneAlias(const at::Tensor& tensor) : original_(tensor) {
  const auto device = device::alias_target().device(tensor.device().index());
  slot_ = kept_slot(device);
  if (C10_UNLIKELY(slot_->is_taken)) {
    extra_ = std::make_unique<Slot>(new_slot(device));
    slot_ = extra_.get();
  }
  const c10::TensorImpl* like = tensor.unsafeGetTensorImpl();
  c10::StorageImpl* source = like->unsafe_storage().unsafeGetStorageImpl();
  device::Shell* alias = device::shell_of(slot_->list.front());
  c10::StorageImpl* own = slot_->own.unsafeGetStorageImpl();
  void* const data = device::writable_data(like->unsafe_storage());
  alias->cover(like);
  put_data(own, borrowed(device::owner_of_memory(source->data_ptr()), data, device));
  own->unsafe_set_nbytes(source->nbytes());
  if (C10_UNLIKELY(!alias->is_on(device))) alias->set_storage_keep_dtype(slot_->own);  // and its device
  slot_->is_taken = true;
}

LoneAlias::~LoneAlias() {
  c10::StorageImpl* own = slot_->own.unsafeGetStorageImpl();
  put_data(own, {own->mutable_data(), own->device()});
  const auto& alias = slot_->list.front();
  const bool ready = device::may_be_lent_again(alias, slot_->own) && !device::shell_of(alias)->has_bits();
  if (C10_UNLIKELY(!ready)) take_back();
  slot_->is_taken = false;
}

// Throws nothing: hold_source() does not, and a tensor is small.
C10_NOINLINE void LoneAlias::take_back() {
  device::hold_source(slot_->own, original_.storage());
  std::tie(slot_->list.front(), slot_->own) = device::new_shell(slot_->own.device());
}

}  // namespace tefl::ccl
