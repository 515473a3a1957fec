#include "device/streams.h"

#include <c10/util/ArrayRef.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <mutex>
#include <vector>

#include "device/current_device.h"
#include "device/patience.h"
#include "device/provider.h"
#include "device/shared.h"
#include "device/stream_log.h"

namespace tefl::device {
namespace {

constexpr size_t kPoolSize = 32;
constexpr size_t kMaxDevices = 128;  // c10::DeviceIndex is an int8_t

struct Pool {
  std::mutex mutex;
  std::map<int, std::vector<tefl_stream>> streams;  // by priority
  std::map<int, size_t> next;
};

// A stream id is the provider's handle, which spares a table on the way back; 0 stands for the default
// stream.
thread_local std::array<c10::StreamId, kMaxDevices> current_ids{};
std::array<std::atomic<tefl_stream>, kMaxDevices> default_streams{};
std::array<std::atomic<bool>, kMaxDevices> default_known{};

Pool& pool_of(c10::DeviceIndex index) {
  static auto* pools = new std::array<Pool, kMaxDevices>;  // never destroyed: threads may outlive main
  return (*pools)[index];
}

c10::Stream stream_with_id(c10::DeviceIndex index, c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, device_at(index), id);
}

tefl_stream default_stream(c10::DeviceIndex index) {
  if (!default_known[index].load(std::memory_order_acquire)) {
    tefl_stream stream = nullptr;
    check(runtime().stream_default(index, &stream), "stream_default");
    default_streams[index] = stream;
    default_known[index].store(true, std::memory_order_release);
  }
  return default_streams[index].load(std::memory_order_relaxed);
}

std::pair<int, int> priority_range(c10::DeviceIndex index) {
  int32_t least = 0, greatest = 0;
  check(runtime().stream_priority_range(index, &least, &greatest), "stream_priority_range");
  return {least, greatest};
}

std::vector<c10::Stream> pooled_streams(c10::DeviceIndex index) {
  std::vector<c10::Stream> all{stream_with_id(index, 0)};
  Pool& pool = pool_of(index);
  const std::lock_guard<std::mutex> lock(pool.mutex);
  for (const auto& [priority, streams] : pool.streams) {
    for (tefl_stream stream : streams) {
      all.push_back(stream_with_id(index, reinterpret_cast<c10::StreamId>(stream)));
    }
  }
  return all;
}

// Asks instead of waiting, so that the wait that follows ends at once. `seconds` are for all of them
// together; 0 asks nothing.
void await_streams(c10::ArrayRef<c10::Stream> streams, double seconds) {
  if (C10_LIKELY(seconds <= 0)) return;
  const auto* next = streams.begin();
  const auto all_done = [&] {
    while (next != streams.end() && query_stream(*next)) ++next;
    return next == streams.end();
  };
  if (poll(all_done, seconds)) return;
  throw_timed_out("synchronize", seconds, describe_stream(*next, native_stream(*next)));
}

[[noreturn]] void throw_with_place(tefl_status status, const char* function, const std::string& place) {
  throw_status(status, function, provider_reason(status) + " (" + place + ")");
}

}  // namespace

c10::Stream current_stream(c10::DeviceIndex index) noexcept {
  if (const auto* shared = started_shared_guard()) return our_stream(shared->getStream(shared_device(index)));
  return stream_with_id(index, current_ids[index]);
}

c10::Stream exchange_stream(c10::Stream stream) {
  TORCH_CHECK(stream.device_type() == kType, "a ", device_name(), " stream is wanted, got one of ",
              stream.device());
  if (shared_guard()) {
    ensure_initialized();
    return our_stream(shared_guard()->exchangeStream(shared_stream(stream)));
  }
  const auto index = resolve_index(stream.device_index());
  const auto before = current_stream(index);
  current_ids[index] = stream.id();
  return before;
}

