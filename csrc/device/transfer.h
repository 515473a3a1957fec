// Copies of device memory in host memory, for devices whose memory nobody else can compute on.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace tefl::device {

/// A range of a storage's bytes.
struct Span {
  size_t begin = SIZE_MAX, end = 0;

  bool empty() const { return begin >= end; }
  void include(Span other);
};

/// The bytes between a tensor's first element and its last.
Span span_of(const at::Tensor& tensor);

/// Ordinary host memory as large as `source`. What is in it is undefined, but for what a Transfer fetches.
c10::Storage host_storage(const c10::Storage& source);

/// Never frees `storages`: a copy that does not end uses them. Better lost than written over.
void keep_for_ever(std::vector<c10::Storage> storages);

/// The copying that one operator needs, on the current stream of device `index`. Host memory that is given to
/// it is held until they are done, for ever where that cannot be seen.
class Transfer {
 public:
  Transfer(c10::DeviceIndex index, std::string op);
  ~Transfer();
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  /// Enqueues a copy of `span` from a device's storage to its host_storage().
  void fetch(const c10::Storage& device, const c10::Storage& host, Span span);
  /// Enqueues copies of the elements of `host` to `device`, which lie at the same places of their storages,
  /// and of nothing that lies between them: it may be somebody else's. Where the host's storage was resized,
  /// the device's is first.
  void give_back(const at::Tensor& host, const at::Tensor& device);
  /// A storage on the device with the contents of `host`, which are on their way.
  c10::Storage new_device_storage(const c10::Storage& host);

  /// Waits for what was enqueued.
  void wait();
  /// The same, and counts the whole for the operator.
  void finish();

 private:
  void enqueue(void* destination, int32_t destination_device, const void* source, int32_t source_device,
               size_t bytes);

  const c10::DeviceIndex index_;
  const std::string op_;
  const char* const name_;  // the same, for the stream's log
  uint64_t bytes_to_host_ = 0, bytes_to_device_ = 0;
  bool pending_ = false;
  std::vector<c10::Storage> in_use_;  // host memory that the copies on their way read or write
};

}  // namespace tefl::device
