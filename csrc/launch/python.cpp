#include "launch/python.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include <limits>
#include <optional>

#include "launch/kernel.h"

namespace tefl::launch {
namespace {

namespace py = pybind11;

[[noreturn]] void refuse(const Kernel& kernel, Py_ssize_t position, const char* wanted, PyObject* got) {
  throw py::type_error("kernel '" + kernel.name() + "': argument " + std::to_string(position) + " must be " +
                       wanted + ", got " + Py_TYPE(got)->tp_name);
}

// Turns Python values into parameters, following the kernel's signature, and finds the device they are on.
class Reader {
 public:
  explicit Reader(const Kernel& kernel) : kernel_(kernel) {}

  Arguments read(const py::args& values) {
    Arguments arguments;
    Py_ssize_t next = 0;
    for (const char type : kernel_.signature()) {
      if (type == '0') {
        arguments.add<void*>(nullptr);
        continue;
      }
      if (next >= PyTuple_GET_SIZE(values.ptr())) wrong_count(values);
      position_ = next;
      add(arguments, type, PyTuple_GET_ITEM(values.ptr(), next++));
    }
    if (next != PyTuple_GET_SIZE(values.ptr())) wrong_count(values);
    return arguments;
  }

  c10::Device device() const {
    if (!device_)
      throw py::type_error("kernel '" + kernel_.name() +
                           "': no argument is a tensor that says which device to launch on");
    return *device_;
  }

 private:
  void add(Arguments& arguments, char type, PyObject* value) {
    switch (type) {
      case 'p':
        return arguments.add(pointer(value));
      case 'i':
        return arguments.add(integer32(value));
      case 'l':
        return arguments.add(integer(value));
      case 'f':
        return arguments.add(static_cast<float>(real(value)));
      default:
        return arguments.add(real(value));
    }
  }

  void* pointer(PyObject* value) {
    if (value == Py_None) return nullptr;
    if (!THPVariable_Check(value)) refuse(kernel_, position_, "a tensor or None", value);
    const at::Tensor& tensor = THPVariable_Unpack(value);
    if (!device_) device_ = tensor.device();
    if (*device_ != tensor.device()) {
      throw py::value_error("kernel '" + kernel_.name() + "': argument " + std::to_string(position_) +
                            " is on " + tensor.device().str() + ", another one on " + device_->str() +
                            "; wanted all tensors on one device");
    }
    return tensor.data_ptr();
  }

  int64_t integer(PyObject* value) const {
    if (!PyLong_Check(value)) refuse(kernel_, position_, "an int", value);
    const int64_t result = PyLong_AsLongLong(value);
    if (result == -1 && PyErr_Occurred()) throw py::error_already_set();
    return result;
  }

  int32_t integer32(PyObject* value) const {
    const int64_t wide = integer(value);
    if (wide < std::numeric_limits<int32_t>::min() || wide > std::numeric_limits<int32_t>::max()) {
      throw py::value_error("kernel '" + kernel_.name() + "': argument " + std::to_string(position_) +
                            " is " + std::to_string(wide) + ", which does not fit the kernel's int32");
    }
    return static_cast<int32_t>(wide);
  }

  double real(PyObject* value) const {
    const double result = PyFloat_AsDouble(value);
    if (result == -1.0 && PyErr_Occurred()) {
      PyErr_Clear();
      refuse(kernel_, position_, "a number", value);
    }
    return result;
  }

  [[noreturn]] void wrong_count(const py::args& values) const {
    size_t wanted = 0;
    for (const char type : kernel_.signature()) wanted += type != '0';
    throw py::type_error("kernel '" + kernel_.name() + "' takes " + std::to_string(wanted) +
                         " arguments (signature '" + kernel_.signature() + "'), got " +
                         std::to_string(values.size()));
  }

  const Kernel& kernel_;
  Py_ssize_t position_ = 0;
  std::optional<c10::Device> device_;
};

Size3 size3(const py::tuple& value) {
  Size3 size;
  uint32_t* const parts[] = {&size.x, &size.y, &size.z};
  if (value.size() > 3)
    throw py::value_error("a grid or block has at most three dimensions, got " +
                          std::to_string(value.size()));
  for (size_t i = 0; i < value.size(); ++i) *parts[i] = value[i].cast<uint32_t>();
  return size;
}

void launch(Kernel& kernel, const py::tuple& grid, const py::tuple& block, uint32_t shared_bytes,
            const py::args& values) {
  HANDLE_TH_ERRORS  // for torch.OutOfMemoryError and torch.AcceleratorError
      Reader reader(kernel);
  const Arguments arguments = reader.read(values);
  const Config config{size3(grid), size3(block), shared_bytes};
  const c10::Device device = reader.device();
  // A launch may wait for room in the stream's queue, or run the kernel there and then.
  const py::gil_scoped_release unlocked;
  kernel.launch(device, config, arguments);
  END_HANDLE_TH_ERRORS_PYBIND
}

}  // namespace

void bind(py::module_& module) {
  py::class_<Binary, std::shared_ptr<Binary>>(module, "Binary", "Machine code of one or more kernels.")
      .def(py::init([](const py::bytes& image) { return std::make_shared<Binary>(std::string(image)); }),
           py::arg("image"));
  py::class_<Kernel>(module, "Kernel",
                     "One function of a binary; its signature has a letter for each parameter.")
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
}

}  // namespace tefl::launch