c10::Stream new_stream(c10::DeviceIndex index, int priority) {
  ensure_initialized();
  const auto [least, greatest] = priority_range(index);
  priority = std::clamp(priority, greatest, least);
  if (shared_guard()) return our_stream(shared_guard()->getNewStream(shared_device(index), priority));
  Pool& pool = pool_of(index);
  std::lock_guard<std::mutex> lock(pool.mutex);
  auto& streams = pool.streams[priority];
  const size_t turn = pool.next[priority]++ % kPoolSize;
  if (turn >= streams.size()) {
    tefl_stream stream = nullptr;
    check(runtime().stream_create(index, priority, &stream), "stream_create");
    TORCH_CHECK(stream != nullptr, device_name(), ": stream_create returned a NULL stream");
    streams.push_back(stream);
    return stream_with_id(index, reinterpret_cast<c10::StreamId>(stream));
  }
  return stream_with_id(index, reinterpret_cast<c10::StreamId>(streams[turn]));
}

c10::Stream new_urgent_stream(c10::DeviceIndex index) {
  ensure_initialized();
  if (shared_guard()) return our_stream(shared_guard()->getStreamFromGlobalPool(shared_device(index), true));
  return new_stream(index, priority_range(index).second);
}

tefl_stream native_stream(c10::Stream stream) {
  ensure_initialized();
  if (shared_guard()) {
    return static_cast<tefl_stream>(shared_guard()->getStreamNativeHandle(shared_stream(stream)));
  }
  const auto index = resolve_index(stream.device_index());
  return stream.id() == 0 ? default_stream(index) : reinterpret_cast<tefl_stream>(stream.id());
}

bool query_stream(c10::Stream stream) {
  if (shared_guard()) {
    ensure_initialized();
    return shared_guard()->queryStream(shared_stream(stream));
  }
  const auto status = runtime().stream_query(native_stream(stream));
  if (status == TEFL_NOT_READY) return false;
  check(status, "stream_query");
  return true;
}

void synchronize_stream(c10::Stream stream) {
  ensure_initialized();
  await_streams(stream, patience());
  if (shared_guard()) return shared_guard()->synchronizeStream(shared_stream(stream));
  const auto native = native_stream(stream);
  const uint64_t count = noted(native);
  const auto status = runtime().stream_synchronize(native);
  if (C10_UNLIKELY(status != TEFL_OK)) {
    const auto place = describe_stream(stream, native);
    note_done(native, count);
    throw_with_place(status, "stream_synchronize", place);
  }
  note_done(native, count);
}

bool drain_stream(c10::Stream stream) noexcept {
  constexpr int kRefusals = 3;  // a device that does not answer is not waited for
  constexpr double kOneHour = 3600;
  int refusals = 0;
  bool idle = false;
  const auto settled = [&] {
    try {
      idle = query_stream(stream);
    } catch (const c10::Error&) {
      ++refusals;
    }
    return idle || refusals > kRefusals;
  };
  poll(settled, patience() > 0 ? patience() : kOneHour);
  return idle;
}

void synchronize_device(c10::DeviceIndex index, double seconds) {
  ensure_initialized();
  index = resolve_index(index);
  if (shared_guard()) {
    await_streams(current_stream(index), seconds);
    return shared_guard()->synchronizeDevice(index);
  }
  const auto streams = pooled_streams(index);
  await_streams(streams, seconds);
  std::vector<uint64_t> counts;
  for (const c10::Stream stream : streams) counts.push_back(noted(native_stream(stream)));
  const auto status = runtime().device_synchronize(index);
  const auto place = status == TEFL_OK ? "" : c10::str(device_at(index), " | ", describe_busy_streams(index));
  for (size_t i = 0; i < streams.size(); ++i) note_done(native_stream(streams[i]), counts[i]);
  if (status != TEFL_OK) throw_with_place(status, "device_synchronize", place);
}

void wait_for_current_stream(c10::DeviceIndex index) { synchronize_stream(current_stream(index)); }

}  // namespace tefl::device
