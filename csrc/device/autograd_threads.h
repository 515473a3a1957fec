// The threads on which PyTorch runs the backward of the device's tensors.
#pragma once

namespace tefl::device {

/// Waits until these threads have let go of every backward that is done. Called without the GIL, as the
/// interpreter begins to end.
///
/// Such a thread drops a finished backward after the caller has gone on, and needs the GIL for it: PyTorch
/// keeps the caller's context variables with each backward. A thread that asks for the GIL of an interpreter
/// that has ended is ended in turn, in the midst of a destructor, and that aborts the process.
void settle_autograd_threads();

}  // namespace tefl::device
