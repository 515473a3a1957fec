#include "device/alias_target.h"

namespace tefl::device {
namespace {

AliasTarget target{c10::kCPU, c10::DispatchKey::CPU};

}  // namespace

const AliasTarget& alias_target() noexcept { return target; }

void set_alias_target(tefl_alias alias) {
  if (alias == TEFL_ALIAS_CUDA) target = {c10::kCUDA, c10::DispatchKey::CUDA};
}

}  // namespace tefl::device
