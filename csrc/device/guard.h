// The device guard: how PyTorch's generic code reaches devices, streams and events.
#pragma once

namespace tefl::device {

/// Puts our guard into PyTorch's table. Cannot be undone: PyTorch and its callers keep the pointer.
void install_guard();

}  // namespace tefl::device
