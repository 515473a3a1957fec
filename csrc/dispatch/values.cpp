#include "dispatch/values.h"

#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/tensor_memoryformats.h>

namespace tefl::dispatch {
namespace {

// The type inside an optional one.
const c10::Type& unwrapped(const c10::Type& type) {
  if (type.kind() != c10::TypeKind::OptionalType) return type;
  return *type.expectRef<c10::OptionalType>().getElementType();
}

PyObject* checked(PyObject* object) {
  if (object == nullptr) throw_python_error();
  return object;
}

}  // namespace

Convention::Convention(const c10::FunctionSchema& schema) {
  std::vector<std::string> names;
  for (const c10::Argument& argument : schema.arguments()) {
    kinds_.push_back(kind_of(*argument.real_type()));
    const bool holds_tensors = argument.type()->str().find("Tensor") != std::string::npos;
    if (kinds_.back() == Kind::kTensor) tensors_.push_back(kinds_.size() - 1);
    has_lists_ = has_lists_ || (holds_tensors && kinds_.back() != Kind::kTensor);
    if (argument.kwarg_only()) {
      names.push_back(argument.name());
    } else {
      ++positional_;
    }
  }
  names_ = PyRef::steal(checked(PyTuple_New(static_cast<Py_ssize_t>(names.size()))));
  for (size_t i = 0; i < names.size(); ++i) {
    PyTuple_SET_ITEM(names_.get(), i, checked(PyUnicode_InternFromString(names[i].c_str())));
  }
  for (const c10::Argument& result : schema.returns()) results_.push_back(result.type());
}

Convention::Kind Convention::kind_of(const c10::Type& type) {
  switch (unwrapped(type).kind()) {
    case c10::TypeKind::TensorType:
      return Kind::kTensor;
    case c10::TypeKind::FloatType:
      return Kind::kDouble;
    case c10::TypeKind::IntType:
      return Kind::kInt;
    case c10::TypeKind::BoolType:
      return Kind::kBool;
    case c10::TypeKind::ScalarTypeType:
      return Kind::kDtype;
    case c10::TypeKind::LayoutType:
      return Kind::kLayout;
    case c10::TypeKind::MemoryFormatType:
      return Kind::kMemoryFormat;
    default:
      return Kind::kOther;
  }
}

void Convention::read(const torch::jit::Stack& stack, PythonArguments& arguments) const {
  const c10::IValue* const first = stack.data() + (stack.size() - arity());
  for (size_t i = 0; i < arity(); ++i) arguments.push(to_python(first[i], kinds_[i]));
}

PyObject* Convention::to_python(const c10::IValue& value, Kind kind) {
  if (value.isNone()) return Py_NewRef(Py_None);
  switch (kind) {
    case Kind::kTensor:
      return checked(THPVariable_Wrap(value.toTensor()));  // an undefined one becomes None
    case Kind::kDouble:
      if (value.isDouble()) return checked(PyFloat_FromDouble(value.toDouble()));
      break;
    case Kind::kInt:
      if (value.isInt()) return checked(PyLong_FromLongLong(value.toInt()));
      break;
    case Kind::kBool:
      if (value.isBool()) return PyBool_FromLong(value.toBool());
      break;
    // The stack holds these as integers, and so would torch's own conversion leave them.
    case Kind::kDtype:
      return Py_NewRef(reinterpret_cast<PyObject*>(torch::getTHPDtype(value.toScalarType())));
    case Kind::kLayout:
      return Py_NewRef(reinterpret_cast<PyObject*>(torch::getTHPLayout(value.toLayout())));
    case Kind::kMemoryFormat:
      return Py_NewRef(torch::utils::getTHPMemoryFormat(value.toMemoryFormat()));
    case Kind::kOther:
      break;
  }
  return torch::jit::toPyObject(value).release().ptr();
}

PyRef Convention::call(PyObject* callable, const PythonArguments& arguments) const {
  PyObject* const names = positional_ == arity() ? nullptr : names_.get();
  return PyRef::steal(PyObject_Vectorcall(callable, arguments.data(), positional_, names));
}

PyRef Convention::args(const PythonArguments& arguments) const {
  PyRef tuple = PyRef::steal(checked(PyTuple_New(static_cast<Py_ssize_t>(positional_))));
  for (size_t i = 0; i < positional_; ++i) {
    PyTuple_SET_ITEM(tuple.get(), i, Py_NewRef(arguments.data()[i]));
  }
  return tuple;
}

PyRef Convention::kwargs(const PythonArguments& arguments) const {
  PyRef dict = PyRef::steal(checked(PyDict_New()));
  for (size_t i = positional_; i < arity(); ++i) {
    PyObject* const name = PyTuple_GET_ITEM(names_.get(), i - positional_);
    if (PyDict_SetItem(dict.get(), name, arguments.data()[i]) < 0) throw_python_error();
  }
  return dict;
}

bool Convention::take(PyObject* returned, Results& results) const {
  if (results_.empty()) return returned == Py_None;
  const bool is_tuple = PyTuple_Check(returned), is_list = PyList_Check(returned);
  if (results_.size() == 1 && !is_tuple) return take_one(returned, 0, results);
  if (!is_tuple && !is_list) return false;
  if (Py_SIZE(returned) != static_cast<Py_ssize_t>(results_.size())) return false;
  for (size_t i = 0; i < results_.size(); ++i) {
    PyObject* const object = is_tuple ? PyTuple_GET_ITEM(returned, i) : PyList_GET_ITEM(returned, i);
    if (!take_one(object, i, results)) return false;
  }
  return true;
}

bool Convention::take_one(PyObject* object, size_t index, Results& results) const {
  if (results_[index]->kind() != c10::TypeKind::TensorType) {
    results.push_back(torch::jit::toIValue(object, results_[index]));
    return true;
  }
  if (!THPVariable_Check(object)) return false;
  results.emplace_back(THPVariable_Unpack(object));
  return true;
}

}  // namespace tefl::dispatch
