// The built-in provider "sim": devices made of host memory and threads, for machines without an accelerator.
//
// It behaves as a device does where that matters to a program: streams are asynchronous and unordered unless
// an event orders them, memory is finite, errors of enqueued work surface later. It uses nothing that an
// outside provider could not: tefl_provider.h and the standard library. Environment: see config.h and
// faults.h.
#include "tefl_provider.h"

#include "error.h"
#include "guarded_memory.h"
#include "tables.h"

namespace tefl_sim {
namespace {

const tefl_runtime* runtime_table() {
  static const tefl_runtime table = [] {
    tefl_runtime runtime{};
    runtime.size = sizeof(tefl_runtime);
    fill_devices(runtime);
    fill_memory(runtime);
    fill_streams(runtime);
    fill_events(runtime);
    fill_host_access(runtime);
    return runtime;
  }();
  return &table;
}

}  // namespace
}  // namespace tefl_sim

const tefl_provider* tefl_provider_get(void) {
  static const tefl_provider provider = {
      sizeof(tefl_provider),
      TEFL_PROVIDER_ABI_MAJOR,
      TEFL_PROVIDER_ABI_MINOR,
      "sim",
      "0.1.0",
      tefl_sim::guarding() == tefl_sim::Guarding::kOpaque ? TEFL_ALIAS_NONE : TEFL_ALIAS_CPU,
      tefl_sim::last_error,
      tefl_sim::runtime_table(),
      tefl_sim::launch_table(),
      /*ccl=*/nullptr,  // process groups go by gloo
  };
  return &provider;
}
