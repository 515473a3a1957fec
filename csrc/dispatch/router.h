// The kernel of an op's backend keys: runs the implementation that served an earlier call of the same form,
// and asks Python where there is none.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "dispatch/table.h"
#include "dispatch/values.h"
#include "dispatch/writes.h"

namespace tefl::dispatch {

class Router {
 public:
  // `serve(token, args, kwargs, form, checked)` is asked where no line says what to run: it runs the op, and
  // may hand the form back to `remember`; `checked` says that calls of that form have passed the check.
  // `recover(token, args, kwargs, impl_id, error)` is asked where an implementation has raised: it runs
  // another one, or raises. `wrote(impl_id, argument, error)` raises about one that has written an argument
  // which the op leaves alone, and may have raised as well. The GIL must be held.
  Router(const c10::OperatorHandle& op, PyObject* serve, PyObject* recover, PyObject* wrote);

  void call(torch::jit::Stack* stack);

  Memory& memory() { return memory_; }

 private:
  void ask(torch::jit::Stack* stack, const Form* form, int64_t token, bool is_checked);
  // False where the implementation's predicate does not take the arguments; nothing has run then.
  bool run(torch::jit::Stack* stack, const Line& line);
  bool run(torch::jit::Stack* stack, const Line& line, const NativeKernel& kernel);
  bool run(torch::jit::Stack* stack, const Line& line, const PyRef& callable);
  bool accepts(const torch::jit::Stack& stack, const Line& line, const PythonArguments& arguments) const;
  PyRef called(const torch::jit::Stack& stack, const Line& line, const PyRef& callable,
               const PythonArguments& arguments) const;
  [[noreturn]] void refuse_write(const Line& line, const std::string& argument, const char* who) const;
  bool keeps_promises(const torch::jit::Stack& stack, const Line& line, const Results& results) const;
  void recover(torch::jit::Stack* stack, const Line& line, const PythonArguments& arguments);
  // Puts what Python has returned in the place of the arguments.
  void finish(torch::jit::Stack* stack, PyObject* returned) const;
  void replace(torch::jit::Stack* stack, Results&& results) const;
  PyRef python_call(const PyRef& function, std::initializer_list<PyObject*> arguments) const;

  const c10::OperatorHandle op_;
  const Convention convention_;
  const ReadOnly read_only_;
  const PyRef serve_, recover_, wrote_;
  Memory memory_;
};

}  // namespace tefl::dispatch
