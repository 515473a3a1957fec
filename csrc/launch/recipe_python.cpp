#include "launch/recipe_python.h"

#include <pybind11/stl.h>
#include <torch/csrc/Dtype.h>

#include "dispatch/native_kernel.h"
#include "launch/python.h"
#include "launch/recipe.h"

namespace tefl::launch {
namespace {

namespace py = pybind11;

// What a capsule owns.
struct RecipeKernel {
  dispatch::NativeKernel kernel;  // first: the capsule's pointer is its address
  Recipe recipe;
};

void run(void* recipe, const c10::OperatorHandle&, torch::jit::Stack* stack) {
  static_cast<const Recipe*>(recipe)->run(stack);
}

at::ScalarType dtype_of(const py::object& dtype) {
  if (!THPDtype_Check(dtype.ptr())) throw py::type_error("the dtype of a buffer must be a torch.dtype");
  return reinterpret_cast<THPDtype*>(dtype.ptr())->scalar_type;
}

using GivenBuffer = std::tuple<std::vector<int64_t>, py::object, std::optional<size_t>, bool>;

std::vector<Buffer> buffers_of(const std::vector<GivenBuffer>& given) {
  std::vector<Buffer> buffers;
  for (const auto& [sizes, dtype, source, zero] : given) {
    buffers.push_back({sizes, dtype_of(dtype), source, zero});
  }
  return buffers;
}

// A buffer's or an argument's number as ("buffer", 2) or ("input", 0), anything else is a value.
Operand operand_of(const Kernel& kernel, char letter, Py_ssize_t position, const py::handle& given) {
  if (!py::isinstance<py::tuple>(given))
    return {Operand::kValue, value_bits(kernel, letter, position, given)};
  const auto [kind, number] = given.cast<std::pair<std::string, uint64_t>>();
  if (letter != 'p') throw py::type_error("kernel '" + kernel.name() + "': a tensor for a number");
  return {kind == "input" ? Operand::kInput : Operand::kBuffer, number};
}

std::vector<Operand> operands_of(const Kernel& kernel, const py::tuple& given) {
  std::vector<Operand> operands;
  size_t next = 0;
  for (const char letter : kernel.signature()) {
    if (letter == '0') {
      operands.push_back({Operand::kValue, 0});
      continue;
    }
    if (next >= given.size()) refuse_count(kernel, given.size());
    operands.push_back(operand_of(kernel, letter, static_cast<Py_ssize_t>(next), given[next]));
    ++next;
  }
  if (next != given.size()) refuse_count(kernel, given.size());
  return operands;
}

using GivenStep = std::tuple<std::shared_ptr<Kernel>, py::tuple, py::tuple, uint32_t, py::tuple>;

std::vector<Step> steps_of(const std::vector<GivenStep>& given) {
  std::vector<Step> steps;
  for (const auto& [kernel, grid, block, shared_bytes, operands] : given) {
    const Config config{size3(*kernel, "grid", grid), size3(*kernel, "block", block), shared_bytes};
    steps.push_back({kernel, config, operands_of(*kernel, operands)});
  }
  return steps;
}

void demand_numbers_below(size_t limit, const std::vector<size_t>& numbers, const char* what) {
  for (const size_t number : numbers) {
    if (number >= limit)
      throw py::value_error(std::string(what) + " " + std::to_string(number) + " of a recipe that has " +
                            std::to_string(limit));
  }
}

void demand_existing(size_t arity, const std::vector<Buffer>& buffers, const std::vector<Step>& steps,
                     const std::vector<size_t>& results) {
  std::vector<size_t> inputs, made = results;
  for (const Buffer& buffer : buffers) {
    if (buffer.source) inputs.push_back(*buffer.source);
  }
  for (const Step& step : steps) {
    for (const Operand& operand : step.operands) {
      if (operand.kind == Operand::kInput) inputs.push_back(operand.word);
      if (operand.kind == Operand::kBuffer) made.push_back(operand.word);
    }
  }
  demand_numbers_below(arity, inputs, "argument");
  demand_numbers_below(buffers.size(), made, "buffer");
}

py::object recipe_kernel(const std::string& device, size_t arity, const std::vector<GivenBuffer>& buffers,
                         const std::vector<GivenStep>& steps, const std::vector<size_t>& results) {
  auto made = buffers_of(buffers);
  auto launches = steps_of(steps);
  demand_existing(arity, made, launches, results);
  auto kernel = std::make_unique<RecipeKernel>(
      RecipeKernel{{}, Recipe(c10::Device(device), arity, std::move(made), std::move(launches), results)});
  kernel->kernel = {&run, &kernel->recipe};
  PyObject* const capsule = PyCapsule_New(&kernel->kernel, dispatch::kNativeKernel, [](PyObject* object) {
    delete static_cast<RecipeKernel*>(PyCapsule_GetPointer(object, dispatch::kNativeKernel));
  });
  if (capsule == nullptr) throw py::error_already_set();
  kernel.release();
  return py::reinterpret_steal<py::object>(capsule);
}

}  // namespace

void bind_recipes(py::module_& module) {
  module.def(
      "recipe_kernel", &recipe_kernel, py::arg("device"), py::arg("arity"), py::arg("buffers"),
      py::arg("steps"), py::arg("results"),
      "A native kernel, in a capsule, for calls of so many arguments with tensors on that device. buffers "
      "are (shape, dtype, number of the argument that fills it or None, whether it is zeroed), steps are "
      "(kernel, grid, block, shared bytes, operands), an operand is ('input', number), ('buffer', number) "
      "or a value, results are numbers of buffers.");
}

}  // namespace tefl::launch
