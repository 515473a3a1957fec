#include "device/alias_target.h"

namespace tefl::device {
namespace {

AliasTarget target_of(c10::DeviceType type, c10::DispatchKey key, bool copies) {
  const auto backend = c10::toBackendComponent(key);
  const auto autocast = c10::getAutocastRelatedKeySetFromBackend(backend);
  return {type, key, c10::DispatchKeySet(key), backend, autocast, copies};
}

AliasTarget target = target_of(c10::kCPU, c10::DispatchKey::CPU, false);

}  // namespace

const AliasTarget& alias_target() noexcept { return target; }

void set_alias_target(tefl_alias alias) {
  target = alias == TEFL_ALIAS_CUDA
               ? target_of(c10::kCUDA, c10::DispatchKey::CUDA, false)
               : target_of(c10::kCPU, c10::DispatchKey::CPU, /*copies=*/alias == TEFL_ALIAS_NONE);
}

}  // namespace tefl::device
