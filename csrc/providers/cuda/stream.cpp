// Streams and events: a handle is the driver's own, so that what PyTorch and a vendor's kernels get is one.
#include "context.h"
#include "error.h"
#include "tables.h"

namespace tefl_cuda {
namespace {

CuEvent native_event(tefl_event event) {
  if (event == nullptr) invalid("a NULL event");
  return reinterpret_cast<CuEvent>(event);
}

// For the calls that answer "done" or "not yet".
tefl_status answer(CuResult result, const char* function) {
  if (result != kNotReady) check(result, function);
  return result == kNotReady ? TEFL_NOT_READY : TEFL_OK;
}

tefl_status stream_priority_range(int32_t index, int32_t* least, int32_t* greatest) {
  return guarded([&] {
    const Current context(index);
    check(driver().priority_range(least, greatest), "cuCtxGetStreamPriorityRange");
  });
}

tefl_status stream_create(int32_t index, int32_t priority, tefl_stream* stream) {
  return guarded([&] {
    const Current context(index);
    CuStream created = nullptr;
    check(driver().stream_create(&created, kNonBlockingStream, priority), "cuStreamCreateWithPriority");
    *stream = reinterpret_cast<tefl_stream>(created);
  });
}

tefl_status stream_destroy(tefl_stream stream) {
  return guarded([&] {
    if (native(stream) == nullptr) invalid("the default stream cannot be destroyed");
    const Current context(stream);
    check(driver().stream_destroy(native(stream)), "cuStreamDestroy");
  });
}

tefl_status stream_default(int32_t index, tefl_stream* stream) {
  return guarded([&] { *stream = default_stream_of(index); });
}

tefl_status stream_query(tefl_stream stream) {
  return guarded([&] {
    const Current context(stream);
    return answer(driver().stream_query(native(stream)), "cuStreamQuery");
  });
}

tefl_status stream_synchronize(tefl_stream stream) {
  return guarded([&] {
    const Current context(stream);
    check(driver().stream_synchronize(native(stream)), "cuStreamSynchronize");
  });
}

tefl_status stream_wait_event(tefl_stream stream, tefl_event event) {
  return guarded([&] {
    const Current context(stream);
    check(driver().stream_wait_event(native(stream), native_event(event), 0), "cuStreamWaitEvent");
  });
}

tefl_status event_create(int32_t index, int32_t timing, tefl_event* event) {
  return guarded([&] {
    const Current context(index);
    CuEvent created = nullptr;
    check(driver().event_create(&created, timing != 0 ? 0 : kEventWithoutTiming), "cuEventCreate");
    *event = reinterpret_cast<tefl_event>(created);
  });
}

tefl_status event_destroy(tefl_event event) {
  return guarded([&] { check(driver().event_destroy(native_event(event)), "cuEventDestroy"); });
}

tefl_status event_record(tefl_event event, tefl_stream stream) {
  return guarded([&] {
    const Current context(stream);
    check(driver().event_record(native_event(event), native(stream)), "cuEventRecord");
  });
}

tefl_status event_query(tefl_event event) {
  return guarded([&] { return answer(driver().event_query(native_event(event)), "cuEventQuery"); });
}

tefl_status event_synchronize(tefl_event event) {
  return guarded([&] { check(driver().event_synchronize(native_event(event)), "cuEventSynchronize"); });
}

tefl_status event_elapsed_ms(tefl_event start, tefl_event end, double* milliseconds) {
  return guarded([&] {
    float elapsed = 0;
    check(driver().event_elapsed(&elapsed, native_event(start), native_event(end)), "cuEventElapsedTime");
    *milliseconds = static_cast<double>(elapsed);
  });
}

}  // namespace

void fill_streams(tefl_runtime& table) {
  table.stream_priority_range = stream_priority_range;
  table.stream_create = stream_create;
  table.stream_destroy = stream_destroy;
  table.stream_default = stream_default;
  table.stream_query = stream_query;
  table.stream_synchronize = stream_synchronize;
  table.stream_wait_event = stream_wait_event;
  table.event_create = event_create;
  table.event_destroy = event_destroy;
  table.event_record = event_record;
  table.event_query = event_query;
  table.event_synchronize = event_synchronize;
  table.event_elapsed_ms = event_elapsed_ms;
}

}  // namespace tefl_cuda
