// Between a dispatcher's stack and Python's calling convention.
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>

#include <vector>

#include "dispatch/python_ref.h"

namespace tefl::dispatch {

// A call's arguments as Python objects, in the order of the schema.
class PythonArguments {
 public:
  PythonArguments() = default;
  ~PythonArguments() {
    for (PyObject* object : objects_) Py_XDECREF(object);
  }
  PythonArguments(const PythonArguments&) = delete;
  PythonArguments& operator=(const PythonArguments&) = delete;

  void push(PyObject* object) { objects_.push_back(object); }
  PyObject* const* data() const { return objects_.data(); }

 private:
  c10::SmallVector<PyObject*, 16> objects_;
};

using Results = c10::SmallVector<c10::IValue, 4>;

// How one op is called from and into Python: positional arguments positionally and keyword-only ones by
// keyword, all of them. The GIL must be held for everything here.
class Convention {
 public:
  explicit Convention(const c10::FunctionSchema& schema);

  size_t arity() const { return kinds_.size(); }
  size_t results() const { return results_.size(); }
  // The positions of the arguments that are a tensor or none.
  const std::vector<size_t>& tensors() const { return tensors_; }
  // Whether an argument may be a list of tensors, or what else holds some.
  bool has_lists() const { return has_lists_; }

  // The arguments on top of the stack, which stay there.
  void read(const torch::jit::Stack& stack, PythonArguments& arguments) const;
  // What the callable returns, null where it raises.
  PyRef call(PyObject* callable, const PythonArguments& arguments) const;
  PyRef args(const PythonArguments& arguments) const;
  PyRef kwargs(const PythonArguments& arguments) const;

  // Turns what an implementation has returned into values. False where the count is wrong, or where something
  // else than a tensor stands for a tensor.
  bool take(PyObject* returned, Results& results) const;

 private:
  enum class Kind { kTensor, kDouble, kInt, kBool, kDtype, kLayout, kMemoryFormat, kOther };

  static Kind kind_of(const c10::Type& type);
  static PyObject* to_python(const c10::IValue& value, Kind kind);
  bool take_one(PyObject* object, size_t index, Results& results) const;

  std::vector<Kind> kinds_;
  std::vector<size_t> tensors_;
  bool has_lists_ = false;
  size_t positional_ = 0;
  PyRef names_;  // of the keyword-only arguments, a tuple
  std::vector<c10::TypePtr> results_;
};

}  // namespace tefl::dispatch
