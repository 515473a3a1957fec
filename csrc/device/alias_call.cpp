#include "device/alias_call.h"

#include <c10/util/Exception.h>

#include "device/alias_storage.h"
#include "device/alias_target.h"
#include "device/allocator.h"
#include "device/current_device.h"
#include "device/generator.h"
#include "device/provider.h"
#include "device/refused.h"

namespace tefl::device {

// ----------------------------------------------------------------------------------------- arguments in --

void AliasCall::enter(torch::jit::Stack& stack) {
  c10::IValue* arguments = stack.data() + stack.size() - plan_.arguments;
  for (size_t i = 0; i < plan_.arguments; ++i) to_alias(arguments[i], i);
  if (has_operand_ && stranger_) throw_device_mismatch();
  TORCH_CHECK(!has_generator_ || index_ >= 0, "Expected a 'cpu' device type for generator but found '",
              device_name(), "'");  // it alone brought the call here
  if (index_ < 0) index_ = current_device();
  if (plan_.generators != 0) fill_generators(arguments);
  if (C10_UNLIKELY(alias_target().copies)) fetch_arguments();
}

void AliasCall::to_alias(c10::IValue& value, size_t argument) {
  if (value.isTensor()) {
    at::Tensor& tensor = value.toTensor();
    if (tensor.defined()) value = alias_of(tensor, argument);
  } else if (value.isTensorList()) {
    auto tensors = value.toTensorVector();
    for (auto& tensor : tensors) tensor = tensor.defined() ? alias_of(tensor, argument) : tensor;
    value = std::move(tensors);
  } else if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> aliases;
    for (std::optional<at::Tensor> tensor : value.toOptionalTensorList()) {
      if (tensor && tensor->defined()) tensor = alias_of(*tensor, argument);
      aliases.push_back(std::move(tensor));
    }
    value = std::move(aliases);
  } else if (value.isDevice() && value.toDevice().type() == kType) {
    index_ = resolve_index(value.toDevice().index());
    value = alias_target().device(index_);
  } else if (value.isGenerator()) {
    has_generator_ = true;
    value = inner_generator(value.toGenerator());
  }
}

const at::Tensor& AliasCall::alias_of(const at::Tensor& tensor, size_t argument) {
  if (!is_ours(tensor, argument)) return tensor;
  const bool written = plan_.writes(argument);
  const int64_t known = originals_.find(tensor.unsafeGetTensorImpl());
  if (known < 0) return new_alias(tensor, written);
  twins_[known].written |= written;
  return twins_[known].alias;
}

// Whether `tensor` is on our device. Notes what device the call is for, and an operand that is elsewhere and
// may not be. On the host may be, as for CUDA: read-only tensors without dimensions, and indices.
bool AliasCall::is_ours(const at::Tensor& tensor, size_t argument) {
  const c10::Device device = tensor.device();
  if (device.type() == kType && (!has_operand_ || device.index() == index_)) {
    if (!has_operand_) operand_argument_ = argument;
    index_ = device.index();
    has_operand_ = true;
    return true;
  }
  const bool scalar = tensor.dim() == 0 && !plan_.writes(argument);
  const bool allowed = device.is_cpu() && (scalar || plan_.takes_host_indices(argument));
  if (!allowed && !stranger_) {
    stranger_ = device;
    stranger_argument_ = argument;
  }
  return false;
}

void AliasCall::throw_device_mismatch() const {
  const bool indexed_elsewhere = stranger_argument_ == 0 && plan_.takes_host_indices(operand_argument_);
  TORCH_CHECK(!indexed_elsewhere && !plan_.takes_host_indices(stranger_argument_),
              "indices should be either on cpu or on the same device as the indexed tensor (",
              indexed_elsewhere ? *stranger_ : device_at(index_), ")");
  const auto& argument = op_.schema().arguments()[stranger_argument_];
  TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two devices, ",
              device_at(index_), " and ", *stranger_, "! (when checking argument '", argument.name(), "' of ",
              op_.operator_name(), ")");
}

