#include "device/alias_target.h"

namespace tefl::device {
namespace {

AliasTarget target{c10::kCPU, c10::DispatchKey::CPU, false};

}  // namespace

const AliasTarget& alias_target() noexcept { return target; }

void set_alias_target(tefl_alias alias) {
  target.copies = alias == TEFL_ALIAS_NONE;
  if (alias == TEFL_ALIAS_CUDA) target = {c10::kCUDA, c10::DispatchKey::CUDA, false};
}

}  // namespace tefl::device
