#include "device/events.h"

#include <c10/util/Exception.h>

#include <string>

#include "device/current_device.h"
#include "device/lifetime.h"
#include "device/patience.h"
#include "device/provider.h"
#include "device/shared.h"
#include "device/stream_log.h"
#include "device/streams.h"

namespace tefl::device {
namespace {

tefl_event native(void* event) { return static_cast<tefl_event>(event); }

std::string describe_event() {
  const auto streams = describe_busy_streams(-1);
  return streams.empty() ? "an event" : "an event, of one of these streams: " + streams;
}

// For the calls that answer with TEFL_OK or TEFL_NOT_READY.
bool is_done(tefl_status status, const char* function) {
  if (status == TEFL_NOT_READY) return false;
  check(status, function);
  return true;
}

}  // namespace

void record_event(void** event, c10::Stream stream, bool timing) {
  const auto native_target = native_stream(stream);
  if (shared_guard()) {
    const auto flag = timing ? c10::EventFlag::BACKEND_DEFAULT : c10::EventFlag::PYTORCH_DEFAULT;
    return shared_guard()->record(event, shared_stream(stream), stream.device_index(), flag);
  }
  if (*event == nullptr) {
    tefl_event created = nullptr;
    check(runtime().event_create(stream.device_index(), timing, &created), "event_create");
    *event = created;
  }
  check(runtime().event_record(native(*event), native_target), "event_record");
}

void block_stream(void* event, c10::Stream stream) {
  if (event == nullptr) return;
  if (shared_guard()) {
    ensure_initialized();
    return shared_guard()->block(event, shared_stream(stream));
  }
  check(runtime().stream_wait_event(native_stream(stream), native(event)), "stream_wait_event");
}

bool query_event(void* event) {
  if (event == nullptr) return true;
  ensure_initialized();
  if (shared_guard()) return shared_guard()->queryEvent(event);
  return is_done(runtime().event_query(native(event)), "event_query");
}

void synchronize_event(void* event) {
  if (event == nullptr) return;
  ensure_initialized();
  const double seconds = patience();
  if (C10_UNLIKELY(seconds > 0) && !poll([&] { return query_event(event); }, seconds)) {
    throw_timed_out("synchronize", seconds, describe_event());
  }
  if (shared_guard()) return shared_guard()->synchronizeEvent(event);
  check(runtime().event_synchronize(native(event)), "event_synchronize");
}

double elapsed_ms(void* start, void* end, c10::DeviceIndex index) {
  TORCH_CHECK(start != nullptr && end != nullptr, device_name(),
              ": both events must be recorded before the time between them can be asked");
  ensure_initialized();
  if (shared_guard()) return shared_guard()->elapsedTime(start, end, index);
  double milliseconds = 0;
  check(runtime().event_elapsed_ms(native(start), native(end), &milliseconds), "event_elapsed_ms");
  return milliseconds;
}

void destroy_event(void* event, c10::DeviceIndex index) noexcept {
  if (event == nullptr || !may_release()) return;
  if (shared_guard()) return shared_guard()->destroyEvent(event, index);
  runtime().event_destroy(native(event));
}

void order_streams(c10::Stream earlier, c10::Stream later) {
  if (earlier == later) return;
  struct Once {
    ~Once() { destroy_event(event, index); }
    const c10::DeviceIndex index;
    void* event = nullptr;
  } once{earlier.device_index()};
  record_event(&once.event, earlier, /*timing=*/false);
  block_stream(once.event, later);
}

}  // namespace tefl::device
