// The tensor of a message, as a library that records streams gets it.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace tefl::device {

/// The alias device's tensor over the memory of one of ours, as tensor_over() makes one, but over the Storage
/// that the memory's allocator made: for a library that tells that allocator which of its streams uses the
/// memory, and in a group of calls holds it no longer than the call. Each thread keeps one that it uses
/// again; one that is held longer, as by the work of a message alone, stays good. No views may be made of it,
/// since they would be of the Storage's device.
class MessageAlias {
 public:
  /// Of `tensor`, a strided one of our device. Waits for no stream.
  explicit MessageAlias(const at::Tensor& tensor);
  ~MessageAlias();
  MessageAlias(const MessageAlias&) = delete;
  MessageAlias& operator=(const MessageAlias&) = delete;

  /// That alias alone.
  std::vector<at::Tensor>& tensors() { return tensors_; }

 private:
  std::vector<at::Tensor> tensors_;
};

}  // namespace tefl::device
