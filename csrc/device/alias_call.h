// One call through the alias kernel: the device's values go in as the alias device's, and results come back.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "device/address_index.h"
#include "device/alias_plan.h"
#include "device/transfer.h"

namespace tefl::device {

/// Tensors that share a Storage get aliases that share one, so that the alias device's kernels see overlaps;
/// a tensor passed twice is one alias, so that they see in-place use. Throws where operands are on several
/// devices: the alias device's own checks can no longer tell. Where the target copies, the aliases lie over
/// host memory that enter() fills and whose changes leave() takes back.
class AliasCall {
 public:
  AliasCall(const AliasPlan& plan, const c10::OperatorHandle& op) : plan_(plan), op_(op) {}

  /// Replaces the arguments on top of `stack`, and decides which device the call is for.
  void enter(torch::jit::Stack& stack);
  /// Replaces the results on top of `stack`, and brings resized arguments up to date.
  void leave(torch::jit::Stack& stack);

  /// The device's index; after enter().
  c10::DeviceIndex index() const { return index_; }

 private:
  struct Twin {
    at::Tensor alias, original;
    bool written;
  };
  struct StorageTwin {
    c10::Storage alias, original;
    Span span;  // what the arguments use of it; only where the target copies
  };

  void to_alias(c10::IValue& value, size_t argument);
  /// Valid until the next call.
  const at::Tensor& alias_of(const at::Tensor& tensor, size_t argument);
  bool is_ours(const at::Tensor& tensor, size_t argument);
  const at::Tensor& new_alias(const at::Tensor& tensor, bool written);
  StorageTwin& shared_alias(const c10::Storage& storage);
  void fetch_arguments();
  void choose_device();
  void fill_generators(c10::IValue* arguments) const;
  [[noreturn]] void throw_device_mismatch() const;

  void to_device(c10::IValue& value);
  at::Tensor original_of(at::Tensor result);
  at::Tensor relabel(at::Tensor result);
  at::Tensor over_new_storage(const at::Tensor& result, c10::Storage storage);

  const AliasPlan& plan_;
  const c10::OperatorHandle& op_;
  c10::DeviceIndex index_ = -1;
  bool has_operand_ = false;             // some tensor is on our device
  bool has_generator_ = false;           // one was given
  std::optional<c10::Device> stranger_;  // where the first operand is that may not stay where it is
  size_t stranger_argument_ = 0;
  size_t operand_argument_ = 0;  // where the first tensor on our device is

  c10::SmallVector<Twin, 4> twins_;
  AddressIndex originals_, aliases_;
  c10::SmallVector<StorageTwin, 4> storages_;
  AddressIndex original_storages_, alias_storages_;
  std::unique_ptr<Transfer> transfer_;  // where the target copies; goes before the memory that it copies
};

}  // namespace tefl::device
