#include "launch/cuda_launcher.h"

#include <c10/util/Exception.h>

#include "launch/cuda_driver.h"

namespace tefl::launch {
namespace {

// Results that tell of earlier work: the context is lost, whatever call happens to report it.
bool is_asynchronous(CuResult result) {
  switch (result) {
    case 214:  // CUDA_ERROR_ECC_UNCORRECTABLE
    case 700:  // CUDA_ERROR_ILLEGAL_ADDRESS
    case 702:  // CUDA_ERROR_LAUNCH_TIMEOUT
    case 710:  // CUDA_ERROR_ASSERT
    case 714:  // CUDA_ERROR_HARDWARE_STACK_ERROR
    case 715:  // CUDA_ERROR_ILLEGAL_INSTRUCTION
    case 716:  // CUDA_ERROR_MISALIGNED_ADDRESS
    case 717:  // CUDA_ERROR_INVALID_ADDRESS_SPACE
    case 718:  // CUDA_ERROR_INVALID_PC
    case 719:  // CUDA_ERROR_LAUNCH_FAILED
      return true;
    default:
      return false;
  }
}

class CudaLauncher final : public Launcher {
 public:
  explicit CudaLauncher(const CudaDriver& driver) : driver_(driver) {}

  c10::Device native(c10::Device device) const override { return {c10::DeviceType::CUDA, device.index()}; }

  Module load(c10::Device device, const void* image, size_t) const override {
    make_context_current(device);
    const RelaxedCapture relaxed(driver_);
    CuModule module = nullptr;
    check(driver_.module_load_data(&module, image), "cuModuleLoadData");
    return module;
  }

  Function function(Module module, const std::string& name) const override {
    const RelaxedCapture relaxed(driver_);
    CuFunction function = nullptr;
    check(driver_.module_get_function(&function, module, name.c_str()), "cuModuleGetFunction");
    return function;
  }

  void allow_shared(Function function, uint32_t bytes) const override {
    check(driver_.function_set_attribute(function, kMaxDynamicSharedBytes, static_cast<int>(bytes)),
          "cuFuncSetAttribute");
  }

  void launch(c10::Device device, Function function, const Config& config, void* stream,
              void* const* parameters, uint32_t) const override {
    make_context_current(device);
    const auto& [grid, block, shared_bytes] = config;
    check(driver_.launch_kernel(function, grid.x, grid.y, grid.z, block.x, block.y, block.z, shared_bytes,
                                stream, parameters, nullptr),
          "cuLaunchKernel");
  }

 private:
  // Loading allocates, which a capture in the strict modes forbids although it leaves the graph alone.
  class RelaxedCapture {
   public:
    explicit RelaxedCapture(const CudaDriver& driver) : driver_(driver) { driver_.capture_mode(&mode_); }
    ~RelaxedCapture() { driver_.capture_mode(&mode_); }
    RelaxedCapture(const RelaxedCapture&) = delete;
    RelaxedCapture& operator=(const RelaxedCapture&) = delete;

   private:
    const CudaDriver& driver_;
    int mode_ = kCaptureModeRelaxed;
  };

  // PyTorch's guard leaves a thread that is on the right device already without a context, if the thread has
  // made no CUDA call yet.
  void make_context_current(c10::Device device) const {
    CuContext context = nullptr;
    check(driver_.context_get_current(&context), "cuCtxGetCurrent");
    if (context != nullptr) return;
    CuDevice ordinal = 0;
    check(driver_.device_get(&ordinal, device.index()), "cuDeviceGet");
    check(driver_.primary_context_retain(&context, ordinal), "cuDevicePrimaryCtxRetain");
    check(driver_.context_set_current(context), "cuCtxSetCurrent");
  }

  void check(CuResult result, const char* function) const {
    if (C10_LIKELY(result == kCudaSuccess)) return;
    const std::string message = std::string(function) + " failed: " + describe(driver_, result);
    const c10::SourceLocation here = {__func__, __FILE__, static_cast<uint32_t>(__LINE__)};
    if (result == kCudaOutOfMemory) throw c10::OutOfMemoryError(here, message);
    // Python sees torch.AcceleratorError, which is never answered with another implementation.
    if (is_asynchronous(result)) throw c10::AcceleratorError(here, result, message);
    throw c10::Error(here, message);
  }

  const CudaDriver& driver_;
};

}  // namespace

std::string cuda_launcher_defect() {
  std::string reason;
  find_cuda_driver(reason);
  return reason;
}

const Launcher& cuda_launcher() {
  static const auto* launcher = [] {
    std::string reason;
    const CudaDriver* driver = find_cuda_driver(reason);
    TORCH_CHECK(driver != nullptr, reason);
    return new CudaLauncher(*driver);  // never destroyed: kernels may be launched until the process ends
  }();
  return *launcher;
}

}  // namespace tefl::launch
