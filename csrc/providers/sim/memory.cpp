// Device memory is host memory, counted against the device's capacity.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>

#include "device.h"
#include "tables.h"

namespace tefl_sim {
namespace {

constexpr size_t kAlignment = 64;

void* aligned(size_t bytes) {
  if (bytes == 0) invalid("0 bytes asked for");
  if (bytes > PTRDIFF_MAX - kAlignment) return nullptr;
  return std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
}

[[noreturn]] void out_of_memory(size_t bytes, uint64_t free_bytes) {
  throw Failure(TEFL_ERR_OUT_OF_MEMORY, std::to_string(bytes) + " bytes asked for, " +
                                            std::to_string(free_bytes) + " of " + std::to_string(capacity()) +
                                            " free");
}

tefl_status device_malloc(int32_t index, size_t bytes, void** pointer) {
  return guarded([&] {
    Device& owner = device(index);
    const std::lock_guard<std::mutex> lock(owner.mutex);
    const uint64_t free_bytes = capacity() - owner.used;
    if (bytes > free_bytes) out_of_memory(bytes, free_bytes);
    void* memory = aligned(bytes);
    if (memory == nullptr) out_of_memory(bytes, free_bytes);
    owner.allocations[memory] = bytes;
    owner.used += bytes;
    *pointer = memory;
  });
}

// Work that was enqueued before and touches the device runs on its own streams, or is a visit.
void wait_for_users(int32_t index, Device& owner) {
  drain(index);
  std::vector<std::shared_ptr<Mark>> visits;
  {
    const std::lock_guard<std::mutex> lock(owner.mutex);
    visits.swap(owner.visits);
  }
  for (const auto& visit : visits) visit->wait();
}

tefl_status device_free(int32_t index, void* pointer) {
  return guarded([&] {
    Device& owner = device(index);
    {
      const std::lock_guard<std::mutex> lock(owner.mutex);
      const auto it = owner.allocations.find(pointer);
      if (it == owner.allocations.end()) {
        invalid("the pointer to free is no allocation of device " + std::to_string(index));
      }
      owner.used -= it->second;
      owner.allocations.erase(it);
    }
    wait_for_users(index, owner);
    std::free(pointer);
  });
}

tefl_status memory_info(int32_t index, uint64_t* free_bytes, uint64_t* total_bytes) {
  return guarded([&] {
    Device& owner = device(index);
    const std::lock_guard<std::mutex> lock(owner.mutex);
    *free_bytes = capacity() - owner.used;
    *total_bytes = capacity();
  });
}

tefl_status host_malloc(size_t bytes, void** pointer) {
  return guarded([&] {
    void* memory = aligned(bytes);
    if (memory == nullptr)
      throw Failure(TEFL_ERR_OUT_OF_MEMORY, std::to_string(bytes) + " bytes of host memory");
    *pointer = memory;
  });
}

tefl_status host_free(void* pointer) {
  return guarded([&] { std::free(pointer); });
}

// Copies between two devices run on a stream of one; the other must know, or it frees the memory too early.
void remember_visit(int32_t other, int32_t stream_device, Stream& stream) {
  if (other == TEFL_HOST || other == stream_device) return;
  Device& visited = device(other);
  auto visit = stream.mark();
  const std::lock_guard<std::mutex> lock(visited.mutex);
  auto& visits = visited.visits;
  visits.erase(std::remove_if(visits.begin(), visits.end(), [](const auto& old) { return old->reached(); }),
               visits.end());
  visits.push_back(std::move(visit));
}

void check_place(int32_t index) {
  if (index != TEFL_HOST) check_device(index);
}

tefl_status memcpy_async(void* destination, int32_t destination_device, const void* source,
                         int32_t source_device, size_t bytes, tefl_stream stream) {
  return guarded([&] {
    check_place(destination_device);
    check_place(source_device);
    const auto found = streams().find(stream);
    if (found->device != destination_device && found->device != source_device) {
      invalid("the stream belongs to device " + std::to_string(found->device) + ", the copy runs from " +
              std::to_string(source_device) + " to " + std::to_string(destination_device));
    }
    if (bytes == 0) return;
    if (destination == nullptr || source == nullptr) invalid("a NULL pointer to copy");
    found->enqueue([=] { std::memcpy(destination, source, bytes); });
    remember_visit(destination_device, found->device, *found);
    remember_visit(source_device, found->device, *found);
  });
}

tefl_status memset_async(void* pointer, uint8_t value, size_t bytes, tefl_stream stream) {
  return guarded([&] {
    const auto found = streams().find(stream);
    if (bytes == 0) return;
    if (pointer == nullptr) invalid("a NULL pointer to set");
    found->enqueue([=] { std::memset(pointer, value, bytes); });
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

}  // namespace tefl_sim
