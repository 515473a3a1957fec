#include "launch/python.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include <cstring>
#include <limits>
#include <optional>

#include "launch/kernel.h"
#include "launch/recipe_python.h"

namespace tefl::launch {
namespace {

namespace py = pybind11;

[[noreturn]] void refuse(const Kernel& kernel, Py_ssize_t position, const char* wanted, PyObject* got) {
  throw py::type_error("kernel '" + kernel.name() + "': argument " + std::to_string(position) + " must be " +
                       wanted + ", got " + Py_TYPE(got)->tp_name);
}

int64_t integer(const Kernel& kernel, Py_ssize_t position, PyObject* value) {
  if (!PyLong_Check(value)) refuse(kernel, position, "an int", value);
  const int64_t result = PyLong_AsLongLong(value);
  if (result == -1 && PyErr_Occurred()) throw py::error_already_set();
  return result;
}

int32_t integer32(const Kernel& kernel, Py_ssize_t position, PyObject* value) {
  const int64_t wide = integer(kernel, position, value);
  if (wide < std::numeric_limits<int32_t>::min() || wide > std::numeric_limits<int32_t>::max()) {
    throw py::value_error("kernel '" + kernel.name() + "': argument " + std::to_string(position) + " is " +
                          std::to_string(wide) + ", which does not fit the kernel's int32");
  }
  return static_cast<int32_t>(wide);
}

double real(const Kernel& kernel, Py_ssize_t position, PyObject* value) {
  const double result = PyFloat_AsDouble(value);
  if (result == -1.0 && PyErr_Occurred()) {
    PyErr_Clear();
    refuse(kernel, position, "a number", value);
  }
  return result;
}

// Turns Python values into parameters, following the kernel's signature, and finds the device they are on.
class Reader {
 public:
  explicit Reader(const Kernel& kernel) : kernel_(kernel) {}

  Words read(const py::args& values) {
    Words words;
    Py_ssize_t next = 0;
    for (const char type : kernel_.signature()) {
      if (type == '0') {
        words.push_back(0);
        continue;
      }
      if (next >= PyTuple_GET_SIZE(values.ptr())) refuse_count(kernel_, values.size());
      PyObject* const value = PyTuple_GET_ITEM(values.ptr(), next);
      if (type == 'p' && THPVariable_Check(value)) {
        words.push_back(reinterpret_cast<uintptr_t>(address(THPVariable_Unpack(value), next)));
      } else {
        words.push_back(value_bits(kernel_, type, next, value));
      }
      ++next;
    }
    if (next != PyTuple_GET_SIZE(values.ptr())) refuse_count(kernel_, values.size());
    return words;
  }

  c10::Device device() const {
    if (!device_)
      throw py::type_error("kernel '" + kernel_.name() +
                           "': no argument is a tensor that says which device to launch on");
    return *device_;
  }

 private:
  void* address(const at::Tensor& tensor, Py_ssize_t position) {
    if (!device_) device_ = tensor.device();
    if (*device_ != tensor.device()) {
      throw py::value_error("kernel '" + kernel_.name() + "': argument " + std::to_string(position) +
                            " is on " + tensor.device().str() + ", another one on " + device_->str() +
                            "; wanted all tensors on one device");
    }
    if (tensor.is_neg() || tensor.is_conj()) {
      throw py::value_error("kernel '" + kernel_.name() + "': argument " + std::to_string(position) +
                            " is negated or conjugated lazily, so that its memory holds other values; pass "
                            "tensor.resolve_conj().resolve_neg()");
    }
    return tensor.data_ptr();
  }

