#include "device/allocator.h"

#include <pthread.h>

#include <cstdio>
#include <string>

#include "device/blocks.h"
#include "device/current_device.h"
#include "device/lifetime.h"
#include "device/provider.h"
#include "device/shared.h"
#include "device/shared_allocator.h"
#include "device/streams.h"

namespace tefl::device {
namespace {

BlockTable& blocks() {
  static auto* table = new BlockTable;  // never destroyed: deleters may run after main
  return *table;
}

std::string mebibytes(uint64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.2f MiB", static_cast<double>(bytes) / (1 << 20));
  return text;
}

[[noreturn]] void throw_out_of_memory(size_t bytes, c10::DeviceIndex index) {
  const std::string reason = active().last_error();
  blocks().count_out_of_memory(index);
  uint64_t free_bytes = 0, total_bytes = 0;
  check(runtime().memory_info(index, &free_bytes, &total_bytes), "memory_info");
  const auto stats = blocks().stats(index);
  const auto in_use = stats.allocated_bytes[0].current;
  c10::reportOutOfMemoryToProfiler(static_cast<int64_t>(bytes), in_use, in_use, device_at(index));
  TORCH_CHECK_WITH(OutOfMemoryError, false, device_name(), " out of memory. Tried to allocate ",
                   mebibytes(bytes), " on ", device_at(index), ". Of its ", mebibytes(total_bytes), ", ",
                   mebibytes(free_bytes), " are free; this process's tensors hold ", mebibytes(in_use), ". (",
                   reason, ")");
}

void report(void* pointer, int64_t change, c10::DeviceIndex index) {
  if (!c10::memoryProfilingEnabled()) return;
  const auto total = blocks().stats(index).allocated_bytes[0].current;
  c10::reportMemoryUsageToProfiler(pointer, change, total, total, device_at(index));
}

class Allocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const auto index = current_device();
    void* pointer = allocate_block(bytes, index);
    return {pointer, pointer, &free_block, device_at(index)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }

  // Used where a copy-on-write storage comes into its own; both ends are blocks of this allocator.
  void copy_data(void* destination, const void* source, std::size_t bytes) const override {
    if (bytes == 0) return;
    const auto block = find_block(source);
    TORCH_INTERNAL_ASSERT(block);
    const auto stream = native_stream(current_stream(block->device));
    check(runtime().memcpy_async(destination, block->device, source, block->device, bytes, stream),
          "memcpy_async");
  }

  bool initialized() override { return is_initialized(); }
  void emptyCache(c10::MempoolId_t) override {}  // nothing is cached: every free goes to the provider
  // The provider's free waits for enqueued work on any stream, so that there is nothing to remember.
  void recordStream(const c10::DataPtr&, c10::Stream) override {}

  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex index) override {
    return blocks().stats(resolve_index(index));
  }
  void resetAccumulatedStats(c10::DeviceIndex index) override {
    blocks().reset_accumulated(resolve_index(index));
  }
  void resetPeakStats(c10::DeviceIndex index) override { blocks().reset_peak(resolve_index(index)); }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex index) override {
    ensure_initialized();
    uint64_t free_bytes = 0, total_bytes = 0;
    check(runtime().memory_info(resolve_index(index), &free_bytes, &total_bytes), "memory_info");
    return {free_bytes, total_bytes};
  }
};

}  // namespace

c10::DeviceAllocator& allocator() {
  if (shared_guard()) return shared_allocator();
  static auto* instance = new Allocator;  // never destroyed: storages keep the pointer
  return *instance;
}

void install_allocator() {
  c10::SetAllocator(kType, &allocator());
  pthread_atfork([] { blocks().lock(); }, [] { blocks().unlock(); }, [] { blocks().unlock(); });
}

void* allocate_block(size_t bytes, c10::DeviceIndex index) {
  ensure_initialized();
  if (bytes == 0) return nullptr;
  void* pointer = nullptr;
  const auto status = runtime().malloc(index, bytes, &pointer);
  if (status == TEFL_ERR_OUT_OF_MEMORY) throw_out_of_memory(bytes, index);
  check(status, "malloc");
  blocks().add({pointer, bytes, index});
  report(pointer, static_cast<int64_t>(bytes), index);
  return pointer;
}

void free_block(void* pointer) noexcept {
  if (pointer == nullptr || !may_release()) return;
  const auto block = blocks().remove(pointer);
  if (!block) return;
  report(pointer, -static_cast<int64_t>(block->bytes), block->device);
  if (runtime().free(block->device, pointer) != TEFL_OK) {
    TORCH_WARN(device_at(block->device), ": free failed: ", active().last_error());
  }
}

std::optional<Block> find_block(const void* pointer) { return blocks().find(pointer); }

}  // namespace tefl::device
