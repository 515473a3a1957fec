// One call of an operator by the short way: arguments and results keep their C++ types.
#pragma once

#include <ATen/core/IListRef.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "device/alias_loan.h"

namespace tefl::device {

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
  /// Enters the longest prefix of a list that lend_prefix() can lend; returns its length. The numbers are
  /// consecutive, from entered() on. Wants has_room(tensors.size()).
  size_t enter_prefix(at::TensorList tensors);

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
  int64_t lend(const at::Tensor& tensor, c10::Device device);
  at::Tensor unusual_result(at::Tensor made, const c10::OperatorHandle& op);
  static void adopt_written(const at::Tensor& alias, const at::Tensor& original);
  at::Tensor seen_elsewhere(at::Tensor made);

  LentAliases lent_;
  c10::Device device_{c10::kCPU};
  // The alias's and ours, of results that are arguments or share memory. Few calls have any, and the end of
  // an empty vector is a call.
  using Made = std::vector<std::pair<c10::Storage, c10::Storage>>;
  std::unique_ptr<Made> made_;
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

/// Lists, written or not: kernels of lists resize nothing. Where the numbers of a list are consecutive, its
/// aliases are themselves the list that goes in; else one is made.
struct PassedList {
  int64_t first = 0;
  size_t consecutive = 0;        // so many numbers from the first on; none where they are spelt out
  std::vector<int64_t> numbers;  // of all tensors, where they are not consecutive
  std::vector<at::Tensor> held;

  /// An at::ITensorListRef is no array, and its tensors enter one by one.
  template <typename List>
  bool enter(DirectCall& call, const List& tensors) {
    if (C10_UNLIKELY(!call.has_room(tensors.size()))) return false;
    if constexpr (std::is_same_v<List, at::TensorList>) {
      first = call.entered();
      consecutive = call.enter_prefix(tensors);
      return consecutive == tensors.size() || enter_each(call, tensors.slice(consecutive));
    } else {
      return enter_each(call, tensors);
    }
  }
  template <typename List>
  at::TensorList alias(DirectCall& call, const List& tensors) {
    if (numbers.empty()) return {call.aliases() + first, consecutive};
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
  template <typename List>
  bool enter_each(DirectCall& call, const List& tensors) {
    for (const at::Tensor& tensor : tensors) {
      const int64_t number = call.enter(tensor, /*written=*/false);
      // One on the host may stay there if the list is not written, which the alias kernel knows.
      const bool on_host = number == DirectCall::kNone && tensor.defined();
      if (C10_UNLIKELY(number == DirectCall::kRefused || on_host)) return false;
      add(number);
    }
    return true;
  }
  void add(int64_t number) {
    if (numbers.empty() && consecutive == 0 && number >= 0) first = number;
    if (numbers.empty() && number == first + static_cast<int64_t>(consecutive)) {
      ++consecutive;
      return;
    }
    if (numbers.empty()) spell_out();
    numbers.push_back(number);
  }
  void spell_out() {
    numbers.resize(consecutive);
    std::iota(numbers.begin(), numbers.end(), first);
    consecutive = 0;
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
