// What is remembered of one op's calls, so that a call like an earlier one runs without a question.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "dispatch/form.h"
#include "dispatch/native_kernel.h"
#include "dispatch/python_ref.h"

namespace tefl::dispatch {

// A native kernel, and the capsule that it and its state live in.
struct NativeTarget {
  NativeKernel kernel;
  PyRef owner;
};

// The form that a result must have: the fake function's promise.
struct Promise {
  at::ScalarType dtype;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;

  bool is_kept_by(const at::Tensor& result) const;
};

// What serves a call: a Python callable, called under the GIL, or a native kernel, or whatever Python decides
// each time.
using Target = std::variant<std::monostate, PyRef, NativeTarget>;

// What is known of all calls of one form: that the declaration's check has passed, and what serves them.
struct Line {
  Form form;
  Target target;
  PyRef impl_id;
  // The implementation's predicate on arguments, if it has one: the target runs where that answers None or
  // True.
  PyRef supports;
  // (result, args, kwargs) -> the result in the promised form; raises where it cannot be brought to it.
  PyRef mend;
  // One an output, none for one that is no tensor; empty where the implementation is trusted to keep to it.
  std::vector<std::optional<Promise>> promises;
  // Whether the implementation is not trusted either to leave alone what the op leaves alone.
  bool is_watched;
};

// The lines that hold as long as the epoch does. Never changed once others can see it.
class Table {
 public:
  explicit Table(int64_t epoch) : epoch_(epoch) {}

  int64_t epoch() const { return epoch_; }
  std::shared_ptr<const Line> find(const Form& form) const;
  // A table with that line as well. Where this one is full, with no other: forms that come once do not pile
  // up.
  std::shared_ptr<const Table> with(std::shared_ptr<const Line> line) const;

 private:
  static constexpr size_t kCapacity = 512;
  static constexpr size_t kSlots = 2 * kCapacity;

  void place(std::shared_ptr<const Line> line);

  int64_t epoch_;
  size_t size_ = 0;
  std::array<std::shared_ptr<const Line>, kSlots> slots_;
};

// The current table of one op. Written under the GIL; a reader takes the GIL only after a change.
class Memory {
 public:
  Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  // The line of that form, null where none is remembered or the epoch has changed.
  std::shared_ptr<const Line> find(const Form& form);
  // The GIL must be held.
  void remember(int64_t epoch, std::shared_ptr<const Line> line);
  void forget();

 private:
  const Table* current();
  void publish(std::shared_ptr<const Table> table);

  const size_t index_;
  std::atomic<uint64_t> version_{0};
  std::shared_ptr<const Table> table_;
};

}  // namespace tefl::dispatch
