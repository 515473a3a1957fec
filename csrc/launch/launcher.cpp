#include "launch/launcher.h"

#include <c10/util/Exception.h>

#include "device/provider.h"
#include "launch/cuda_launcher.h"
#include "launch/provider_launcher.h"

namespace tefl::launch {
namespace {

bool runs_on_cuda(c10::DeviceType type) {
  if (type == c10::DeviceType::CUDA) return true;
  return type == c10::DeviceType::PrivateUse1 && device::is_active() &&
         device::active().alias == TEFL_ALIAS_CUDA;
}

}  // namespace

std::string unavailable(c10::DeviceType type) {
  if (runs_on_cuda(type)) return cuda_launcher_defect();
  if (type != c10::DeviceType::PrivateUse1) {
    return "compiled kernels run on cuda and on a claimed device, not on " + c10::DeviceTypeName(type, true);
  }
  if (!device::is_active()) return "no device provider is claimed";
  if (device::active().launch == nullptr) {
    return "the provider of '" + device::device_name() + "' has no launch table (tefl_provider.launch)";
  }
  return "";
}

const Launcher& launcher_for(c10::Device device) {
  if (const std::string reason = unavailable(device.type()); !reason.empty())
    TORCH_CHECK(false, "tefl cannot launch a kernel on ", device, ": ", reason);
  return runs_on_cuda(device.type()) ? cuda_launcher() : provider_launcher();
}

}  // namespace tefl::launch
