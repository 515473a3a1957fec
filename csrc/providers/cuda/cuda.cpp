// The built-in provider "cuda": NVIDIA GPUs under any name, by the CUDA driver.
//
// Its alias is `cuda`, so that PyTorch's CUDA kernels compute on its memory, and tefl takes streams, events
// and memory from PyTorch's own CUDA side where both names must share them. It uses nothing that an outside
// provider could not: tefl_provider.h, the standard library, and the vendor's driver, found when it is
// needed.
#include "error.h"
#include "tables.h"

namespace tefl_cuda {
namespace {

const tefl_runtime* runtime_table() {
  static const tefl_runtime table = [] {
    tefl_runtime runtime{};
    runtime.size = sizeof(tefl_runtime);
    fill_devices(runtime);
    fill_memory(runtime);
    fill_streams(runtime);
    return runtime;
  }();
  return &table;
}

}  // namespace
}  // namespace tefl_cuda

const tefl_provider* tefl_provider_get(void) {
  static const tefl_provider provider = {
      sizeof(tefl_provider),
      TEFL_PROVIDER_ABI_MAJOR,
      TEFL_PROVIDER_ABI_MINOR,
      "cuda",
      "0.1.0",
      TEFL_ALIAS_CUDA,
      tefl_cuda::last_error,
      tefl_cuda::runtime_table(),
      // No launch table: on an alias of cuda, tefl launches by the driver itself. Process groups go by NCCL.
      nullptr,
      nullptr,
  };
  return &provider;
}
