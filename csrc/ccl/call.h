// One call of a collective: what it is, for the messages of everything that can go wrong with it.
#pragma once

#include <ATen/core/Tensor.h>

#include <exception>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

namespace tefl::ccl {

/// Who calls what, as which call of the group, where, and how much data it moves.
struct Call {
  c10d::OpType type;
  const char* name;                 // as torch.distributed spells it: "all_reduce"; a literal
  const char* reduction = nullptr;  // "SUM", of those that reduce; from name_of()
  std::optional<int64_t> root{};    // of those that have one
  bool in_memory_order = false;     // works on memory as it lies: layouts must be the same
  bool amounts_differ = false;      // ranks may move different amounts

  uint64_t number = 0;
  int rank = 0;
  int size = 1;
  c10::Device device{c10::kPrivateUse1, 0};
  int64_t numel = 0;
  at::ScalarType dtype = at::kByte;
  std::string layout{};  // what else must be the same: sizes in a list, strides that are not usual
  bool is_open = false;  // whether rank 0 calls the same is not known yet

  bool is_message() const {  // c10d::isP2POp() is not inlined
    return type == c10d::OpType::SEND || type == c10d::OpType::RECV || type == c10d::OpType::RECVANYSOURCE;
  }
  /// "all_reduce #7 of 1024 x Float on rank 1 of 4".
  std::string describe() const;
  /// What must be the same on all ranks: "all_reduce of 1024 x Float, SUM".
  std::string form() const;
};

/// How much data `tensors` are, put into `call`.
void measure(Call& call, at::TensorList tensors);

/// A torch.distributed.DistBackendError that reads "<device name>: <call>: <reason>".
[[noreturn]] void fail(const Call& call, const std::string& reason);

/// What an exception says, without the C++ backtrace that PyTorch adds to its own.
std::string reason_of(const std::exception_ptr& error);

/// The same as fail() raises as an exception to keep, made of whatever `error` holds, and `more`.
std::exception_ptr failure_of(const Call& call, const std::exception_ptr& error,
                              const std::string& more = "");

}  // namespace tefl::ccl
