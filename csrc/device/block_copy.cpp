#include "device/block_copy.h"

#include "device/provider.h"
#include "device/shared.h"
#include "device/stream_log.h"
#include "device/streams.h"

namespace tefl::device {
namespace {

const char* kind_of(int32_t destination_device, int32_t source_device, bool named) {
  if (source_device == TEFL_HOST) return named ? "copy from the host for" : "copy from the host";
  if (destination_device == TEFL_HOST) return named ? "copy to the host for" : "copy to the host";
  return destination_device == source_device ? "copy on the device" : "copy between devices";
}

}  // namespace

void enqueue_copy(void* destination, int32_t destination_device, const void* source, int32_t source_device,
                  size_t bytes, c10::Stream stream, const char* name) {
  const auto native = native_stream(stream);
  // Noted first: what another thread waits for then is never missing from the list.
  if (!shared_guard()) {
    note_enqueued(stream, native, kind_of(destination_device, source_device, name != nullptr), name, bytes);
  }
  check(runtime().memcpy_async(destination, destination_device, source, source_device, bytes, native),
        "memcpy_async");
}

}  // namespace tefl::device
