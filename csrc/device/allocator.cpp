#include "device/allocator.h"

#include <pthread.h>

#include <array>
#include <atomic>
#include <mutex>

#include "device/block_copy.h"
#include "device/current_device.h"
#include "device/device_cache.h"
#include "device/host_access.h"
#include "device/lifetime.h"
#include "device/out_of_memory.h"
#include "device/provider.h"
#include "device/shared.h"
#include "device/shared_allocator.h"
#include "device/streams.h"

namespace tefl::device {
namespace {

constexpr size_t kMaxCaches = 128;                           // c10::DeviceIndex is an int8_t
std::array<std::atomic<DeviceCache*>, kMaxCaches> caches{};  // never destroyed: deleters may run after main
thread_local c10::DeviceIndex last_used = 0;                 // where a freed pointer is looked for first
thread_local uint64_t thread_number = 0;

uint64_t this_thread() noexcept {
  static std::atomic<uint64_t> threads{0};
  if (C10_UNLIKELY(thread_number == 0)) thread_number = ++threads;
  return thread_number;
}

DeviceCache& cache_of(c10::DeviceIndex index) {
  DeviceCache* cache = caches[index].load(std::memory_order_acquire);
  if (C10_LIKELY(cache != nullptr)) return *cache;
  static auto* mutex = new std::mutex;
  const std::lock_guard<std::mutex> lock(*mutex);
  if (caches[index].load() == nullptr) caches[index].store(new DeviceCache(index), std::memory_order_release);
  return *caches[index].load();
}

template <typename Visit>
void for_each_cache(const Visit& visit) {
  for (size_t i = 0; i < kMaxCaches; ++i) {
    DeviceCache* cache = caches[i].load(std::memory_order_acquire);
    if (cache != nullptr) visit(*cache, static_cast<c10::DeviceIndex>(i));
  }
}

uint64_t current_of(const c10::CachingAllocator::StatArray& array) {
  return static_cast<uint64_t>(
      array[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)].current);
}

void report(void* pointer, int64_t change, c10::DeviceIndex index) {
  if (C10_LIKELY(!c10::memoryProfilingEnabled())) return;
  const auto stats = cache_of(index).stats();
  c10::reportMemoryUsageToProfiler(pointer, change, current_of(stats.allocated_bytes),
                                   current_of(stats.reserved_bytes), device_at(index));
}

DeviceCache::Taken take_block(size_t bytes, c10::DeviceIndex index) {
  ensure_initialized();
  if (bytes == 0) return {nullptr, kNobody, {}};
  DeviceCache& cache = cache_of(index);
  auto taken = cache.take(bytes, current_stream(index).id());
  if (C10_UNLIKELY(taken.pointer == nullptr)) {
    const auto stats = cache.stats();
    throw_out_of_memory(index, bytes, current_of(stats.allocated_bytes), current_of(stats.reserved_bytes),
                        taken.reason);
  }
  last_used = index;
  report(taken.pointer, static_cast<int64_t>(whole_granules(bytes)), index);
  return taken;
}

// False where the pointer is not of that device.
bool give_back_to(DeviceCache& cache, c10::DeviceIndex index, void* pointer) {
  const size_t bytes = cache.give_back(pointer, this_thread());
  if (bytes == 0) return false;
  last_used = index;
  report(pointer, -static_cast<int64_t>(bytes), index);
  return true;
}

void lock_caches() {
  for_each_cache([](DeviceCache& cache, c10::DeviceIndex) { cache.lock(); });
}

void unlock_caches() {
  for_each_cache([](DeviceCache& cache, c10::DeviceIndex) { cache.unlock(); });
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
    const auto from = find_block(source), to = find_block(destination);
    TORCH_INTERNAL_ASSERT(from && to);
    enqueue_copy(destination, to->device, source, from->device, bytes, current_stream(from->device));
  }

  bool initialized() override { return is_initialized(); }
  void emptyCache(c10::MempoolId_t) override {
    ensure_initialized();
    for_each_cache([](DeviceCache& cache, c10::DeviceIndex) { cache.release_free_segments(); });
  }
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    if (data.get() != nullptr) cache_of(data.device().index()).use_in(data.get(), stream);
  }

  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex index) override {
    return cache_of(resolve_index(index)).stats();
  }
  void resetAccumulatedStats(c10::DeviceIndex index) override {
    cache_of(resolve_index(index)).reset_accumulated();
  }
  void resetPeakStats(c10::DeviceIndex index) override { cache_of(resolve_index(index)).reset_peak(); }
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
  pthread_atfork(lock_caches, unlock_caches, unlock_caches);
}

void* allocate_block(size_t bytes, c10::DeviceIndex index) { return take_block(bytes, index).pointer; }

void* allocate_block_for_host(size_t bytes, c10::DeviceIndex index) {
  const auto taken = take_block(bytes, index);
  // What this thread freed it has waited for, when the operator began that it now runs.
  if (taken.freed_by == kNobody || taken.freed_by == this_thread()) return taken.pointer;
  try {
    wait_for_current_stream(index);
  } catch (const c10::Error&) {
    free_block(taken.pointer);
    throw;
  }
  return taken.pointer;
}

void free_block(void* pointer) noexcept {
  if (pointer == nullptr || !may_release()) return;
  if (C10_UNLIKELY(host_access_is_told())) end_host_access_of_freed(pointer);
  try {
    const auto likely = last_used;
    if (DeviceCache* cache = caches[likely].load(std::memory_order_acquire)) {
      if (give_back_to(*cache, likely, pointer)) return;
    }
    for_each_cache([&](DeviceCache& cache, c10::DeviceIndex index) {
      if (index != likely && pointer != nullptr && give_back_to(cache, index, pointer)) pointer = nullptr;
    });
  } catch (const std::exception& error) {
    TORCH_WARN(device_name(), ": memory could not be freed: ", error.what());
  }
}

std::optional<Block> find_block(const void* pointer) {
  std::optional<Block> found;
  for_each_cache([&](DeviceCache& cache, c10::DeviceIndex index) {
    if (found) return;
    const auto [begin, bytes] = cache.find(pointer);
    if (begin != nullptr) found = Block{begin, bytes, index};
  });
  return found;
}

std::vector<SegmentSnapshot> memory_snapshot(c10::DeviceIndex index) { return cache_of(index).snapshot(); }

void limit_memory(c10::DeviceIndex index, size_t bytes) { cache_of(index).limit(bytes); }

}  // namespace tefl::device
