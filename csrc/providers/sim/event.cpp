// Events: named places for marks.
#include <memory>
#include <mutex>

#include "device.h"
#include "faults.h"
#include "stream.h"
#include "tables.h"

namespace tefl_sim {
namespace {

struct Event {
  Event(int32_t device, bool timing) : device(device), timing(timing) {}

  /// The mark of the last record; null where there was none.
  std::shared_ptr<Mark> mark() const {
    const std::lock_guard<std::mutex> lock(mutex);
    return last;
  }

  const int32_t device;
  const bool timing;
  mutable std::mutex mutex;
  std::shared_ptr<Mark> last;
};

Registry<tefl_event, Event>& events() {
  static auto* registry = new Registry<tefl_event, Event>("event");
  return *registry;
}

std::shared_ptr<Mark> finished_mark(tefl_event event, const char* which) {
  const auto found = events().find(event);
  if (!found->timing) invalid(std::string(which) + " event was created without timing");
  const auto mark = found->mark();
  if (!mark || !mark->reached()) invalid(std::string(which) + " event is not done");
  return mark;
}

tefl_status event_create(int32_t device, int32_t timing, tefl_event* event) {
  return guarded(Call::kEventCreate, [&] {
    check_device(device);
    *event = events().add(std::make_shared<Event>(device, timing != 0));
  });
}

tefl_status event_destroy(tefl_event event) {
  return guarded(Call::kEventDestroy, [&] { events().remove(event); });
}

tefl_status event_record(tefl_event event, tefl_stream stream) {
  return guarded(Call::kEventRecord, [&] {
    const auto recorded = events().find(event);
    const auto source = streams().find(stream);
    if (recorded->device != source->device) {
      invalid("an event of device " + std::to_string(recorded->device) +
              " cannot be recorded on a stream of device " + std::to_string(source->device));
    }
    const std::lock_guard<std::mutex> lock(recorded->mutex);
    recorded->last = source->mark();
  });
}

tefl_status event_query(tefl_event event) {
  return guarded(Call::kEventQuery, [&]() -> tefl_status {
    const auto mark = events().find(event)->mark();
    return !mark || mark->reached() ? TEFL_OK : TEFL_NOT_READY;
  });
}

tefl_status event_synchronize(tefl_event event) {
  return guarded([&] {
    if (const auto mark = events().find(event)->mark()) mark->wait();
    fail_if_due(Call::kEventSynchronize);
  });
}

// A mark is waited for only after it was enqueued elsewhere, so streams never wait for each other in a
// circle.
tefl_status stream_wait_event(tefl_stream stream, tefl_event event) {
  return guarded(Call::kStreamWaitEvent, [&] {
    const auto waiting = streams().find(stream);
    const auto mark = events().find(event)->mark();
    if (mark && !mark->reached()) waiting->enqueue([mark] { mark->wait(); }, "a wait for an event");
  });
}

tefl_status event_elapsed_ms(tefl_event start, tefl_event end, double* milliseconds) {
  return guarded(Call::kEventElapsedMs, [&] {
    const auto from = finished_mark(start, "the start"), to = finished_mark(end, "the end");
    if (events().find(start)->device != events().find(end)->device) {
      invalid("the two events belong to different devices");
    }
    *milliseconds = std::chrono::duration<double, std::milli>(to->time() - from->time()).count();
  });
}

}  // namespace

void fill_events(tefl_runtime& table) {
  table.event_create = event_create;
  table.event_destroy = event_destroy;
  table.event_record = event_record;
  table.event_query = event_query;
  table.event_synchronize = event_synchronize;
  table.stream_wait_event = stream_wait_event;
  table.event_elapsed_ms = event_elapsed_ms;
}

}  // namespace tefl_sim
