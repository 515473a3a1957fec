// Waiting for threads of ours that may want the interpreter's lock before they end.
#pragma once

#include <torch/csrc/python_headers.h>

namespace tefl::ccl {

/// While it lives, the calling thread has not the interpreter's lock. PyTorch's process groups are destroyed
/// without it, a backend whose last reference is Python's is destroyed with it.
class WithoutInterpreter {
 public:
  WithoutInterpreter() : state_(Py_IsInitialized() && PyGILState_Check() ? PyEval_SaveThread() : nullptr) {}
  ~WithoutInterpreter() {
    if (state_ != nullptr) PyEval_RestoreThread(state_);
  }
  WithoutInterpreter(const WithoutInterpreter&) = delete;
  WithoutInterpreter& operator=(const WithoutInterpreter&) = delete;

 private:
  PyThreadState* const state_;
};

}  // namespace tefl::ccl
