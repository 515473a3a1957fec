#include "device.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <string>
#include <thread>

#include "config.h"
#include "error.h"
#include "faults.h"
#include "stray_access.h"
#include "tables.h"

namespace tefl_sim {
namespace {

struct Runtime {
  std::vector<std::unique_ptr<Device>> devices;
  uint64_t capacity = 0;
};

// Never destroyed: streams may still be at work while the process ends.
std::atomic<Runtime*> g_runtime{nullptr};

Runtime& running() {
  Runtime* runtime = g_runtime.load(std::memory_order_acquire);
  if (runtime == nullptr) invalid("the runtime has not been started: call init first");
  return *runtime;
}

tefl_status init() {
  return guarded([] {
    if (g_runtime.load() != nullptr) invalid("init was called twice");
    auto runtime = std::make_unique<Runtime>();
    const int32_t count = configured_devices();
    check_guarding();
    configure_faults();
    for (int32_t i = 0; i < count; ++i) runtime->devices.push_back(std::make_unique<Device>());
    runtime->capacity = configured_capacity();
    create_default_streams(count);
    remember_forks();
    g_runtime.store(runtime.release(), std::memory_order_release);
    if (configured_guarding() != Guarding::kNone) explain_stray_access();
  });
}

tefl_status device_count(int32_t* count) {
  try {
    *count = configured_devices();
    return TEFL_OK;
  } catch (const Failure& failure) {
    return fail(failure.status, failure.what());
  }
}

tefl_status device_properties(int32_t index, tefl_device_properties* properties) {
  return guarded(Call::kDeviceProperties, [&] {
    check_device(index);
    std::snprintf(properties->name, sizeof(properties->name), "simulated device %d", index);
    properties->total_memory = capacity();
    properties->arch_major = properties->arch_minor = 0;
    properties->multiprocessor_count =
        static_cast<int32_t>(std::max(1U, std::thread::hardware_concurrency()));
  });
}

tefl_status device_synchronize(int32_t index) {
  return guarded([&] {
    check_device(index);
    drain(index);
    for (const auto& stream : streams().all()) {
      if (stream->device == index) raise_error(*stream);
    }
    fail_if_due(Call::kDeviceSynchronize);  // as a device fails, after the wait: the caller may free memory
  });
}

}  // namespace

Device& device(int32_t index) {
  auto& devices = running().devices;
  if (index < 0 || static_cast<size_t>(index) >= devices.size()) {
    invalid("no device " + std::to_string(index) + ": there are " + std::to_string(devices.size()));
  }
  return *devices[static_cast<size_t>(index)];
}

void check_device(int32_t index) { device(index); }

int32_t running_devices() noexcept {
  const Runtime* runtime = g_runtime.load(std::memory_order_acquire);
  return runtime == nullptr ? 0 : static_cast<int32_t>(runtime->devices.size());
}

uint64_t capacity() { return running().capacity; }

void drain(int32_t index) {
  for (const auto& stream : streams().all()) {
    if (stream->device == index) stream->wait();
  }
}

void fill_devices(tefl_runtime& table) {
  table.init = init;
  table.device_count = device_count;
  table.device_properties = device_properties;
  table.device_synchronize = device_synchronize;
}

}  // namespace tefl_sim
