/* The example provider, LIBRARY, with faults that a test turns on. */
#include "example.h"

volatile uint64_t refused_count; /* an all_reduce of that many elements fails */
volatile int32_t broken_events;  /* event_query fails */
volatile int32_t open_groups;    /* begun and not ended */

static tefl_runtime runtime;
static _Thread_local const char* message;

static tefl_status failed(const char* text) {
  message = text;
  return TEFL_ERR_DEVICE;
}

static const char* last_error(void) { return message != NULL ? message : real->last_error(); }

static tefl_status event_query(tefl_event event) {
  return broken_events ? failed("the events are broken") : real->runtime->event_query(event);
}

static tefl_status all_reduce(tefl_comm comm, const void* input, void* output, uint64_t count,
                              tefl_dtype dtype, tefl_reduction reduction, tefl_stream stream) {
  if (refused_count != 0 && count == refused_count) return failed("that count is refused");
  return real->ccl->all_reduce(comm, input, output, count, dtype, reduction, stream);
}

static tefl_status group_start(void) {
  ++open_groups;
  return real->ccl->group_start();
}

static tefl_status group_end(void) {
  --open_groups;
  return real->ccl->group_end();
}

const tefl_provider* tefl_provider_get(void) {
  if (real == NULL) {
    copy_example();
    runtime = *real->runtime;
    runtime.event_query = event_query;
    ccl.all_reduce = all_reduce;
    ccl.group_start = group_start;
    ccl.group_end = group_end;
    provider.last_error = last_error;
    provider.runtime = &runtime;
  }
  return &provider;
}