const at::Tensor& AliasCall::new_alias(const at::Tensor& tensor, bool written) {
  require_strided(op_, tensor, "got");
  StorageTwin& twin = shared_alias(tensor.storage());
  if (C10_UNLIKELY(alias_target().copies)) twin.span.include(span_of(tensor));
  auto alias = tensor_over(twin.alias, tensor, alias_target().key);
  originals_.add(tensor.unsafeGetTensorImpl());
  aliases_.add(alias.unsafeGetTensorImpl());
  twins_.push_back({std::move(alias), tensor, written});
  return twins_.back().alias;
}

AliasCall::StorageTwin& AliasCall::shared_alias(const c10::Storage& storage) {
  const int64_t known = original_storages_.find(storage.unsafeGetStorageImpl());
  if (known >= 0) return storages_[known];
  auto alias = C10_UNLIKELY(alias_target().copies) ? host_storage(storage)
                                                   : alias_storage(storage, alias_target().device(index_));
  original_storages_.add(storage.unsafeGetStorageImpl());
  alias_storages_.add(alias.unsafeGetStorageImpl());
  storages_.push_back({std::move(alias), storage, {}});
  return storages_.back();
}

void AliasCall::fetch_arguments() {
  transfer_ = std::make_unique<Transfer>(index_, c10::toString(op_.operator_name()));
  for (const StorageTwin& twin : storages_) transfer_->fetch(twin.original, twin.alias, twin.span);
  transfer_->wait();
}

// An absent generator means the device's default one, not the alias device's.
void AliasCall::fill_generators(c10::IValue* arguments) const {
  for (size_t i = 0; i < plan_.arguments; ++i) {
    if (plan_.may_default_generator(i) && arguments[i].isNone()) {
      arguments[i] = inner_generator(default_generator(index_));
    }
  }
}

// ------------------------------------------------------------------------------------------- results out --

void AliasCall::leave(torch::jit::Stack& stack) {
  if (plan_.mutates()) {
    for (const Twin& twin : twins_) {
      if (!twin.written) continue;
      if (C10_UNLIKELY(transfer_ != nullptr)) {
        transfer_->give_back(twin.alias, twin.original);
        adopt_shape(twin.alias, twin.original);
      } else {
        adopt(twin.alias, twin.original);
      }
    }
  }
  for (size_t i = stack.size() - plan_.returns; i < stack.size(); ++i) to_device(stack[i]);
  if (C10_UNLIKELY(transfer_ != nullptr)) transfer_->finish();
}

void AliasCall::to_device(c10::IValue& value) {
  if (value.isTensor()) {
    value = original_of(std::move(value).toTensor());
  } else if (value.isTensorList()) {
    auto results = std::move(value).toTensorList();
    for (size_t i = 0; i < results.size(); ++i) results.set(i, original_of(results.extract(i)));
    value = std::move(results);
  }
}

at::Tensor AliasCall::original_of(at::Tensor result) {
  if (!result.defined() || result.device().type() != alias_target().type) return result;
  const int64_t known = aliases_.find(result.unsafeGetTensorImpl());
  return known >= 0 ? twins_[known].original : relabel(std::move(result));
}

at::Tensor AliasCall::relabel(at::Tensor result) {
  require_result(op_, result);
  c10::Storage storage = result.storage();
  c10::StorageImpl* impl = storage.unsafeGetStorageImpl();
  const int64_t known = alias_storages_.find(impl);
  if (known >= 0) return tensor_over(storages_[known].original, result, c10::DispatchKey::PrivateUse1);
  if (C10_UNLIKELY(transfer_ != nullptr))
    return over_new_storage(result, transfer_->new_device_storage(storage));
  // Nobody else holds it (the tensor and this function do): its memory changes hands instead of being
  // wrapped.
  if (result.use_count() == 1 && storage.use_count() == 2) {
    storage = {};
    return relabelled(std::move(result), device_at(index_));
  }
  return over_new_storage(result, alias_storage(storage, device_at(index_)));
}

// `storage` stands for the result's from now on, for other results over it as well.
at::Tensor AliasCall::over_new_storage(const at::Tensor& result, c10::Storage storage) {
  original_storages_.add(storage.unsafeGetStorageImpl());
  alias_storages_.add(result.storage().unsafeGetStorageImpl());
  storages_.push_back({result.storage(), storage, {}});
  return tensor_over(std::move(storage), result, c10::DispatchKey::PrivateUse1);
}

}  // namespace tefl::device
