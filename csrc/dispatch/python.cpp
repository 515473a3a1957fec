#include "dispatch/python.h"

#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/library.h>

#include <memory>

#include "dispatch/autograd.h"
#include "dispatch/form_object.h"
#include "dispatch/policy.h"
#include "dispatch/router.h"
#include "dispatch/state.h"

namespace tefl::dispatch {
namespace {

namespace py = pybind11;

constexpr const char* kNamespace = "tefl";
constexpr const char* kForm = "tefl.form";
constexpr c10::DispatchKey kBackends[] = {c10::DispatchKey::CPU, c10::DispatchKey::CUDA,
                                          c10::DispatchKey::PrivateUse1};

struct RouterKernel final : c10::OperatorKernel {
  explicit RouterKernel(Router* router) : router(router) {}
  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack* stack) {
    router->call(stack);
  }
  Router* const router;
};

struct AutogradKernel final : c10::OperatorKernel {
  explicit AutogradKernel(Autograd* autograd) : autograd(autograd) {}
  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    autograd->call(keys, stack);
  }
  Autograd* const autograd;
};

std::string qualified(const std::string& name) { return std::string(kNamespace) + "::" + name; }

c10::OperatorHandle handle(const std::string& name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(qualified(name).c_str(), "");
}

template <class Kernel, class Target>
void install(const std::string& name, c10::DispatchKey key, Target* target) {
  // Kernels stay for the life of the process, as torch.ops.tefl does.
  auto* const library = new torch::Library(torch::Library::IMPL, kNamespace, key, __FILE__, __LINE__);
  library->impl(name.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Kernel>(target)));
}

// Makes the native router the kernel of the op's backend keys.
Router* route(const std::string& name, const py::function& serve, const py::function& recover,
              const py::function& wrote) {
  auto* const router = new Router(handle(name), serve.ptr(), recover.ptr(), wrote.ptr());
  for (const c10::DispatchKey key : kBackends) install<RouterKernel>(name, key, router);
  return router;
}

Feed feed(const std::pair<std::string, size_t>& given) {
  const auto& [kind, index] = given;
  if (kind == "grad") return {Feed::kGrad, index};
  if (kind == "input") return {Feed::kInput, index};
  if (kind == "output") return {Feed::kOutput, index};
  if (kind == "needs") return {Feed::kNeeds, index};
  throw py::value_error("a feed of a backward must be grad, input, output or needs, got '" + kind + "'");
}

using GivenBackward = std::tuple<std::string, std::vector<std::pair<std::string, size_t>>,
                                 std::vector<std::optional<int>>, std::vector<size_t>>;

std::optional<BackwardData> backward_data(const std::optional<GivenBackward>& given) {
  if (!given) return std::nullopt;
  const auto& [op, feeds, grads, differentiable] = *given;
  BackwardData data{qualified(op), {}, {}, differentiable};
  for (const auto& each : feeds) data.feeds.push_back(feed(each));
  for (const auto& each : grads) data.grads.push_back(each.value_or(Formula::kNowhere));
  return data;
}

// Makes the native autograd kernel that of the op's Autograd key.
void install_autograd(const std::string& name, const std::optional<GivenBackward>& backward) {
  auto* const autograd = new Autograd(handle(name), backward_data(backward));
  install<AutogradKernel>(name, c10::DispatchKey::Autograd, autograd);
}

std::vector<std::optional<Promise>> promises_of(const py::object& wanted) {
  std::vector<std::optional<Promise>> promises;
  if (wanted.is_none()) return promises;
  for (const py::handle each : wanted) {
    if (!THPVariable_Check(each.ptr())) {
      promises.emplace_back();
      continue;
    }
    const at::Tensor& tensor = THPVariable_Unpack(each.ptr());
    promises.push_back(Promise{tensor.scalar_type(), tensor.sizes().vec(), tensor.strides().vec()});
  }
  return promises;
}

Target target_of(const py::object& given) {
  if (given.is_none()) return std::monostate();
  if (!PyCapsule_CheckExact(given.ptr())) return PyRef::borrow(given.ptr());
  const void* const kernel = PyCapsule_GetPointer(given.ptr(), kNativeKernel);
  if (kernel == nullptr) throw py::error_already_set();
  return NativeTarget{*static_cast<const NativeKernel*>(kernel), PyRef::borrow(given.ptr())};
}

void remember(Router& router, const py::object& form, int64_t epoch, const py::object& target,
              const py::object& impl_id, const py::object& supports, const py::object& mend,
              const py::object& wanted) {
  const auto* const known = static_cast<const Form*>(PyCapsule_GetPointer(form.ptr(), kForm));
  if (known == nullptr) throw py::error_already_set();
  const auto given = [](const py::object& object) {
    return object.is_none() ? PyRef() : PyRef::borrow(object.ptr());
  };
  auto line = std::make_shared<Line>(Line{*known, target_of(target), given(impl_id), given(supports),
                                          given(mend), promises_of(wanted), !wanted.is_none()});
  router.memory().remember(epoch, std::move(line));
}

}  // namespace

PyRef form_object(const Form& form) {
  auto copy = std::make_unique<Form>(form);
  PyObject* const capsule = PyCapsule_New(copy.get(), kForm, [](PyObject* object) {
    delete static_cast<Form*>(PyCapsule_GetPointer(object, kForm));
  });
  if (capsule == nullptr) throw_python_error();
  copy.release();
  return PyRef::steal(capsule);
}

void bind(py::module_& parent) {
  py::module_ module = parent.def_submodule("dispatch", "The native router and autograd nodes.");
  module.def("set_epoch", [](int64_t now) { state().epoch.store(now, std::memory_order_release); });
  module.def("set_open_contexts", [](int64_t count) { state().open_contexts.store(count); });
  module.def("set_recording", [](bool active) { state().recording.store(active); });
  module.def("set_context_variable",
             [](const py::object& variable) { set_context_variable(variable.ptr()); });
  module.def("current_token", &current_token, "The number of the policy that applies here.");
  py::class_<Router, std::unique_ptr<Router, py::nodelete>>(module, "Router",
                                                            "The kernel of one op's backend keys.")
      .def("remember", &remember, py::arg("form"), py::arg("epoch"), py::arg("target") = py::none(),
           py::arg("impl_id") = py::none(), py::arg("supports") = py::none(), py::arg("mend") = py::none(),
           py::arg("wanted") = py::none(),
           "Serve calls of that form by the target as long as the epoch holds. A target of None: they have "
           "passed the check, and no more. wanted are tensors of the form that results must have, or None.")
      .def("forget", [](Router& router) { router.memory().forget(); }, "Ask about every call again.");
  module.def("route", &route, py::return_value_policy::reference, py::arg("name"), py::arg("serve"),
             py::arg("recover"), py::arg("wrote"));
  module.def("differentiate", &install_autograd, py::arg("name"), py::arg("backward"));
}

}  // namespace tefl::dispatch
