#include "device/alias_kernel.h"

#include <c10/util/Exception.h>

#include "device/alias_call.h"
#include "device/alias_run.h"
#include "device/alias_target.h"
#include "device/provider.h"

namespace tefl::device {
namespace {

void call_aliased(const AliasPlan& plan, const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  ensure_initialized();
  AliasCall call(plan, op);
  call.enter(*stack);
  run_on_alias(op, call.index(), [&] { op.callBoxed(stack); });
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
