#include "device/alias_storage.h"

#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>

#include <memory>
#include <string>

#include "device/alias_loan.h"
#include "device/alias_target.h"
#include "device/allocator.h"
#include "device/current_device.h"
#include "device/host_access.h"
#include "device/provider.h"
#include "device/refused.h"
#include "device/shell.h"
#include "device/streams.h"

namespace tefl::device {
namespace {

// The deleter of every alias: its context is the source Storage, of which it holds one reference.
void drop_source(void* source) {
  c10::raw::intrusive_ptr::decref(static_cast<c10::intrusive_ptr_target*>(source));
}

// The context of an alias for which the provider was told that the host has access, which ends with it.
struct Section {
  c10::Storage source;
  void* pointer;
  size_t bytes;
};

void end_section(void* context) {
  const std::unique_ptr<Section> section(static_cast<Section*>(context));
  end_host_access(section->source.device().index(), section->pointer, section->bytes);
}

c10::DataPtr open_section(const c10::Storage& source, void* data, c10::Device device) {
  begin_host_access(source.device().index(), data, source.nbytes());
  return {data, new Section{source, data, source.nbytes()}, &end_section, device};
}

bool needs_section(const c10::Storage& source, c10::Device device) {
  return host_access_is_told() && device.is_cpu() && source.device_type() == kType && source.nbytes() != 0;
}

c10::DataPtr held_data(const c10::Storage& source, void* data, c10::Device device) {
  c10::StorageImpl* impl = source.unsafeGetStorageImpl();
  c10::raw::intrusive_ptr::incref(impl);
  return {data, static_cast<c10::intrusive_ptr_target*>(impl), &drop_source, device};
}

c10::DataPtr shared_data(const c10::Storage& source, c10::Device device) {
  void* data = writable_data(source);
  if (C10_UNLIKELY(needs_section(source, device))) return open_section(source, data, device);
  return held_data(source, data, device);
}

c10::DispatchKey key_of(c10::DeviceType type) {
  return type == kType ? c10::DispatchKey::PrivateUse1 : alias_target().key;
}

// Pointers to protected members. TensorImpl::_change_backend_component_keys() and set_storage_keep_dtype()
// change the same, but look up both backends' keys and count references, for each result of each operator.
struct Protected : c10::TensorImpl {
  static constexpr c10::DispatchKeySet c10::TensorImpl::* key_set = &Protected::key_set_;
  static constexpr std::optional<c10::Device> c10::TensorImpl::* device_opt = &Protected::device_opt_;
};

// `keys` of a tensor of the alias device, as they are for ours: as _change_backend_component_keys() does it.
c10::DispatchKeySet with_our_keys(c10::DispatchKeySet keys) {
  constexpr auto kAutocast = c10::DispatchKeySet(c10::DispatchKey::AutocastPrivateUse1);
  constexpr auto kBackend = c10::DispatchKeySet(c10::BackendComponent::PrivateUse1Bit);
  return (keys - alias_target().autocast).remove_backend(alias_target().backend) | kAutocast | kBackend;
}

void check_can_alias(const char* function) {
  TORCH_CHECK(
      !alias_target().copies, function, ": the memory of ", device_name(),
      " can be computed on nowhere else, so that no other device has an alias of it; copy with .cpu() ",
      "and .to(\"", device_name(), "\")");
}

// Whether an alias has memory of its own by now: a kernel resized it.
bool owns_memory(const c10::Storage& alias) {
  const auto& data = alias.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
  return data.get_context() != nullptr && data.get_deleter() != &drop_source &&
         data.get_deleter() != &end_section;
}

void adopt_memory(const c10::Storage& alias, const c10::Storage& original) {
  c10::StorageImpl* from = alias.unsafeGetStorageImpl();
  c10::StorageImpl* to = original.unsafeGetStorageImpl();
  if (C10_LIKELY(from->data() == to->data() && from->nbytes() == to->nbytes())) return;
  if (!owns_memory(alias)) return;
  c10::DataPtr moved = from->set_data_ptr(c10::DataPtr(from->mutable_data(), alias.device()));
  moved.unsafe_set_device(original.device());
  to->set_data_ptr_noswap(std::move(moved));
  to->set_nbytes(from->nbytes());
}

// The device in whose memory `tensor`, of the alias device, lies.
c10::DeviceIndex owner_of(const at::Tensor& tensor) {
  if (alias_target().type != c10::kCPU) return tensor.device().index();
  const auto block = find_block(tensor.storage().data());
  TORCH_CHECK(block, "from_alias() got a tensor in ordinary host memory, not in memory of ", device_name(),
              "; copy it with .to(\"", device_name(), "\")");
  return block->device;
}

// The Storage that alias_storage() was given to make `alias`, or an undefined one if it made it not.
c10::Storage source_of(const c10::Storage& alias) {
  const auto& pointer = alias.data_ptr();
  if (pointer.get_deleter() == &end_section) return static_cast<Section*>(pointer.get_context())->source;
  if (pointer.get_deleter() != &drop_source) return {};
  auto* target = static_cast<c10::intrusive_ptr_target*>(pointer.get_context());
  return c10::Storage(
      c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(static_cast<c10::StorageImpl*>(target)));
}

// The Storage of our device over the memory of `tensor`, of the alias device.
c10::Storage device_storage(const at::Tensor& tensor) {
  auto source = source_of(tensor.storage());
  if (source && source.device_type() == kType) return source;
  return alias_storage(tensor.storage(), device_at(owner_of(tensor)));
}

}  // namespace

void* own_copy(const c10::Storage& storage) {
  const c10::DeviceGuard guard(storage.device());
  return storage.unsafeGetStorageImpl()->mutable_data();
}

c10::Storage alias_storage(const c10::Storage& source, c10::Device device) {
  c10::DataPtr data = shared_data(source, device);
  c10::StorageImpl* impl = source.unsafeGetStorageImpl();
  return {c10::Storage::use_byte_size_t(), impl->nbytes(), std::move(data), c10::GetAllocator(device.type()),
          impl->resizable()};
}

void hold_source(const c10::Storage& alias, const c10::Storage& source) noexcept {
  c10::StorageImpl* impl = alias.unsafeGetStorageImpl();
  try {
    impl->set_data_ptr_noswap(shared_data(source, alias.device()));
  } catch (const std::exception& error) {
    const auto* ours = dynamic_cast<const c10::Error*>(&error);
    TORCH_WARN(device_name(), ": the host may not use what a kernel has kept of an argument: ",
               ours == nullptr ? error.what() : ours->what_without_backtrace());
    impl->set_data_ptr_noswap(held_data(source, impl->_mutable_data_ptr_no_checks().get(), alias.device()));
  }
  impl->set_nbytes(source.nbytes());
}

const c10::DataPtr& owner_of_memory(const c10::DataPtr& data) {
  const c10::DataPtr* owner = &data;
  while (owner->get_deleter() == &drop_source) {
    auto* source = static_cast<c10::intrusive_ptr_target*>(owner->get_context());
    owner = &static_cast<c10::StorageImpl*>(source)->data_ptr();
  }
  return *owner;
}

at::Tensor tensor_over(c10::Storage storage, const at::Tensor& like, c10::DispatchKey key) {
  auto tensor = at::detail::make_tensor<Shell>(std::move(storage), c10::DispatchKeySet(key), like.dtype());
  shell_of(tensor)->cover(like.unsafeGetTensorImpl());
  return tensor;
}

at::Tensor relabelled(at::Tensor made, c10::Device device) {
  c10::TensorImpl* tensor = made.unsafeGetTensorImpl();
  c10::StorageImpl* storage = tensor->unsafe_storage().unsafeGetStorageImpl();
  storage->_mutable_data_ptr_no_checks().unsafe_set_device(device);
  storage->set_allocator(&allocator());
  tensor->*Protected::key_set = with_our_keys(tensor->*Protected::key_set);
  tensor->*Protected::device_opt = device;
  return made;
}

void adopt_shape(const at::Tensor& alias, const at::Tensor& original) {
  if (!alias.sizes().equals(original.sizes()) || !alias.strides().equals(original.strides()) ||
      alias.storage_offset() != original.storage_offset()) {
    original.unsafeGetTensorImpl()->set_sizes_and_strides(alias.sizes(), alias.strides(),
                                                          alias.storage_offset());
  }
}

void adopt(const at::Tensor& alias, const at::Tensor& original) {
  adopt_memory(alias.storage(), original.storage());
  adopt_shape(alias, original);
}

at::Tensor as_alias(const at::Tensor& tensor) {
  check_can_alias("as_alias()");
  TORCH_CHECK(tensor.device().type() == kType && is_strided(tensor), "as_alias() takes a strided tensor on ",
              device_name(), ", got ", layout_of(tensor), " on ", tensor.device());
  ensure_initialized();
  const auto index = tensor.device().index();
  if (alias_target().type == c10::kCPU) wait_for_current_stream(index);
  const auto device = alias_target().device(index);
  return tensor_over(alias_storage(tensor.storage(), device), tensor, key_of(device.type()));
}

at::Tensor from_alias(const at::Tensor& tensor, c10::DeviceIndex index) {
  check_can_alias("from_alias()");
  TORCH_CHECK(tensor.device().type() == alias_target().type && is_strided(tensor),
              "from_alias() takes a strided tensor on ", c10::DeviceTypeName(alias_target().type, true),
              ", the alias device of ", device_name(), "; got ", layout_of(tensor), " on ", tensor.device());
  const at::Tensor* original = lent_original(tensor.storage());
  auto storage = original == nullptr ? device_storage(tensor) : original->storage();
  if (original != nullptr) adopt_memory(tensor.storage(), storage);
  const auto owner = storage.device().index();
  TORCH_CHECK(index < 0 || index == owner, "from_alias() was asked for ", device_at(index),
              " and got a tensor in memory of ", storage.device());
  auto made = tensor_over(std::move(storage), tensor, key_of(kType));
  if (original != nullptr && !original->is_inference() && !made.is_inference()) {
    made.unsafeGetTensorImpl()->set_version_counter(original->unsafeGetTensorImpl()->version_counter());
  }
  return made;
}

}  // namespace tefl::device