  const Kernel& kernel_;
  std::optional<c10::Device> device_;
};

void launch(Kernel& kernel, const py::tuple& grid, const py::tuple& block, uint32_t shared_bytes,
            const py::args& values) {
  HANDLE_TH_ERRORS  // for torch.OutOfMemoryError and torch.AcceleratorError
      Reader reader(kernel);
  const Words words = reader.read(values);
  const Config config{size3(kernel, "grid", grid), size3(kernel, "block", block), shared_bytes};
  const c10::Device device = reader.device();
  // A launch may wait for room in the stream's queue, or run the kernel there and then.
  const py::gil_scoped_release unlocked;
  kernel.launch(device, config, words);
  END_HANDLE_TH_ERRORS_PYBIND
}

std::string named(const Kernel& kernel, const char* what) {
  return "kernel '" + kernel.name() + "': the " + what;
}

// One dimension of a grid or block.
uint32_t part_of(const Kernel& kernel, const char* what, const py::handle& value) {
  const auto index = py::reinterpret_steal<py::object>(PyNumber_Index(value.ptr()));
  if (!index) {
    PyErr_Clear();
    throw py::type_error(named(kernel, what) + " must consist of ints, got " + Py_TYPE(value.ptr())->tp_name);
  }
  int overflow = 0;
  const int64_t part = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
  if (overflow != 0 || part < 0 || part > std::numeric_limits<uint32_t>::max())
    throw py::value_error(named(kernel, what) + " has " + py::str(index).cast<std::string>() +
                          "; wanted are ints from 0 to 4294967295");
  return static_cast<uint32_t>(part);
}

template <typename T>
uint64_t bits(T value) {
  uint64_t word = 0;
  std::memcpy(&word, &value, sizeof(T));  // a reader of fewer bytes finds them at the word's start
  return word;
}

}  // namespace

Size3 size3(const Kernel& kernel, const char* what, const py::tuple& value) {
  Size3 size;
  uint32_t* const parts[] = {&size.x, &size.y, &size.z};
  if (value.size() > 3)
    throw py::value_error(named(kernel, what) + " has at most three dimensions, got " +
                          std::to_string(value.size()));
  for (size_t i = 0; i < value.size(); ++i) *parts[i] = part_of(kernel, what, value[i]);
  return size;
}

uint64_t value_bits(const Kernel& kernel, char letter, Py_ssize_t position, py::handle value) {
  switch (letter) {
    case 'p':
      if (!value.is_none()) refuse(kernel, position, "a tensor or None", value.ptr());
      return 0;
    case 'i':
      return bits(integer32(kernel, position, value.ptr()));
    case 'l':
      return bits(integer(kernel, position, value.ptr()));
    case 'f':
      return bits(static_cast<float>(real(kernel, position, value.ptr())));
    default:
      return bits(real(kernel, position, value.ptr()));
  }
}

void refuse_count(const Kernel& kernel, size_t got) {
  size_t wanted = 0;
  for (const char type : kernel.signature()) wanted += type != '0';
  throw py::type_error("kernel '" + kernel.name() + "' takes " + std::to_string(wanted) +
                       " arguments (signature '" + kernel.signature() + "'), got " + std::to_string(got));
}

void bind(py::module_& module) {
  py::class_<Binary, std::shared_ptr<Binary>>(module, "Binary", "Machine code of one or more kernels.")
      .def(py::init([](const py::bytes& image) { return std::make_shared<Binary>(std::string(image)); }),
           py::arg("image"));
  py::class_<Kernel, std::shared_ptr<Kernel>>(
      module, "Kernel", "One function of a binary; its signature has a letter for each parameter.")
      .def(py::init<std::shared_ptr<Binary>, std::string, std::string>(), py::arg("binary"), py::arg("name"),
           py::arg("signature"))
      .def_property_readonly("name", &Kernel::name)
      .def_property_readonly("signature", &Kernel::signature)
      .def("launch", &launch, py::arg("grid"), py::arg("block"), py::arg("shared_bytes"),
           "Enqueue the kernel on the current stream of the device that the tensors among the arguments are "
           "on.");
  module.def(
      "launch_defect",
      [](const std::string& device_type) { return unavailable(c10::Device(device_type).type()); },
      py::arg("device_type"), "Why no kernel can be launched on devices of that type; empty where one can.");
  bind_recipes(module);
}

}  // namespace tefl::launch
