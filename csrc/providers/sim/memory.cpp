// Device memory is host memory, counted against the device's capacity.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "device.h"
#include "faults.h"
#include "guarded_memory.h"
#include "tables.h"

namespace tefl_sim {
namespace {

[[noreturn]] void out_of_memory(size_t bytes, uint64_t free_bytes) {
  throw Failure(TEFL_ERR_OUT_OF_MEMORY, std::to_string(bytes) + " bytes asked for, " +
                                            std::to_string(free_bytes) + " of " + std::to_string(capacity()) +
                                            " free");
}

tefl_status device_malloc(int32_t index, size_t bytes, void** pointer) {
  return guarded(Call::kMalloc, [&] {
    if (bytes == 0) invalid("0 bytes asked for");
    Device& owner = device(index);
    const std::lock_guard<std::mutex> lock(owner.mutex);
    const uint64_t free_bytes = capacity() - owner.used;
    if (bytes > free_bytes) out_of_memory(bytes, free_bytes);
    auto made = std::make_unique<Allocation>(bytes, guarding());
    for (int i = 0; i < owner.kernels; ++i) made->open();
    *pointer = made->begin();
    owner.allocations[made->begin()] = std::move(made);
    owner.used += bytes;
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

void check_allocated(Device& owner, int32_t index, void* pointer) {
  const std::lock_guard<std::mutex> lock(owner.mutex);
  if (owner.allocations.count(static_cast<char*>(pointer)) == 0) {
    invalid("the pointer to free is no allocation of device " + std::to_string(index));
  }
}

tefl_status device_free(int32_t index, void* pointer) {
  return guarded(Call::kFree, [&] {
    Device& owner = device(index);
    check_allocated(owner, index, pointer);
    wait_for_users(index, owner);
    const std::lock_guard<std::mutex> lock(owner.mutex);
    const auto it = owner.allocations.find(static_cast<char*>(pointer));
    if (it == owner.allocations.end()) return;  // two threads free it
    owner.used -= it->second->bytes();
    owner.allocations.erase(it);
  });
}

tefl_status memory_info(int32_t index, uint64_t* free_bytes, uint64_t* total_bytes) {
  return guarded(Call::kMemoryInfo, [&] {
    Device& owner = device(index);
    const std::lock_guard<std::mutex> lock(owner.mutex);
    *free_bytes = capacity() - owner.used;
    *total_bytes = capacity();
  });
}

tefl_status host_malloc(size_t bytes, void** pointer) {
  return guarded(Call::kHostMalloc, [&] {
    if (bytes == 0) invalid("0 bytes asked for");
    constexpr size_t kAlignment = 64;
    const bool possible = bytes <= PTRDIFF_MAX - kAlignment;
    void* memory = possible
                       ? std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment)
                       : nullptr;
    if (memory == nullptr) {
      throw Failure(TEFL_ERR_OUT_OF_MEMORY, std::to_string(bytes) + " bytes of host memory");
    }
    *pointer = memory;
  });
}

tefl_status host_free(void* pointer) {
  return guarded(Call::kHostFree, [&] { std::free(pointer); });
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

std::string place_name(int32_t index) {
  return index == TEFL_HOST ? "the host" : "device " + std::to_string(index);
}

tefl_status memcpy_async(void* destination, int32_t destination_device, const void* source,
                         int32_t source_device, size_t bytes, tefl_stream stream) {
  return guarded(Call::kMemcpyAsync, [&] {
    check_place(destination_device);
    check_place(source_device);
    const auto found = streams().find(stream);
    if (found->device != destination_device && found->device != source_device) {
      invalid("the stream belongs to device " + std::to_string(found->device) + ", the copy runs from " +
              std::to_string(source_device) + " to " + std::to_string(destination_device));
    }
    if (bytes == 0) return;
    if (destination == nullptr || source == nullptr) invalid("a NULL pointer to copy");
    char* to = own_address(destination_device, destination, bytes);
    const char* from = own_address(source_device, source, bytes);
    enqueue_operation(
        *found, Call::kMemcpy, [=] { std::memcpy(to, from, bytes); },
        "the copy of " + std::to_string(bytes) + " bytes from " + place_name(source_device) + " to " +
            place_name(destination_device));
    remember_visit(destination_device, found->device, *found);
    remember_visit(source_device, found->device, *found);
  });
}

tefl_status memset_async(void* pointer, uint8_t value, size_t bytes, tefl_stream stream) {
  return guarded(Call::kMemsetAsync, [&] {
    const auto found = streams().find(stream);
    if (bytes == 0) return;
    if (pointer == nullptr) invalid("a NULL pointer to set");
    char* to = own_address(found->device, pointer, bytes);
    enqueue_operation(
        *found, Call::kMemset, [=] { std::memset(to, value, bytes); },
        "the fill of " + std::to_string(bytes) + " bytes on " + place_name(found->device));
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
