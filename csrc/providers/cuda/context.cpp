#include "context.h"

#include <array>
#include <atomic>
#include <mutex>
#include <string>

#include "error.h"

namespace tefl_cuda {
namespace {

std::atomic<int> g_count{-1};  // devices; negative before the start
std::array<std::atomic<CuContext>, kMaxDevices> g_contexts{};
char g_default_streams[kMaxDevices];  // their addresses stand for the default streams

// -1 where the handle is no default stream's.
int32_t device_of_default(tefl_stream stream) noexcept {
  const auto* place = reinterpret_cast<const char*>(stream);
  const bool inside = place >= g_default_streams && place < g_default_streams + kMaxDevices;
  return inside ? static_cast<int32_t>(place - g_default_streams) : -1;
}

// Primary contexts are kept as long as the process: PyTorch keeps them as well.
CuContext context_of(int32_t index) {
  const CuDevice device = device_at(index);
  auto& slot = g_contexts[static_cast<size_t>(index)];
  if (CuContext known = slot.load(std::memory_order_acquire)) return known;
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  if (CuContext known = slot.load()) return known;
  CuContext context = nullptr;
  check(driver().primary_context_retain(&context, device), "cuDevicePrimaryCtxRetain");
  slot.store(context, std::memory_order_release);
  return context;
}

}  // namespace

void start() {
  const CuResult result = driver().init(0);
  if (result == kNotInitialized) {
    throw Failure(TEFL_ERR_UNSUPPORTED,
                  "cuInit: the CUDA driver was started before this process was forked; use the 'spawn' start "
                  "method");
  }
  check(result, "cuInit");
  int count = 0;
  check(driver().device_count(&count), "cuDeviceGetCount");
  g_count.store(count < kMaxDevices ? count : kMaxDevices, std::memory_order_release);
}

int32_t known_devices() noexcept { return g_count.load(std::memory_order_acquire); }

bool started() noexcept { return g_count.load(std::memory_order_acquire) >= 0; }

CuDevice device_at(int32_t index) {
  const int count = g_count.load(std::memory_order_acquire);
  if (count < 0) invalid("the runtime has not been started: call init first");
  if (index < 0 || index >= count) {
    invalid("no device " + std::to_string(index) + ": there are " + std::to_string(count));
  }
  CuDevice device = 0;
  check(driver().device_get(&device, index), "cuDeviceGet");
  return device;
}

Current::Current(int32_t index) { check(driver().context_push(context_of(index)), "cuCtxPushCurrent"); }

Current::Current(tefl_stream stream) {
  if (!started()) invalid("the runtime has not been started: call init first");
  const int32_t index = device_of_default(stream);
  CuContext context = nullptr;
  if (index >= 0) {
    context = context_of(index);
  } else if (stream == nullptr) {
    check(driver().context_get_current(&context), "cuCtxGetCurrent");
    if (context == nullptr) context = context_of(0);
  } else {
    check(driver().stream_context(native(stream), &context), "cuStreamGetCtx");
  }
  check(driver().context_push(context), "cuCtxPushCurrent");
}

Current::~Current() {
  CuContext popped = nullptr;
  driver().context_pop(&popped);
}

tefl_stream default_stream_of(int32_t index) {
  device_at(index);
  return reinterpret_cast<tefl_stream>(&g_default_streams[index]);
}

CuStream native(tefl_stream stream) noexcept {
  return device_of_default(stream) >= 0 ? nullptr : reinterpret_cast<CuStream>(stream);
}

}  // namespace tefl_cuda
