#include "device/transfer.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>
#include <c10/util/SmallVector.h>

#include <algorithm>

#include "device/alias_storage.h"
#include "device/allocator.h"
#include "device/block_copy.h"
#include "device/copy.h"
#include "device/current_device.h"
#include "device/fallback_counts.h"
#include "device/provider.h"
#include "device/stream_log.h"
#include "device/streams.h"

namespace tefl::device {
namespace {

struct Dimension {
  int64_t size, step;  // in bytes
};
using Dimensions = c10::SmallVector<Dimension, 5>;

// Those in which a tensor has more than one place, the nearest places first.
Dimensions dimensions_of(const at::Tensor& tensor) {
  Dimensions dimensions;
  const auto item = static_cast<int64_t>(tensor.itemsize());
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    if (tensor.size(i) != 1 && tensor.stride(i) != 0) {
      dimensions.push_back({tensor.size(i), tensor.stride(i) * item});
    }
  }
  std::sort(dimensions.begin(), dimensions.end(),
            [](const Dimension& a, const Dimension& b) { return a.step < b.step; });
  return dimensions;
}

// Calls visit(offset, bytes) for each run of bytes of `tensor` that is unbroken in its storage.
template <typename Visit>
void for_each_run(const at::Tensor& tensor, const Visit& visit) {
  if (tensor.numel() == 0) return;
  const auto dimensions = dimensions_of(tensor);
  auto run = static_cast<int64_t>(tensor.itemsize());
  size_t inner = 0;
  for (; inner < dimensions.size() && dimensions[inner].step == run; ++inner) run *= dimensions[inner].size;
  c10::SmallVector<int64_t, 5> counter(dimensions.size(), 0);
  int64_t offset = tensor.storage_offset() * static_cast<int64_t>(tensor.itemsize());
  while (true) {
    visit(static_cast<size_t>(offset), static_cast<size_t>(run));
    size_t moving = inner;
    for (; moving < dimensions.size() && ++counter[moving] == dimensions[moving].size; ++moving) {
      offset -= (dimensions[moving].size - 1) * dimensions[moving].step;
      counter[moving] = 0;
    }
    if (moving == dimensions.size()) return;
    offset += dimensions[moving].step;
  }
}

}  // namespace

void Span::include(Span other) {
  begin = std::min(begin, other.begin);
  end = std::max(end, other.end);
}

Span span_of(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return {};
  size_t last = 0;
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    last += static_cast<size_t>((tensor.size(i) - 1) * tensor.stride(i));
  }
  const auto first = static_cast<size_t>(tensor.storage_offset());
  return {first * tensor.itemsize(), (first + last + 1) * tensor.itemsize()};
}

c10::Storage host_storage(const c10::Storage& source) {
  auto* host = c10::GetCPUAllocator();
  return {c10::Storage::use_byte_size_t(), source.nbytes(), host->allocate(source.nbytes()), host,
          source.unsafeGetStorageImpl()->resizable()};
}

void keep_for_ever(std::vector<c10::Storage> storages) { new auto(std::move(storages)); }

Transfer::Transfer(c10::DeviceIndex index, std::string op)
    : index_(index), op_(std::move(op)), name_(interned(op_)) {}

// After an error the copies on their way still use memory that is about to go.
Transfer::~Transfer() {
  if (pending_ && !drain_stream(current_stream(index_))) keep_for_ever(std::move(in_use_));
}

void Transfer::fetch(const c10::Storage& device, const c10::Storage& host, Span span) {
  if (span.empty()) return;
  const size_t bytes = span.end - span.begin;
  in_use_.push_back(host);
  enqueue(static_cast<char*>(host.mutable_data()) + span.begin, TEFL_HOST,
          static_cast<const char*>(device.data()) + span.begin, index_, bytes);
  bytes_to_host_ += bytes;
}

void Transfer::give_back(const at::Tensor& host, const at::Tensor& device) {
  const c10::Storage from = host.storage();
  in_use_.push_back(from);
  c10::Storage to = device.storage();
  if (from.nbytes() != to.nbytes()) resize_storage(to, from.nbytes());
  const auto* source = static_cast<const char*>(from.data());
  auto* destination = static_cast<char*>(writable_data(to));
  for_each_run(host, [&](size_t offset, size_t bytes) {
    enqueue(destination + offset, index_, source + offset, TEFL_HOST, bytes);
    bytes_to_device_ += bytes;
  });
}

c10::Storage Transfer::new_device_storage(const c10::Storage& host) {
  const c10::DeviceGuard guard(device_at(index_));
  const size_t bytes = host.nbytes();
  c10::Storage fresh(c10::Storage::use_byte_size_t(), bytes, allocator().allocate(bytes), &allocator(),
                     /*resizable=*/true);
  in_use_.push_back(host);
  if (bytes != 0) enqueue(fresh.mutable_data(), index_, host.data(), TEFL_HOST, bytes);
  bytes_to_device_ += bytes;
  return fresh;
}

void Transfer::wait() {
  if (!pending_) return;
  wait_for_current_stream(index_);
  pending_ = false;
  in_use_.clear();
}

void Transfer::finish() {
  wait();
  count_fallback(op_, bytes_to_host_, bytes_to_device_);
}

void Transfer::enqueue(void* destination, int32_t destination_device, const void* source,
                       int32_t source_device, size_t bytes) {
  pending_ = true;
  enqueue_copy(destination, destination_device, source, source_device, bytes, current_stream(index_), name_);
}

}  // namespace tefl::device
