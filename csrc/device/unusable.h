// The device of a provider that failed its checks.
#pragma once

#include <string>

namespace tefl::device {

/// Lets torch's own ways to a device, which ask no Python module (generators, streams, events, pinned
/// memory), raise `message`, which says what is wrong with the provider. Does nothing where another library
/// has registered a device. Asking how many devices there are, or whether memory is pinned, answers that
/// there is none.
void install_unusable(const std::string& message);

}  // namespace tefl::device
