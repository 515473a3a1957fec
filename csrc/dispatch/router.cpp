#include "dispatch/router.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/Exceptions.h>

#include "dispatch/form_object.h"
#include "dispatch/policy.h"
#include "dispatch/state.h"

namespace tefl::dispatch {
namespace {

// The exception that is set, which no longer is then; null where none is.
PyRef raised() {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  if (type == nullptr) return {};
  PyErr_NormalizeException(&type, &value, &traceback);
  if (traceback != nullptr) PyException_SetTraceback(value, traceback);
  Py_XDECREF(type);
  Py_XDECREF(traceback);
  return PyRef::steal(value);
}

// What is_alias_of asks, without its further look at storages that several interpreters share.
bool has_storage_of(const at::Tensor& tensor, const at::Tensor& other) {
  const auto storage = [](const at::Tensor& of) {
    return of.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  };
  return storage(tensor) == storage(other);
}

// An implementation's own graph and views stay its own: autograd would take a result that it knows for a part
// of them, and so its gradient for theirs.
void forget_history(c10::IValue& result) {
  if (!result.isTensor() || !result.toTensor().defined()) return;
  const at::Tensor& tensor = result.toTensor();
  if (C10_LIKELY(tensor.unsafeGetTensorImpl()->autograd_meta() == nullptr)) return;
  if (!tensor.is_view() && !tensor.requires_grad()) return;
  const at::AutoDispatchBelowADInplaceOrView below;
  result = tensor.detach();
}

}  // namespace

Router::Router(const c10::OperatorHandle& op, PyObject* serve, PyObject* recover, PyObject* wrote)
    : op_(op),
      convention_(op.schema()),
      read_only_(op.schema()),
      serve_(PyRef::borrow(serve)),
      recover_(PyRef::borrow(recover)),
      wrote_(PyRef::borrow(wrote)) {}

void Router::call(torch::jit::Stack* stack) {
  const int64_t token = current_token();
  const size_t arity = convention_.arity();
  Form form;
  if (!form.describe(token, stack->data() + (stack->size() - arity), arity)) {
    return ask(stack, nullptr, token, /*is_checked=*/false);
  }
  const std::shared_ptr<const Line> line = memory_.find(form);
  const bool may_run = line != nullptr && !state().recording.load(std::memory_order_relaxed);
  if (may_run && run(stack, *line)) return;
  const bool is_settled = line != nullptr && !std::holds_alternative<std::monostate>(line->target);
  ask(stack, is_settled ? nullptr : &form, token, /*is_checked=*/line != nullptr);
}

void Router::ask(torch::jit::Stack* stack, const Form* form, int64_t token, bool is_checked) {
  const Gil gil;
  PythonArguments arguments;
  convention_.read(*stack, arguments);
  const PyRef number = PyRef::steal(PyLong_FromLongLong(token));
  const PyRef args = convention_.args(arguments), kwargs = convention_.kwargs(arguments);
  const PyRef description = form == nullptr ? PyRef::borrow(Py_None) : form_object(*form);
  PyObject* const checked = is_checked ? Py_True : Py_False;
  const PyRef returned =
      python_call(serve_, {number.get(), args.get(), kwargs.get(), description.get(), checked});
  finish(stack, returned.get());
}

bool Router::run(torch::jit::Stack* stack, const Line& line) {
  if (const auto* callable = std::get_if<PyRef>(&line.target)) return run(stack, line, *callable);
  if (const auto* native = std::get_if<NativeTarget>(&line.target)) return run(stack, line, native->kernel);
  return false;
}

bool Router::run(torch::jit::Stack* stack, const Line& line, const PyRef& callable) {
  const Gil gil;
  PythonArguments arguments;
  convention_.read(*stack, arguments);
  if (!accepts(*stack, line, arguments)) return false;
  const PyRef returned = called(*stack, line, callable, arguments);
  if (!returned) {
    recover(stack, line, arguments);
    return true;
  }
  Results results;
  if (convention_.take(returned.get(), results) && keeps_promises(*stack, line, results)) {
    replace(stack, std::move(results));
    return true;
  }
  const PyRef args = convention_.args(arguments), kwargs = convention_.kwargs(arguments);
  const PyRef mended = PyRef::steal(
      PyObject_CallFunctionObjArgs(line.mend.get(), returned.get(), args.get(), kwargs.get(), nullptr));
  if (mended) {
    finish(stack, mended.get());
  } else {
    recover(stack, line, arguments);
  }
  return true;
}

bool Router::run(torch::jit::Stack* stack, const Line& line, const NativeKernel& kernel) {
  if (line.supports) {
    const Gil gil;
    PythonArguments arguments;
    convention_.read(*stack, arguments);
    if (!accepts(*stack, line, arguments)) return false;
  }
  try {
    kernel.function(kernel.state, op_, stack);
    return true;
  } catch (...) {
    const Gil gil;
    torch::translate_exception_to_python(std::current_exception());
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PythonArguments arguments;
    convention_.read(*stack, arguments);
    PyErr_Restore(type, value, traceback);
    recover(stack, line, arguments);
  }
  return true;
}

// Null where the callable raises.
PyRef Router::called(const torch::jit::Stack& stack, const Line& line, const PyRef& callable,
                     const PythonArguments& arguments) const {
  if (!line.is_watched) return convention_.call(callable.get(), arguments);
  const Versions before = read_only_.versions(stack);
  PyRef returned = convention_.call(callable.get(), arguments);
  if (!returned && !PyErr_ExceptionMatches(PyExc_Exception)) return returned;  // an interrupt stays one
  if (const std::string* argument = read_only_.written(stack, before))
    refuse_write(line, *argument, "implementation");
  return returned;
}

void Router::refuse_write(const Line& line, const std::string& argument, const char* who) const {
  const PyRef error = raised();
  const PyRef name = PyRef::steal(PyUnicode_FromStringAndSize(argument.data(), argument.size()));
  const PyRef subject = PyRef::steal(PyUnicode_FromString(who));
  python_call(wrote_, {line.impl_id.get(), name.get(), error ? error.get() : Py_None, subject.get()});
  TORCH_INTERNAL_ASSERT(false, "what tells of a write must raise");
}

bool Router::accepts(const torch::jit::Stack& stack, const Line& line,
                     const PythonArguments& arguments) const {
  if (!line.supports) return true;
  const Versions before = line.is_watched ? read_only_.versions(stack) : Versions();
  const PyRef answer = convention_.call(line.supports.get(), arguments);
  if (!answer) {
    if (!PyErr_ExceptionMatches(PyExc_Exception)) throw_python_error();  // an interrupt stays one
    PyErr_Clear();  // Python asks again, and reports what was raised
  }
  if (line.is_watched) {
    if (const auto* argument = read_only_.written(stack, before))
      refuse_write(line, *argument, "the predicate of");
  }
  return answer.get() == Py_None || answer.get() == Py_True;
}

bool Router::keeps_promises(const torch::jit::Stack& stack, const Line& line, const Results& results) const {
  if (line.promises.empty()) return true;
  if (line.promises.size() != results.size()) return false;
  if (convention_.has_lists()) return false;  // Python looks into them
  const bool may_be_inference = c10::InferenceMode::is_enabled();
  c10::SmallVector<const at::Tensor*, 16> others;  // whose memory is not a result's
  const c10::IValue* const first = stack.data() + (stack.size() - convention_.arity());
  for (const size_t i : convention_.tensors()) {
    if (first[i].isTensor() && first[i].toTensor().defined()) others.push_back(&first[i].toTensor());
  }
  const auto device = others.empty() ? std::nullopt : std::make_optional(others.front()->device());
  for (size_t i = 0; i < results.size(); ++i) {
    if (!results[i].isTensor()) continue;
    const at::Tensor& result = results[i].toTensor();
    if (line.promises[i] && !line.promises[i]->is_kept_by(result)) return false;
    if (result.is_inference() && !may_be_inference) return false;
    if (device && result.device() != *device) return false;
    for (const at::Tensor* other : others) {
      if (has_storage_of(result, *other)) return false;
    }
    others.push_back(&result);
  }
  return true;
}

void Router::recover(torch::jit::Stack* stack, const Line& line, const PythonArguments& arguments) {
  if (!PyErr_ExceptionMatches(PyExc_Exception)) throw_python_error();
  const PyRef error = raised();
  const PyRef number = PyRef::steal(PyLong_FromLongLong(line.form.token()));
  const PyRef args = convention_.args(arguments), kwargs = convention_.kwargs(arguments);
  finish(
      stack,
      python_call(recover_, {number.get(), args.get(), kwargs.get(), line.impl_id.get(), error.get()}).get());
}

void Router::finish(torch::jit::Stack* stack, PyObject* returned) const {
  Results results;
  if (!convention_.take(returned, results)) {
    // Dispatch has looked at the results already, so this is an error in it and not in the implementation.
    PyErr_Format(PyExc_TypeError, "%s: wanted %zu results, got %R", op_.schema().name().c_str(),
                 convention_.results(), returned);
    throw_python_error();
  }
  replace(stack, std::move(results));
}

void Router::replace(torch::jit::Stack* stack, Results&& results) const {
  torch::jit::drop(*stack, convention_.arity());
  for (c10::IValue& result : results) {
    forget_history(result);
    stack->push_back(std::move(result));
  }
}

PyRef Router::python_call(const PyRef& function, std::initializer_list<PyObject*> arguments) const {
  PyRef returned =
      PyRef::steal(PyObject_Vectorcall(function.get(), arguments.begin(), arguments.size(), nullptr));
  if (!returned) throw_python_error();
  return returned;
}

}  // namespace tefl::dispatch
