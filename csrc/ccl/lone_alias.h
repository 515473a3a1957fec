// The alias of a call's only tensor, as a library that orders streams itself gets it.
#pragma once

#include <memory>

#include "ccl/tensors.h"

namespace tefl::ccl {

/// A zero-copy alias of one tensor, alone in the list that process groups take, without making either: each
/// thread keeps one that it uses again. Its memory says what it was allocated by, so that a library which
/// tells that allocator of its streams finds it. One that the library holds when the call returns owns the
/// memory from then on, and is not used again.
class LoneAlias {
 public:
  /// Of `tensor`, a strided one of our device, which outlives this. Waits for no stream.
  explicit LoneAlias(const at::Tensor& tensor);
  ~LoneAlias();
  LoneAlias(const LoneAlias&) = delete;
  LoneAlias& operator=(const LoneAlias&) = delete;

  /// For the library to read; the alias is its only element.
  Tensors& list() { return slot_->list; }

 private:
  struct Slot {
    Tensors list;
    c10::Storage own;
    bool is_taken = false;
  };
  static Slot* kept_slot(c10::Device device);
  static Slot new_slot(c10::Device device);
  void take_back();

  const at::Tensor& original_;
  std::unique_ptr<Slot> extra_;  // of a call within another one's
  Slot* slot_;
};

}  // namespace tefl::ccl
