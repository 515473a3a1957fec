// The tensors of a call as the library beneath gets them: zero-copy aliases on the alias device.
#pragma once

#include <optional>

#include "ccl/tensors.h"
#include "device/alias_loan.h"

namespace tefl::ccl {

/// What the library does with the aliases of a call.
enum class Use {
  kHolds,    // it holds them until it is done
  kLetsGo,   // it has let go of them when the call returns; one that it keeps all the same stays good
  kRecords,  // it tells the memory's allocator which stream uses them, and lets go of them
};

/// One call's. Waits for no stream. It outlives the vectors that its aliases were put into.
class Aliases {
 public:
  explicit Aliases(Use use) : use_(use) {
    if (use == Use::kLetsGo) loan_.emplace();
  }

  at::Tensor of(const at::Tensor& tensor);
  Tensors of(at::TensorList tensors);
  Lists of(const Lists& lists);

 private:
  const Use use_;
  std::optional<device::LentAliases> loan_;  // the thread's, a third of the cost of making some
};

}  // namespace tefl::ccl
