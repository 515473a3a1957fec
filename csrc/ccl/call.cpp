#include "ccl/call.h"

#include <c10/util/Exception.h>

#include "ccl/reduction.h"
#include "device/provider.h"

namespace tefl::ccl {
namespace {

// What an exception says, without the C++ backtrace that PyTorch adds to its own.
std::string reason_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const c10::Error& raised) {
    return raised.what_without_backtrace();
  } catch (const std::exception& raised) {
    return raised.what();
  } catch (...) {
    return "an unknown failure";
  }
}

}  // namespace

std::string Call::describe() const {
  std::string text = std::string(name) + " #" + std::to_string(number);
  if (type != c10d::OpType::BARRIER) {
    text += " of " + std::to_string(numel) + " x " + c10::toString(dtype);
  }
  return text + " on rank " + std::to_string(rank) + " of " + std::to_string(size);
}

std::string root(int64_t rank) { return ", root " + std::to_string(rank); }

std::string by(const c10d::ReduceOp& op) { return ", " + name_of(op); }

void measure(Call& call, const std::vector<at::Tensor>& tensors) {
  if (tensors.empty()) return;
  call.dtype = tensors.front().scalar_type();
  for (const auto& tensor : tensors) call.numel += tensor.numel();
}

void fail(const Call& call, const std::string& reason) {
  C10_THROW_ERROR(DistBackendError, device::device_name() + ": " + call.describe() + ": " + reason);
}

std::exception_ptr failure_of(const Call& call, const std::exception_ptr& error, const std::string& more) {
  try {
    fail(call, reason_of(error) + more);
  } catch (...) {
    return std::current_exception();
  }
}

}  // namespace tefl::ccl
