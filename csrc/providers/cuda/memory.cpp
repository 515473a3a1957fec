// Device memory, pinned host memory, and copies, which go by addresses alone: all of them are of one space.
#include <string>

#include "context.h"
#include "error.h"
#include "tables.h"

namespace tefl_cuda {
namespace {

CuPointer address(const void* pointer) { return reinterpret_cast<CuPointer>(pointer); }

tefl_status device_malloc(int32_t index, size_t bytes, void** pointer) {
  return guarded([&] {
    if (bytes == 0) invalid("0 bytes asked for");
    const Current context(index);
    CuPointer memory = 0;
    check(driver().memory_allocate(&memory, bytes), "cuMemAlloc");
    *pointer = reinterpret_cast<void*>(memory);
  });
}

tefl_status device_free(int32_t index, void* pointer) {
  return guarded([&] {
    const Current context(index);
    check(driver().memory_free(address(pointer)), "cuMemFree");
  });
}

tefl_status memory_info(int32_t index, uint64_t* free_bytes, uint64_t* total_bytes) {
  return guarded([&] {
    const Current context(index);
    size_t free = 0, total = 0;
    check(driver().memory_info(&free, &total), "cuMemGetInfo");
    *free_bytes = free;
    *total_bytes = total;
  });
}

// Usable from every device; pinning needs some context, and takes the calling thread's if it has one.
tefl_status host_malloc(size_t bytes, void** pointer) {
  return guarded([&] {
    const Current context(tefl_stream{nullptr});
    check(driver().host_allocate(pointer, bytes, kPortableHostMemory), "cuMemHostAlloc");
  });
}

tefl_status host_free(void* pointer) {
  return guarded([&] {
    const Current context(tefl_stream{nullptr});
    check(driver().host_free(pointer), "cuMemFreeHost");
  });
}

tefl_status memcpy_async(void* destination, int32_t destination_device, const void* source,
                         int32_t source_device, size_t bytes, tefl_stream stream) {
  return guarded([&] {
    for (const int32_t place : {destination_device, source_device}) {
      if (place != TEFL_HOST) device_at(place);
    }
    if (bytes == 0) return;
    if (destination == nullptr || source == nullptr) invalid("a NULL pointer to copy");
    const Current context(stream);
    check(driver().copy(address(destination), address(source), bytes, native(stream)), "cuMemcpyAsync");
  });
}

tefl_status memset_async(void* pointer, uint8_t value, size_t bytes, tefl_stream stream) {
  return guarded([&] {
    if (bytes == 0) return;
    if (pointer == nullptr) invalid("a NULL pointer to set");
    const Current context(stream);
    check(driver().fill(address(pointer), value, bytes, native(stream)), "cuMemsetD8Async");
  });
}

}  // namespace

void fill_memory(tefl_runtime& table) {
  table.malloc = device_malloc;
  table.free = device_free;
  table.memory_info = memory_info;
  table.host_malloc = host_malloc;
  table.host_free = host_free;
  table.memcpy_async = memcpy_async;
  table.memset_async = memset_async;
}

}  // namespace tefl_cuda
