// The alias of a call's only tensor, as a library that orders streams itself gets it.
#pragma once

#include <memory>

#include "ccl/tensors.h"

namespace tefl::ccl {

/// A zero-copy alias of one tensor, alone in the list that process groups take. Each thread keeps one that it
/// uses again, so that neither is made. Its memory says what it was allocated by, so that a library which
/// tells that allocator of its streams finds it. One that the library holds when the call returns, as of an
/// asynchronous call, owns the memory from then on, and another one is made for the thread.
class LoneAlias {
 public:
  /// Of `tensor`, a strided one of our device, which outlives this, as does its Storage. Waits for no stream.
  explicit LoneAlias(const at::Tensor& tensor);
  ~LoneAlias();
  LoneAlias(const LoneAlias&) = delete;
  LoneAlias& operator=(const LoneAlias&) = delete;

  /// The alias is the only element. For the library to read: what puts another pointer into its Storage, as
  /// at::_lazy_clone() does, would free the memory.
  Tensors& list() { return kept_->list; }

 private:
  struct Kept {
    Tensors list;
    c10::Storage own;  // the alias's
  };
  static Kept make(c10::Device device);
  static std::unique_ptr<Kept> take(c10::Device device);
  void replace();

  static thread_local Kept* spare_;  // the thread's; null while a call has it
  const at::Tensor& original_;
  std::unique_ptr<Kept> kept_;
};

}  // namespace tefl::ccl
