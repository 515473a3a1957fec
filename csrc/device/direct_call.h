// One call of an operator by the short way: arguments and results keep their C++ types.
#pragma once

#include <ATen/core/IListRef.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "device/alias_loan.h"

namespace tefl::device {

/// What a tensor of the device has, unless it is of a kind of its own.
constexpr c10::DispatchKeySet kOurs(c10::DispatchKey::PrivateUse1);

/// Lends aliases for a call's tensors, and makes the device's tensors of its results.
class DirectCall {
 public:
  DirectCall();
  ~DirectCall();
  DirectCall(const DirectCall&) = delete;
  DirectCall& operator=(const DirectCall&) = delete;

  /// The number of the tensor's alias; kNone for a number on the host and for no tensor, which go in as they
  /// are; kRefused where the alias kernel must see to the call, which has other rules and the errors.
  int64_t enter(const at::Tensor& tensor, bool written);
  static constexpr int64_t kNone = -1, kRefused = -2;
  /// Enters the first tensors of a list that there is room for, as far as they are plain and new; returns how
  /// many. Their numbers are in a row, up to the last of all.
  size_t enter_row(at::TensorList tensors);

  /// Whether so many more tensors may enter.
  bool has_room(size_t tensors) const { return lent_.has_more(tensors); }
  bool has_operand() const { return lent_.size() != 0; }
  int64_t entered() const { return static_cast<int64_t>(lent_.size()); }
  /// The device that the call is for; only with an operand.
  c10::Device device() const { return device_; }
  at::Tensor* aliases() { return lent_.aliases(); }
  at::Tensor& alias(int64_t number) { return lent_.alias(static_cast<size_t>(number)); }

  /// What `op` wrote, resized perhaps.
  void take_back(int64_t number) {
    adopt_written(lent_.alias(static_cast<size_t>(number)), lent_.original(static_cast<size_t>(number)));
  }
  /// The device's tensor for what the alias device's kernel made.
  at::Tensor result(at::Tensor made, const c10::OperatorHandle& op);

 private:
  int64_t enter_unusual(const at::Tensor& tensor, bool written);
  C10_ALWAYS_INLINE int64_t lend(const at::Tensor& tensor, c10::Device device);
  at::Tensor unusual_result(at::Tensor made, const c10::OperatorHandle& op);
  static void adopt_written(const at::Tensor& alias, const at::Tensor& original);
  at::Tensor seen_elsewhere(at::Tensor made);

  LentAliases lent_;
  c10::Device device_{c10::kCPU};
  using Made = std::vector<std::pair<c10::Storage, c10::Storage>>;  // the alias's, ours
  std::unique_ptr<Made> made_;                                      // once results share memory
};

/// How an argument of type `Argument` goes in: as it is, but for tensors.
template <typename Argument>
struct Passed {
  bool enter(DirectCall&, const std::remove_reference_t<Argument>&) { return true; }
  template <typename Given>
  Argument alias(DirectCall&, Given& given) {
    return static_cast<Argument>(std::forward<Argument>(given));
  }
  void leave(DirectCall&) {}
};

template <>
struct Passed<const at::Tensor&> {
  int64_t number = DirectCall::kNone;
  bool enter(DirectCall& call, const at::Tensor& tensor) {
    number = call.enter(tensor, /*written=*/false);
    return number != DirectCall::kRefused;
  }
  const at::Tensor& alias(DirectCall& call, const at::Tensor& tensor) {
    return number < 0 ? tensor : call.alias(number);
  }
  void leave(DirectCall&) {}
};

/// Written: in place, or out=.
template <>
struct Passed<at::Tensor&> {
  int64_t number = DirectCall::kNone;
  bool enter(DirectCall& call, const at::Tensor& tensor) {
    number = call.enter(tensor, /*written=*/true);
    return number >= 0;
  }
  at::Tensor& alias(DirectCall& call, const at::Tensor&) { return call.alias(number); }
  void leave(DirectCall& call) { call.take_back(number); }
};

template <>
struct Passed<const std::optional<at::Tensor>&> {
  int64_t number = DirectCall::kNone;
  std::optional<at::Tensor> held;
  bool enter(DirectCall& call, const std::optional<at::Tensor>& tensor) {
    if (tensor) number = call.enter(*tensor, /*written=*/false);
    return number != DirectCall::kRefused;
  }
  const std::optional<at::Tensor>& alias(DirectCall& call, const std::optional<at::Tensor>& tensor) {
    if (number < 0) return tensor;
    return held = call.alias(number);
  }
  void leave(DirectCall&) {}
};

/// Lists, written or not: kernels of lists resize nothing. Where all of a list's aliases are new, they lie in
/// a row and are the list that goes in.
struct PassedList {
  int64_t first = 0;
  size_t in_a_row = 0;           // so many from the first on, or none
  std::vector<int64_t> numbers;  // of all, where they are not
  std::vector<at::Tensor> held;
  template <typename List>
  bool enter(DirectCall& call, const List& tensors) {
    if (C10_UNLIKELY(!call.has_room(tensors.size()))) return false;
    if constexpr (std::is_same_v<List, at::TensorList>) {
      first = call.entered();
      in_a_row = call.enter_row(tensors);
      return in_a_row == tensors.size() || enter_rest(call, tensors.slice(in_a_row));
    } else {
      return enter_rest(call, tensors);
    }
  }
  template <typename List>
  bool enter_rest(DirectCall& call, const List& tensors) {
    for (const at::Tensor& tensor : tensors) {
      const int64_t number = call.enter(tensor, /*written=*/false);
      if (C10_UNLIKELY(number == DirectCall::kRefused)) return false;
      note(number);
    }
    return true;
  }
  template <typename List>
  at::TensorList alias(DirectCall& call, const List& tensors) {
    if (numbers.empty()) return {call.aliases() + first, in_a_row};
    held.reserve(numbers.size());
    auto number = numbers.begin();
    for (const at::Tensor& tensor : tensors) {
      held.push_back(*number < 0 ? tensor : call.alias(*number));
      ++number;
    }
    return held;
  }
  void leave(DirectCall&) { held.clear(); }

 private:
  void note(int64_t number) {
    const bool next =
        number >= 0 && numbers.empty() && (in_a_row == 0 || number == first + static_cast<int64_t>(in_a_row));
    if (C10_LIKELY(next)) {
      if (in_a_row++ == 0) first = number;
      return;
    }
    for (; in_a_row != 0; --in_a_row) numbers.push_back(first++);
    numbers.push_back(number);
  }
};

template <>
struct Passed<at::TensorList> : PassedList {};
template <>
struct Passed<const at::ITensorListRef&> : PassedList {
  at::ITensorListRef kept;
  const at::ITensorListRef& alias(DirectCall& call, const at::ITensorListRef& tensors) {
    return kept = PassedList::alias(call, tensors);
  }
};

}  // namespace tefl::device
