// Kernels on the claimed device through its provider's launch table.
#pragma once

#include "launch/launcher.h"

namespace tefl::launch {

/// Only where a provider with a launch table is claimed.
const Launcher& provider_launcher();

}  // namespace tefl::launch
