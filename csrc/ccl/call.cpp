#include "ccl/call.h"

#include <c10/util/Exception.h>

#include "device/provider.h"

namespace tefl::ccl {
namespace {

std::string amount(const Call& call) {
  if (call.type == c10d::OpType::BARRIER) return "";
  return " of " + std::to_string(call.numel) + " x " + c10::toString(call.dtype);
}

// In a dimension of one element nobody takes a step.
std::vector<int64_t> strides_that_count(const at::Tensor& tensor) {
  std::vector<int64_t> strides;
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    if (tensor.size(dim) != 1) strides.push_back(tensor.stride(dim));
  }
  return strides;
}

std::string prefix_of(const Call& call) { return device::device_name() + ": " + call.describe() + ": "; }

}  // namespace

std::string Call::describe() const {
  return std::string(name) + " #" + std::to_string(number) + amount(*this) + " on rank " +
         std::to_string(rank) + " of " + std::to_string(size);
}

std::string Call::form() const {
  std::string text = name;
  if (!amounts_differ) text += amount(*this);
  if (reduction != nullptr) text += std::string(", ") + reduction;
  if (root) text += ", root " + std::to_string(*root);
  return text + layout;
}

void measure(Call& call, at::TensorList tensors) {
  if (tensors.empty()) return;
  call.dtype = tensors.front().scalar_type();
  const bool in_pieces = tensors.size() > 1 && !call.amounts_differ;
  if (in_pieces) call.layout += ", in pieces of";
  for (const auto& tensor : tensors) {
    call.numel += tensor.numel();
    if (in_pieces) call.layout += " " + std::to_string(tensor.numel());
    if (call.in_memory_order && !tensor.is_contiguous())
      call.layout += ", strides " + c10::str(c10::IntArrayRef(strides_that_count(tensor)));
  }
}

void fail(const Call& call, const std::string& reason) {
  C10_THROW_ERROR(DistBackendError, prefix_of(call) + reason);
}

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

std::exception_ptr failure_of(const Call& call, const std::exception_ptr& error, const std::string& more) {
  const auto reason = reason_of(error);
  if (reason.rfind(prefix_of(call), 0) == 0) return error;  // fail() has made it
  try {
    fail(call, reason + more);
  } catch (...) {
    return std::current_exception();
  }
}

}  // namespace tefl::ccl
