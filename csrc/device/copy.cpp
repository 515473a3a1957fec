#include "device/copy.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "device/alias_loan.h"
#include "device/alias_storage.h"
#include "device/alias_target.h"
#include "device/allocator.h"
#include "device/block_copy.h"
#include "device/current_device.h"
#include "device/events.h"
#include "device/host_access.h"
#include "device/pinned.h"
#include "device/provider.h"
#include "device/streams.h"
#include "device/transfer.h"

namespace tefl::device {
namespace {

bool on_device(const at::Tensor& tensor) { return tensor.device().type() == kType; }
int32_t place(const at::Tensor& tensor) { return on_device(tensor) ? tensor.device().index() : TEFL_HOST; }

bool share_memory(const at::Tensor& a, const at::Tensor& b) {
  return a.storage().unsafeGetStorageImpl() == b.storage().unsafeGetStorageImpl();
}

bool is_plain(const at::Tensor& tensor) {
  return tensor.is_non_overlapping_and_dense() && !tensor.is_conj() && !tensor.is_neg();
}

// Whether `a` and `b` are the same bytes, element for element, so that one block copy will do.
bool same_layout(const at::Tensor& a, const at::Tensor& b) {
  return a.dtype() == b.dtype() && a.is_conj() == b.is_conj() && a.is_neg() == b.is_neg() &&
         a.strides() == b.strides() && a.is_non_overlapping_and_dense();
}

void enqueue(const at::Tensor& source, const at::Tensor& destination, c10::Stream stream) {
  writable_data(destination.storage());  // in its own device's stream, if it is copied on this write
  enqueue_copy(destination.mutable_data_ptr(), place(destination), source.const_data_ptr(), place(source),
               source.nbytes(), stream);
}

// In the source's stream. The write waits for readers of the destination, and its later readers for the
// write.
void copy_block_on_device(const at::Tensor& source, const at::Tensor& destination) {
  const auto stream = current_stream(source.device().index());
  const auto other = current_stream(destination.device().index());
  order_streams(other, stream);
  enqueue(source, destination, stream);
  try {
    order_streams(stream, other);
  } catch (const c10::Error&) {
    // Or the memory would be used again while it is still read and written.
    if (!drain_stream(stream)) keep_for_ever({source.storage(), destination.storage()});
    throw;
  }
}

void copy_block_with_host(const at::Tensor& source, const at::Tensor& destination, bool non_blocking) {
  const at::Tensor& host = on_device(source) ? destination : source;
  const auto stream = current_stream((on_device(source) ? source : destination).device().index());
  enqueue(source, destination, stream);
  // Pageable memory is the caller's again on return, so that the copy must be done by then.
  if (non_blocking && use_pinned(host.const_data_ptr(), stream)) return;
  try {
    synchronize_stream(stream);
  } catch (const c10::Error&) {
    if (!drain_stream(stream)) keep_for_ever({host.storage()});
    throw;
  }
}

void copy_block(const at::Tensor& source, const at::Tensor& destination, bool non_blocking) {
  if (on_device(source) && on_device(destination)) {
    copy_block_on_device(source, destination);
  } else {
    copy_block_with_host(source, destination, non_blocking);
  }
}

// The host may use the memory of a tensor of ours: once the work that might still write it is done.
void wait_for_host(const at::Tensor& tensor) {
  if (alias_target().type != c10::kCPU) return;
  wait_for_current_stream(tensor.device().index());
  if (C10_UNLIKELY(host_access_is_told()) && tensor.storage().nbytes() != 0) {
    begin_host_access_in_scope(tensor.device().index(), writable_data(tensor.storage()),
                               tensor.storage().nbytes());
  }
}

// Any dtype, strides, overlap and bits: the alias device's own copy_ knows them all.
void copy_by_alias(const at::Tensor& source, const at::Tensor& destination, bool non_blocking) {
  const HostAccessScope scope;
  LentAliases lent;
  if (on_device(destination)) wait_for_host(destination);
  if (on_device(source) && !share_memory(source, destination)) wait_for_host(source);
  const auto seen = [&](const at::Tensor& tensor) {
    return on_device(tensor) ? lent.alias(lent.lend(tensor, tensor.device().index())) : tensor;
  };
  const at::Tensor from = seen(source), to = seen(destination);
  to.copy_(from, non_blocking);
}

// The same where the host cannot reach the device's memory: both are on the device.
void copy_by_host(const at::Tensor& source, const at::Tensor& destination) {
  const auto from = host_storage(source.storage());
  const auto to = share_memory(source, destination) ? from : host_storage(destination.storage());
  Transfer transfer(destination.device().index(), "aten::_copy_from");
  transfer.fetch(source.storage(), from, span_of(source));
  transfer.wait();
  const auto result = tensor_over(to, destination, alias_target().key);
  result.copy_(tensor_over(from, source, alias_target().key));
  transfer.give_back(result, destination);
  transfer.finish();
}

// Converts where the source is, copies a block, and converts again where the destination cannot take one.
void copy_in_stages(const at::Tensor& source, const at::Tensor& destination, bool non_blocking) {
  const bool direct = is_plain(destination);
  const auto landing = direct ? destination : at::empty(destination.sizes(), destination.options());
  auto staged = source;
  if (!same_layout(source, landing)) {
    staged = at::empty_like(landing, landing.options().device(source.device()).pinned_memory(false));
    staged.copy_(source);
  }
  copy_block(staged, landing, non_blocking && direct);
  if (!direct) destination.copy_(landing);
}

bool is_elsewhere(const at::Tensor& tensor) { return !on_device(tensor) && !tensor.is_cpu(); }

// Between this device and another accelerator that neither knows the other's memory: through the host, each
// half by its own device's copy, in its current stream. Both are done on return, so that the buffer may go.
void copy_through_host(const at::Tensor& source, const at::Tensor& destination) {
  const auto host = source.cpu();
  const c10::DeviceGuard guard(destination.device());
  destination.copy_(host);
}

void copy_expanded(const at::Tensor& source, const at::Tensor& destination, bool non_blocking) {
  const bool one_device = source.device() == destination.device();
  if (alias_target().type == c10::kCUDA) {
    copy_by_alias(source, destination, non_blocking);
  } else if (is_elsewhere(source) || is_elsewhere(destination)) {
    copy_through_host(source, destination);
  } else if (!one_device) {
    copy_in_stages(source, destination, non_blocking);
  } else if (same_layout(source, destination) && !share_memory(source, destination)) {
    copy_block_on_device(source, destination);
  } else if (alias_target().copies) {
    copy_by_host(source, destination);
  } else {
    copy_by_alias(source, destination, non_blocking);
  }
}

}  // namespace

at::Tensor copy_from(const at::Tensor& source, const at::Tensor& destination, bool non_blocking) {
  ensure_initialized();
  const auto expanded = source.sizes() == destination.sizes() ? source : source.expand_as(destination);
  if (expanded.numel() != 0) copy_expanded(expanded, destination, non_blocking);
  return destination;
}

at::Tensor copy_from_and_resize(const at::Tensor& source, const at::Tensor& destination) {
  destination.resize_(source.sizes());
  return copy_from(source, destination, /*non_blocking=*/false);
}

at::Tensor copy_from_zero(const at::Tensor& source, const at::Tensor& destination, bool) {
  TORCH_CHECK(!destination._is_zerotensor(), "ZeroTensors are immutable. Please use the materialized tensor ",
              "obtained using .clone() if you want a mutable tensor");
  TORCH_CHECK(source._is_zerotensor());
  destination.zero_();
  return destination;
}

void resize_storage(const c10::Storage& storage, size_t bytes) {
  const c10::DeviceGuard guard(storage.device());
  c10::StorageImpl* impl = storage.unsafeGetStorageImpl();
  c10::DataPtr data = allocator().allocate(bytes);
  const size_t kept = std::min(bytes, impl->nbytes());
  if (kept != 0) {
    const auto index = storage.device().index();
    enqueue_copy(data.get(), index, impl->data(), index, kept, current_stream(index));
  }
  impl->set_data_ptr_noswap(std::move(data));
  impl->set_nbytes(bytes);
}

}  // namespace tefl::device
