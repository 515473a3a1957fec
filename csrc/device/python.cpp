#include "device/python.h"

#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/Generator.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/device_lazy_init.h>

#include "device/alias_storage.h"
#include "device/allocator.h"
#include "device/autograd_threads.h"
#include "device/current_device.h"
#include "device/fallback_counts.h"
#include "device/generator.h"
#include "device/lifetime.h"
#include "device/patience.h"
#include "device/pinned.h"
#include "device/provider.h"
#include "device/register.h"
#include "device/shared.h"
#include "device/streams.h"
#include "device/unusable.h"

namespace tefl::device {
namespace {

namespace py = pybind11;

constexpr char kHandle[] = "tefl_provider";  // what a provider's capsule is called

using Defects = std::vector<std::pair<std::string, std::string>>;

Defects as_pairs(const std::vector<Defect>& defects) {
  Defects pairs;
  for (const Defect& defect : defects) pairs.emplace_back(defect.what, defect.remedy);
  return pairs;
}

const tefl_provider& provider_in(const py::capsule& handle) {
  if (std::string(handle.name()) != kHandle) throw py::type_error("a handle of load_provider() is wanted");
  return *handle.get_pointer<const tefl_provider>();
}

py::tuple open_provider(const std::string& path) {
  const LoadResult result = load_provider(path);
  py::object handle = py::none();
  if (result.table != nullptr) handle = py::capsule(result.table, kHandle);
  return py::make_tuple(handle, as_pairs(result.defects), result.name);
}

py::dict provider_info(const py::capsule& handle) {
  static constexpr const char* kAliases[] = {"none", "cpu", "cuda"};  // in the order of tefl_alias
  const tefl_provider& provider = provider_in(handle);
  py::dict info;
  info["name"] = provider.name;
  info["version"] = provider.version;
  info["abi"] = std::to_string(provider.abi_major) + "." + std::to_string(provider.abi_minor);
  info["alias"] = kAliases[provider.alias];
  info["launch"] = provider.launch != nullptr;
  info["ccl"] = provider.ccl != nullptr;
  return info;
}

void end_with_interpreter() {
  {
    py::gil_scoped_release no_gil;
    settle_autograd_threads();
    process_is_ending();
  }
}

int claim_from_python(const py::capsule& handle, const std::string& name) {
  const int count = claim(&provider_in(handle), name);
  torch::utils::register_fork_handler_for_device_init(kType);
  py::module_::import("atexit").attr("register")(py::cpp_function(&end_with_interpreter));
  return count;
}

py::dict device_properties(c10::DeviceIndex index) {
  ensure_initialized();
  tefl_device_properties facts{};
  facts.size = sizeof(facts);
  check(runtime().device_properties(resolve_index(index), &facts), "device_properties");
  py::dict properties;
  properties["name"] = std::string(facts.name, strnlen(facts.name, sizeof(facts.name)));
  properties["total_memory"] = facts.total_memory;
  properties["arch_major"] = facts.arch_major;
  properties["arch_minor"] = facts.arch_minor;
  properties["multiprocessor_count"] = facts.multiprocessor_count;
  return properties;
}

// A timeout of 0 is the one set for the process.
void synchronize(c10::DeviceIndex index, double timeout) {
  synchronize_device(index, timeout > 0 ? timeout : patience());
}

py::list memory_snapshot_of(c10::DeviceIndex index) {
  static constexpr const char* kPoolNames[] = {"small", "large"};  // in the order of BlockPool
  py::list segments;
  for (const SegmentSnapshot& segment : memory_snapshot(resolve_index(index))) {
    py::list blocks;
    for (const BlockSnapshot& block : segment.blocks) {
      const char* state = block.live      ? "active_allocated"
                          : block.pending ? "active_pending_free"
                                          : "inactive";
      blocks.append(py::make_tuple(block.address, block.bytes, block.requested, state));
    }
    segments.append(
        py::make_tuple(segment.address, segment.bytes, segment.stream, kPoolNames[segment.pool], blocks));
  }
  return segments;
}

py::dict as_dict(const c10::CachingAllocator::Stat& stat) {
  py::dict dict;
  dict["current"] = stat.current;
  dict["peak"] = stat.peak;
  dict["allocated"] = stat.allocated;
  dict["freed"] = stat.freed;
  return dict;
}

py::dict as_dict(const c10::CachingAllocator::DurationStat& stat) {
  py::dict dict;
  dict["total"] = stat.total;
  dict["max"] = stat.max;
  dict["min"] = stat.min;
  dict["count"] = stat.count;
  dict["avg"] = stat.count == 0 ? 0.0 : static_cast<double>(stat.total) / static_cast<double>(stat.count);
  return dict;
}

py::dict host_memory_stats() {
  const at::HostStats stats = pinned_allocator().get_stats();
  py::dict dict;
  dict["allocations"] = as_dict(stats.allocations);
  dict["allocated_bytes"] = as_dict(stats.allocated_bytes);
  dict["active_requests"] = as_dict(stats.active_requests);
  dict["active_bytes"] = as_dict(stats.active_bytes);
  dict["num_host_alloc"] = stats.num_host_alloc;
  dict["num_host_free"] = stats.num_host_free;
  dict["host_alloc_time"] = as_dict(stats.host_alloc_time);
  dict["host_free_time"] = as_dict(stats.host_free_time);
  return dict;
}

uintptr_t raw_stream(c10::DeviceIndex index) {
  return reinterpret_cast<uintptr_t>(native_stream(current_stream(resolve_index(index))));
}

py::object generator_object(c10::DeviceIndex index) {
  return py::reinterpret_steal<py::object>(THPGenerator_Wrap(default_generator(index)));
}

const at::Tensor& unwrap(py::handle object) {
  if (!THPVariable_Check(object.ptr())) throw py::type_error("a torch.Tensor is wanted");
  return THPVariable_Unpack(object.ptr());
}

py::object wrap(const at::Tensor& tensor) {
  return py::reinterpret_steal<py::object>(THPVariable_Wrap(tensor));
}

// torch::wrap_pybind_function turns our errors into PyTorch's exception types, torch.OutOfMemoryError
// included.
void bind_claiming(py::module_& m) {
  using torch::wrap_pybind_function;
  m.def("load_provider", wrap_pybind_function(&open_provider), py::arg("path"),
        "Open and judge a provider's library: (handle or None, [(defect, remedy)], name or \"\").");
  m.def("provider_info", wrap_pybind_function(&provider_info), py::arg("handle"),
        "What a provider says about itself: name, version, abi, alias, launch, ccl.");
  m.def(
      "claim_defects", [](const py::capsule& handle) { return as_pairs(claim_defects(provider_in(handle))); },
      py::arg("handle"), "What stands in the way of claim(): [(defect, remedy)].");
  m.def("claim", wrap_pybind_function(&claim_from_python), py::arg("handle"), py::arg("device_name"),
        "Make a provider the process's device. Returns how many operators run through the alias kernel.");
  m.def("install_unusable", &install_unusable, py::arg("message"),
        "Let torch's generators, streams, events and pinned memory of the device raise `message`.");
  m.def("has_kernel", wrap_pybind_function(&has_kernel), py::arg("op_name"), py::arg("key"),
        "Whether an operator has a kernel of its own for a dispatch key.");
}

void bind_devices(py::module_& m) {
  using torch::wrap_pybind_function;
  using torch::wrap_pybind_function_no_gil;
  m.def("init", wrap_pybind_function_no_gil(&ensure_initialized), "Start the runtime, once.");
  m.def("is_initialized", &is_initialized);
  m.def("in_bad_fork", &in_bad_fork);
  m.def("device_count", &device_count);
  m.def(
      "shares_gpu", [] { return shared_guard() != nullptr; },
      "Whether streams, memory and random numbers are those of PyTorch's own CUDA devices.");
  m.def("current_device", &current_device);
  m.def("set_device", wrap_pybind_function([](c10::DeviceIndex index) { exchange_device(index); }),
        py::arg("index"));
  m.def("exchange_device", wrap_pybind_function(&exchange_device), py::arg("index"));
  m.def("synchronize", wrap_pybind_function_no_gil(&synchronize), py::arg("index") = -1,
        py::arg("timeout") = 0.0);
  m.def("set_patience", &set_patience, py::arg("seconds"), "After how long a wait gives up; 0 for never.");
  m.def("device_properties", wrap_pybind_function(&device_properties), py::arg("index"));
  m.def("default_generator", wrap_pybind_function(&generator_object), py::arg("index"));
  m.def("raw_stream", wrap_pybind_function(&raw_stream), py::arg("index") = -1,
        "The provider's handle of the calling thread's current stream.");
}

void bind_memory(py::module_& m) {
  using torch::wrap_pybind_function;
  m.def("memory_snapshot", wrap_pybind_function(&memory_snapshot_of), py::arg("index"),
        "The segments of a device: [(address, bytes, stream, pool, [(address, bytes, requested, state)])].");
  m.def("host_memory_stats", wrap_pybind_function(&host_memory_stats),
        "Of pinned memory, in torch.cuda's keys, times in microseconds.");
  m.def("reset_accumulated_host_memory_stats",
        wrap_pybind_function([] { pinned_allocator().reset_accumulated_stats(); }));
  m.def("reset_peak_host_memory_stats", wrap_pybind_function([] { pinned_allocator().reset_peak_stats(); }));
  m.def("limit_memory", wrap_pybind_function([](c10::DeviceIndex index, size_t bytes) {
          limit_memory(resolve_index(index), bytes);
        }),
        py::arg("index"), py::arg("bytes"));
}

void bind_aliases(py::module_& m) {
  using torch::wrap_pybind_function;
  m.def("as_alias", wrap_pybind_function([](py::object tensor) { return wrap(as_alias(unwrap(tensor))); }),
        py::arg("tensor"));
  m.def("from_alias", wrap_pybind_function([](py::object tensor, c10::DeviceIndex index) {
          return wrap(from_alias(unwrap(tensor), index));
        }),
        py::arg("tensor"), py::arg("index") = -1);
}

// The notice takes Python's lock on whichever thread runs the operator. What it raises is shown and dropped.
void notice_fallbacks(const py::function& notice) {
  const auto* kept = new py::function(notice);  // never freed: threads may call it to the very end
  on_first_fallback([kept](const std::string& op) {
    if (!may_release()) return;
    const py::gil_scoped_acquire gil;
    try {
      (*kept)(op);
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable("tefl's notice of a fallback");
    }
  });
}

py::list fallbacks() {
  py::list rows;
  for (const FallbackCount& count : fallback_counts()) {
    rows.append(py::make_tuple(count.op, count.calls, count.bytes_to_host, count.bytes_to_device));
  }
  return rows;
}

void bind_fallbacks(py::module_& m) {
  m.def("fallbacks", &fallbacks, "[(op, calls, bytes to the host, bytes to the device)]");
  m.def("reset_fallbacks", &reset_fallback_counts);
  m.def("on_first_fallback", &notice_fallbacks, py::arg("notice"));
}

}  // namespace

void bind(py::module_& m) {
  bind_claiming(m);
  bind_fallbacks(m);
  bind_devices(m);
  bind_memory(m);
  bind_aliases(m);
}

}  // namespace tefl::device
