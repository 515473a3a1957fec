#include "visible.h"

#include <dlfcn.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "context.h"
#include "driver.h"
#include "error.h"

namespace tefl_cuda {
namespace {

// ------------------------------------------------------------------------------- the management library --

struct Management {
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*count)(unsigned*) = nullptr;
  int (*handle)(unsigned, void**) = nullptr;
  int (*uuid)(void*, char*, unsigned) = nullptr;
};

template <typename Function>
bool look_up(void* library, const char* symbol, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, symbol));
  return function != nullptr;
}

std::optional<Management> open_management() {
  void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  Management found;
  const bool complete = library != nullptr && look_up(library, "nvmlInit_v2", found.init) &&
                        look_up(library, "nvmlShutdown", found.shutdown) &&
                        look_up(library, "nvmlDeviceGetCount_v2", found.count) &&
                        look_up(library, "nvmlDeviceGetHandleByIndex_v2", found.handle) &&
                        look_up(library, "nvmlDeviceGetUUID", found.uuid);
  return complete ? std::optional<Management>(found) : std::nullopt;
}

// The UUIDs of the machine's devices, in the order of their bus numbers.
std::optional<std::vector<std::string>> uuids_of_machine() {
  static const auto management = open_management();
  if (!management || management->init() != 0) return std::nullopt;
  unsigned count = 0;
  bool good = management->count(&count) == 0;
  std::vector<std::string> uuids;
  for (unsigned i = 0; good && i < count; ++i) {
    void* handle = nullptr;
    char text[96] = "";
    good = management->handle(i, &handle) == 0 && management->uuid(handle, text, sizeof(text)) == 0;
    uuids.emplace_back(text);
  }
  management->shutdown();
  return good ? std::optional<std::vector<std::string>>(uuids) : std::nullopt;
}

// ------------------------------------------------------------------------------- CUDA_VISIBLE_DEVICES --

std::string_view trimmed(std::string_view text) {
  const auto begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

// The number of the device that `entry` names; -1 for none.
int32_t device_named(std::string_view entry, const std::vector<std::string>& uuids) {
  if (entry.substr(0, 4) == "GPU-") {
    const auto matches = [&](const std::string& uuid) { return uuid.compare(0, entry.size(), entry) == 0; };
    const auto found = std::find_if(uuids.begin(), uuids.end(), matches);
    if (found == uuids.end() || std::find_if(found + 1, uuids.end(), matches) != uuids.end()) return -1;
    return static_cast<int32_t>(found - uuids.begin());
  }
  int32_t number = -1;
  const auto [end, error] = std::from_chars(entry.data(), entry.data() + entry.size(), number);
  const bool good = error == std::errc() && end == entry.data() + entry.size() && number >= 0;
  return good && number < static_cast<int32_t>(uuids.size()) ? number : -1;
}

int32_t ask_driver() {
  int count = 0;
  const CuResult result = driver().init(0);
  if (result == kNoDevice) return 0;
  check(result, "cuInit");
  check(driver().device_count(&count), "cuDeviceGetCount");
  return std::min(count, kMaxDevices);
}

bool has_driver() {
  void* library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  return library != nullptr;  // stays open, as for the driver
}

}  // namespace

int32_t count_visible(const std::string& setting, const std::vector<std::string>& uuids) {
  std::vector<int32_t> seen;
  std::string_view rest = setting;
  while (!rest.empty()) {
    const auto comma = rest.find(',');
    const auto entry = trimmed(rest.substr(0, comma));
    rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
    if (entry.substr(0, 4) == "MIG-") return -1;
    const int32_t device = device_named(entry, uuids);
    if (device < 0) break;
    if (std::find(seen.begin(), seen.end(), device) != seen.end()) return 0;
    seen.push_back(device);
  }
  return static_cast<int32_t>(seen.size());
}

int32_t visible_devices() {
  if (started()) return known_devices();
  if (!has_driver()) return 0;
  const auto uuids = uuids_of_machine();
  if (!uuids) return ask_driver();
  const char* setting = std::getenv("CUDA_VISIBLE_DEVICES");
  if (setting == nullptr) return std::min(static_cast<int32_t>(uuids->size()), kMaxDevices);
  const int32_t count = count_visible(setting, *uuids);
  return count < 0 ? ask_driver() : std::min(count, kMaxDevices);
}

}  // namespace tefl_cuda
