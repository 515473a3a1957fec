#include "ccl/python.h"

#include <pybind11/chrono.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "ccl/alias_backend.h"
#include "ccl/communicator.h"
#include "ccl/table_backend.h"

namespace tefl::ccl {
namespace {

namespace py = pybind11;

c10::intrusive_ptr<c10d::Backend> alias_backend(const c10::intrusive_ptr<c10d::Backend>& inner,
                                                const c10::intrusive_ptr<c10d::Store>& store,
                                                std::chrono::milliseconds timeout) {
  return c10::make_intrusive<AliasBackend>(inner, store, timeout);
}

c10::intrusive_ptr<c10d::Backend> table_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                int size, std::chrono::milliseconds timeout) {
  return c10::make_intrusive<TableBackend>(store, rank, size, timeout);
}

}  // namespace

void bind(py::module_& parent) {
  py::module_ m = parent.def_submodule("ccl", "Process groups for the device.");
  m.def("alias_backend", torch::wrap_pybind_function(&alias_backend), py::arg("inner"), py::arg("store"),
        py::arg("timeout"), "A process group for the device over one for its alias device.");
  m.def("table_backend", torch::wrap_pybind_function(&table_backend), py::arg("store"), py::arg("rank"),
        py::arg("size"), py::arg("timeout"), "A process group for the device over its provider's CCL table.");
  m.def("has_table", torch::wrap_pybind_function(&has_table),
        "Whether the claimed provider has a CCL table.");
}

}  // namespace tefl::ccl
