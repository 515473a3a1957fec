// provider.cpp: the table that tefl reads. Each function checks its arguments and hands on to engine or
// memory.
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>

#include "ccl.h"
#include "engine.h"
#include "memory.h"
#include "status.h"
#include "tefl_provider.h"

// What `event_record` changes and the other event functions read. tefl may call from two threads at once, so
// the reference to the mark is only ever exchanged as a whole (std::atomic_load, std::atomic_store).
struct tefl_event_s {
  const int32_t card;
  const bool timing;
  std::shared_ptr<const maca::Mark> mark;  // null: never recorded, which counts as done
};

namespace maca {
namespace {

std::shared_ptr<const Mark> mark_of(tefl_event event) {
  require(event != nullptr, "event is NULL");
  return std::atomic_load(&event->mark);
}

// -- runtime ------------------------------------------------------------------------------------------------

tefl_status init() {
  return guarded([] { start_engines(); });
}

// Called before init, perhaps in a process that will fork: a constant opens nothing. Hardware would be
// counted here by a look into the file system, not through the driver.
tefl_status device_count(int32_t* count) {
  *count = kCards;
  return TEFL_OK;
}

tefl_status device_properties(int32_t card, tefl_device_properties* properties) {
  return guarded([&] {
    check_card(card);
    // Every field we write exists since version 1.0 of the header, so `properties->size` needs no look: a
    // later field may only be written if it lies within that size.
    std::snprintf(properties->name, sizeof properties->name, "MACA example card");
    properties->total_memory = kCardMemory;
    properties->arch_major = 1;
    properties->arch_minor = 0;
    properties->multiprocessor_count = 1;
  });
}

tefl_status device_synchronize(int32_t card) {
  return guarded([&] { synchronize_card(card); });
}

// -- memory -------------------------------------------------------------------------------------------------

tefl_status device_malloc(int32_t card, size_t bytes, void** pointer) {
  return guarded([&] { *pointer = allocate(card, bytes); });
}

tefl_status device_free(int32_t card, void* pointer) {
  return guarded([&] { release(card, pointer); });
}

tefl_status memory_info(int32_t card, uint64_t* free_bytes, uint64_t* total_bytes) {
  return guarded([&] {
    *free_bytes = free_memory(card);
    *total_bytes = kCardMemory;
  });
}

// The cards' memory is host memory, so one copy serves all four directions and the two device numbers tell us
// nothing. A card with its own memory would branch on TEFL_HOST here.
tefl_status memcpy_async(void* destination, int32_t, const void* source, int32_t, size_t bytes,
                         tefl_stream stream) {
  return guarded(
      [&] { submit(stream, {nullptr, [=] { std::memcpy(destination, source, bytes); }, nullptr}); });
}

tefl_status memset_async(void* pointer, uint8_t value, size_t bytes, tefl_stream stream) {
  return guarded([&] { submit(stream, {nullptr, [=] { std::memset(pointer, value, bytes); }, nullptr}); });
}

// -- streams ------------------------------------------------------------------------------------------------

tefl_status stream_priority_range(int32_t card, int32_t* least, int32_t* greatest) {
  return guarded([&] {
    check_card(card);
    *least = 0;
    *greatest = -1;
  });
}

tefl_status stream_create(int32_t card, int32_t priority, tefl_stream* stream) {
  return guarded([&] { *stream = create_stream(card, priority); });
}

tefl_status stream_destroy(tefl_stream stream) {
  return guarded([&] { destroy_stream(stream); });
}

tefl_status stream_default(int32_t card, tefl_stream* stream) {
  return guarded([&] { *stream = default_stream(card); });
}

tefl_status stream_query(tefl_stream stream) {
  return guarded([&]() -> tefl_status { return is_idle(stream) ? TEFL_OK : TEFL_NOT_READY; });
}

tefl_status stream_synchronize(tefl_stream stream) {
  return guarded([&] { synchronize(stream); });
}

tefl_status stream_wait_event(tefl_stream stream, tefl_event event) {
  return guarded([&] {
    if (auto mark = mark_of(event)) submit(stream, {std::move(mark), nullptr, nullptr});
  });
}

// -- events -------------------------------------------------------------------------------------------------

tefl_status event_create(int32_t card, int32_t timing, tefl_event* event) {
  return guarded([&] {
    check_card(card);
    *event = new tefl_event_s{card, timing != 0, nullptr};
  });
}

tefl_status event_destroy(tefl_event event) {
  return guarded([&] { delete event; });
}

tefl_status event_record(tefl_event event, tefl_stream stream) {
  return guarded([&] {
    require(event != nullptr, "event is NULL");
    require(event->card == card_of(stream), "the event and the stream belong to different cards");
    auto mark = std::make_shared<Mark>();
    submit(stream, {nullptr, nullptr, mark});
    std::atomic_store(&event->mark, std::shared_ptr<const Mark>(mark));
  });
}

tefl_status event_query(tefl_event event) {
  return guarded([&]() -> tefl_status {
    const auto mark = mark_of(event);
    return !mark || is_reached(*mark) ? TEFL_OK : TEFL_NOT_READY;
  });
}

tefl_status event_synchronize(tefl_event event) {
  return guarded([&] {
    if (const auto mark = mark_of(event)) wait_until_reached(*mark);
  });
}

tefl_status event_elapsed_ms(tefl_event start, tefl_event end, double* milliseconds) {
  return guarded([&] {
    const auto first = mark_of(start);
    const auto last = mark_of(end);
    require(start->timing && end->timing, "both events must be created with timing");
    require(start->card == end->card, "the events belong to different cards");
    require(first && last && is_reached(*first) && is_reached(*last),
            "both events must be recorded and done");
    *milliseconds = std::chrono::duration<double, std::milli>(last->when - first->when).count();
  });
}

const char* last_error() { return message_of_this_thread().c_str(); }

// -- tables -------------------------------------------------------------------------------------------------

// Filled in by name: what is not mentioned stays NULL, which is how an optional function is left out. Left
// out here: set_current_device, since our functions are always told the card; host_malloc and host_free,
// since ordinary host memory is as good as any other for copies to these cards.
tefl_runtime make_runtime() {
  tefl_runtime table{};
  table.size = sizeof table;
  table.init = init;
  table.device_count = device_count;
  table.device_properties = device_properties;
  table.device_synchronize = device_synchronize;
  table.malloc = device_malloc;
  table.free = device_free;
  table.memory_info = memory_info;
  table.memcpy_async = memcpy_async;
  table.memset_async = memset_async;
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
  return table;
}

tefl_provider make_provider(const tefl_runtime* runtime, const tefl_ccl* ccl) {
  tefl_provider table{};
  table.size = sizeof table;
  table.abi_major = TEFL_PROVIDER_ABI_MAJOR;
  table.abi_minor = TEFL_PROVIDER_ABI_MINOR;
  table.name = "maca";
  table.version = "0.1.0";
  table.alias = TEFL_ALIAS_CPU;  // PyTorch's CPU kernels may compute on our memory: all of ATen works at once
  table.last_error = last_error;
  table.runtime = runtime;
  table.launch = nullptr;  // no compiled kernels: tefl's Triton kernels are unavailable on these cards
  table.ccl = ccl;
  return table;
}

}  // namespace
}  // namespace maca

// The one symbol that tefl looks up. The tables are made on the first call and live as long as the process.
const tefl_provider* tefl_provider_get(void) {
  static const tefl_runtime runtime = maca::make_runtime();
  static const tefl_ccl ccl = maca::make_ccl();
  static const tefl_provider provider = maca::make_provider(&runtime, &ccl);
  return &provider;
}
