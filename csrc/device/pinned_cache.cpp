#include "device/pinned_cache.h"

#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>

#include "device/provider.h"

namespace tefl::device {
namespace {

using PinnedLock = std::lock_guard<std::mutex>;
constexpr size_t kSmallestClass = 9;  // 512 bytes
constexpr size_t kLargestClass = 62;

// The power of two that holds `bytes`.
size_t size_class(size_t bytes) {
  size_t power = kSmallestClass;
  while (power < kLargestClass && size_t{1} << power < bytes) ++power;
  return power;
}

// Notes how long `call` took, in microseconds.
template <typename Call>
auto timed(c10::CachingAllocator::DurationStat& stat, const Call& call) {
  using std::chrono::steady_clock;
  const auto begin = steady_clock::now();
  const auto result = call();
  stat.increase(std::chrono::duration_cast<std::chrono::microseconds>(steady_clock::now() - begin).count());
  return result;
}

tefl_status host_acquire(size_t bytes, void** pointer) {
  if (runtime().host_malloc != nullptr) return runtime().host_malloc(bytes, pointer);
  *pointer = c10::GetDefaultCPUAllocator()->raw_allocate(bytes);
  return TEFL_OK;
}

tefl_status host_release(void* pointer) {
  if (runtime().host_free != nullptr) return runtime().host_free(pointer);
  c10::GetDefaultCPUAllocator()->raw_deallocate(pointer);
  return TEFL_OK;
}

template <typename Change>
void for_each_stat(at::HostStats& stats, const Change& change) {
  for (auto* stat :
       {&stats.active_requests, &stats.active_bytes, &stats.allocations, &stats.allocated_bytes}) {
    change(*stat);
  }
  for (auto* stat : {&stats.host_alloc_time, &stats.host_free_time}) change(*stat);
}

}  // namespace

void* PinnedCache::take(size_t bytes) {
  const PinnedLock lock(mutex_);
  if (!pending_.empty()) pending_.collect([this](HostBlock* block) { park(block); });
  auto& same_size = free_[size_class(bytes)];
  HostBlock* block = same_size.empty() ? new_host_block(size_t{1} << size_class(bytes)) : same_size.back();
  if (!same_size.empty()) same_size.pop_back();
  block->live = true;
  stats_.active_requests.increase(1);
  stats_.active_bytes.increase(block->bytes);
  return block->begin;
}

void PinnedCache::give_back(void* pointer) {
  const PinnedLock lock(mutex_);
  const auto found = blocks_.find(static_cast<const char*>(pointer));
  if (found == blocks_.end() || !found->second->live) return;
  HostBlock* block = found->second;
  block->live = false;
  ++block->pending;  // where an event cannot be recorded, it stays so: better lost than written over
  for (const c10::Stream user : block->users) pending_.add(block, user);
  block->users.clear();
  if (--block->pending == 0) park(block);
}

bool PinnedCache::use_in(const void* pointer, const c10::Stream* stream) {
  const auto* address = static_cast<const char*>(pointer);
  const PinnedLock lock(mutex_);
  const auto beyond = blocks_.upper_bound(address);
  if (beyond == blocks_.begin()) return false;
  HostBlock* block = std::prev(beyond)->second;
  if (!block->live || address >= block->begin + block->bytes) return false;
  if (stream == nullptr) return true;
  auto& users = block->users;
  if (std::find(users.begin(), users.end(), *stream) == users.end()) users.push_back(*stream);
  return true;
}

void PinnedCache::release_free_blocks() {
  const PinnedLock lock(mutex_);
  release_all();
}

PinnedCache::HostBlock* PinnedCache::new_host_block(size_t bytes) {
  void* pointer = nullptr;
  const auto acquire = [&] { return host_acquire(bytes, &pointer); };
  auto status = timed(stats_.host_alloc_time, acquire);
  if (status == TEFL_ERR_OUT_OF_MEMORY) {
    release_all();
    status = timed(stats_.host_alloc_time, acquire);
  }
  check(status, "host_malloc");
  auto* block = new HostBlock;
  block->begin = static_cast<char*>(pointer);
  block->bytes = bytes;
  blocks_[block->begin] = block;
  stats_.allocations.increase(1);
  stats_.allocated_bytes.increase(bytes);
  ++stats_.num_host_alloc;
  return block;
}

// As PyTorch counts: a block that a stream still uses is active.
void PinnedCache::park(HostBlock* block) {
  stats_.active_requests.decrease(1);
  stats_.active_bytes.decrease(block->bytes);
  free_[size_class(block->bytes)].push_back(block);
}

void PinnedCache::release_all() {
  pending_.wait([this](HostBlock* block) { park(block); });
  for (auto& same_size : free_) {
    while (!same_size.empty()) {
      HostBlock* block = same_size.back();
      same_size.pop_back();
      blocks_.erase(block->begin);
      stats_.allocations.decrease(1);
      stats_.allocated_bytes.decrease(block->bytes);
      ++stats_.num_host_free;
      void* pointer = block->begin;
      delete block;
      check(timed(stats_.host_free_time, [&] { return host_release(pointer); }), "host_free");
    }
  }
}

at::HostStats PinnedCache::stats() {
  const PinnedLock lock(mutex_);
  return stats_;
}

void PinnedCache::reset_accumulated() {
  const PinnedLock lock(mutex_);
  for_each_stat(stats_, [](auto& stat) { stat.reset_accumulated(); });
  stats_.num_host_alloc = stats_.num_host_free = 0;
}

void PinnedCache::reset_peak() {
  const PinnedLock lock(mutex_);
  for_each_stat(stats_, [](auto& stat) { stat.reset_peak(); });
}

}  // namespace tefl::device
