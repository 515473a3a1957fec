// Letting go of works and tensors in threads of ours.
#pragma once

#include <utility>

#include "device/lifetime.h"

namespace tefl::ccl {

/// Empties `thing`, which may hold the last references to Python objects. While the interpreter ends nothing
/// may be let go any more; then what it holds lives as long as the process.
template <class Thing>
void let_go(Thing& thing) {
  const device::Releasing releasing;
  if (device::may_release()) {
    thing = Thing();
  } else {
    new Thing(std::move(thing));
  }
}

}  // namespace tefl::ccl
