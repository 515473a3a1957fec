// The number of the policy that applies to a call, see tefl/dispatch/policy.py.
#pragma once

#include <cstdint>

#include "dispatch/python_ref.h"

namespace tefl::dispatch {

// Says which ContextVar holds the innermost entered context. The GIL must be held.
void set_context_variable(PyObject* variable);

// The token that applies here: that of the innermost open context, of the backward that runs on this thread,
// or 0 for the policy of the process. Takes the GIL only while a context is open somewhere.
int64_t current_token();

// Applies a token to this thread, as an autograd node does around its backward. A context that is entered
// inside applies nevertheless.
class TokenGuard {
 public:
  explicit TokenGuard(int64_t token);
  ~TokenGuard();
  TokenGuard(const TokenGuard&) = delete;
  TokenGuard& operator=(const TokenGuard&) = delete;

 private:
  int64_t outer_token_;
  PyObject* outer_frame_;
};

}  // namespace tefl::dispatch
