#include "device/alias_kernel.h"

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>

#include "device/alias_call.h"
#include "device/alias_target.h"
#include "device/current_device.h"
#include "device/host_redirect.h"
#include "device/provider.h"
#include "device/streams.h"

namespace tefl::device {
namespace {

void call_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack, c10::DeviceIndex index) {
  try {
    wait_for_current_stream(index);  // the kernel runs now, on this thread, not in stream order
  } catch (c10::Error& error) {
    error.add_context("while " + c10::toString(op.operator_name()) + " waited for the work before it");
    throw;
  }
  RedirectHostMemory redirect(index);
  op.callBoxed(stack);
}

void call_aliased(const AliasPlan& plan, const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  ensure_initialized();
  AliasCall call(plan, op);
  call.enter(*stack);
  try {
    c10::impl::ExcludeDispatchKeyGuard exclude(kOuterKeys);
    if (alias_target().type == c10::kCPU && !alias_target().copies) {
      call_on_host(op, stack, call.index());
    } else {
      op.callBoxed(stack);
    }
  } catch (c10::NotImplementedError& error) {
    // What the alias device lacks, a dtype for the most part, is said in its terms: the device is named here.
    error.add_context(c10::str("while ", op.operator_name(), " ran on ", device_at(call.index())));
    throw;
  }
  call.leave(*stack);
}

}  // namespace

void AliasKernel::operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  call_aliased(plan_, op, stack);
}

void alias_fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  TORCH_CHECK_NOT_IMPLEMENTED(op.hasKernelForDispatchKey(alias_target().key), op.operator_name(),
                              " has no kernel for ", device_name(), ", nor for ",
                              c10::DeviceTypeName(alias_target().type, true),
                              ", where it would run instead. Move its operands with .cpu(), or register a "
                              "kernel with torch.library under PrivateUse1");
  call_aliased(AliasPlan(op.schema()), op, stack);
}

}  // namespace tefl::device
