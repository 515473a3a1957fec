// One call of a collective: what it is, for the messages of everything that can go wrong with it.
#pragma once

#include <ATen/core/Tensor.h>

#include <exception>
#include <string>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

namespace tefl::ccl {

/// Who calls what, the how-maniest call of the group it is, and how much data it moves.
struct Call {
  c10d::OpType type;
  const char* name;  // as torch.distributed spells it: "all_reduce"
  uint64_t number = 0;
  int rank = 0;
  int size = 1;
  int64_t numel = 0;
  at::ScalarType dtype = at::kByte;

  /// "all_reduce #7 of 1024 x Float on rank 1 of 4".
  std::string describe() const;
};

/// How much data `tensors` are, put into `call`.
void measure(Call& call, const std::vector<at::Tensor>& tensors);

/// What is compared between ranks besides the size: ", root 2", ", SUM".
std::string root(int64_t rank);
std::string by(const c10d::ReduceOp& op);

/// A torch.distributed.DistBackendError that reads "<device name>: <call>: <reason>".
[[noreturn]] void fail(const Call& call, const std::string& reason);

/// The same as an exception to keep, made of whatever `error` holds, and `more`.
std::exception_ptr failure_of(const Call& call, const std::exception_ptr& error,
                              const std::string& more = "");

}  // namespace tefl::ccl
