// The tensors of a call as the library beneath gets them: zero-copy aliases on the alias device. One alone
// has a shorter way over NCCL, lone_alias.h.
#pragma once

#include <optional>

#include "ccl/tensors.h"
#include "device/alias_loan.h"

namespace tefl::ccl {

/// By what the library does with it.
enum class AliasKind {
  kHeld,  // holds it until it is done
  kLent,  // has let go of it when the call returns; one that it holds all the same stays good
};

/// The aliases of one call. Waits for no stream. To be declared before what holds them: one that is still
/// held at its end is not lent again.
class Aliases {
 public:
  explicit Aliases(AliasKind kind) {
    if (kind == AliasKind::kLent) loan_.emplace();
  }

  at::Tensor of(const at::Tensor& tensor);
  Tensors of(at::TensorList tensors);
  Lists of(const Lists& lists);

 private:
  std::optional<device::LentAliases> loan_;  // of the thread's, which costs less than making some
};

}  // namespace tefl::ccl
