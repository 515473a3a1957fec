#include "device/device_cache.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "device/current_device.h"
#include "device/out_of_memory.h"
#include "device/provider.h"

namespace tefl::device {
namespace {

using CacheLock = std::lock_guard<std::mutex>;

size_t segment_bytes(size_t bytes) {
  if (bytes <= kLargestSmall) return kSmallSegment;
  return bytes <= kLargestShared ? kLargeSegment : bytes;
}

uint64_t freed_by_both(uint64_t a, uint64_t b) {
  if (a == b || b == kNobody) return a;
  return a == kNobody ? b : kSeveral;
}

}  // namespace

// --------------------------------------------------------------------------------------------- the calls --

DeviceCache::Taken DeviceCache::take(size_t bytes, c10::StreamId stream) {
  const CacheLock lock(mutex_);
  if (bytes > kLargest) {
    stats_.count_out_of_memory();
    return {nullptr, kNobody, "no device has that much"};
  }
  const size_t rounded = whole_granules(bytes);
  CachedBlock* block = obtain(rounded, stream, rounded <= kLargestSmall ? kSmallPool : kLargePool);
  if (block == nullptr) {
    stats_.count_out_of_memory();
    return {nullptr, kNobody, reason_};
  }
  if (block->bytes > rounded) cut(block, rounded);
  block->live = true;
  block->requested = bytes;
  stats_.allocated(*block);
  return {block->begin, block->freed_by, {}};
}

size_t DeviceCache::give_back(void* pointer, uint64_t thread) {
  const CacheLock lock(mutex_);
  const auto found = blocks_.find(pointer);
  if (found == blocks_.end() || !found->second->live) return 0;
  CachedBlock* block = found->second;
  const size_t bytes = block->bytes;
  block->live = false;
  block->freed_by = block->users.empty() ? thread : kSeveral;
  stats_.freed(*block);
  ++block->pending;  // where an event cannot be recorded, it stays so: better lost than written over
  for (const c10::Stream user : block->users) pending_.add(block, user);
  block->users.clear();
  if (--block->pending == 0) park(block);
  return bytes;
}

void DeviceCache::use_in(const void* pointer, c10::Stream stream) {
  const CacheLock lock(mutex_);
  CachedBlock* block = live_at(pointer);
  if (block == nullptr) return;
  if (stream.device_index() == index_ && stream.id() == block->stream) return;
  auto& users = block->users;
  if (std::find(users.begin(), users.end(), stream) == users.end()) users.push_back(stream);
}

std::pair<void*, size_t> DeviceCache::find(const void* pointer) {
  const CacheLock lock(mutex_);
  const CachedBlock* block = live_at(pointer);
  if (block == nullptr) return {nullptr, 0};
  return {block->begin, block->bytes};
}

void DeviceCache::release_free_segments() {
  const CacheLock lock(mutex_);
  wait_for_pending();
  release_all();
}

std::vector<SegmentSnapshot> DeviceCache::snapshot() {
  const CacheLock lock(mutex_);
  std::vector<SegmentSnapshot> segments;
  for (const auto& [begin, first] : segments_) {
    SegmentSnapshot segment{reinterpret_cast<uintptr_t>(begin), 0, first->stream, first->pool, {}};
    for (const CachedBlock* block = first; block != nullptr; block = block->after) {
      segment.bytes += block->bytes;
      segment.blocks.push_back({reinterpret_cast<uintptr_t>(block->begin), block->bytes, block->requested,
                                block->live, !block->live && !block->parked});
    }
    segments.push_back(std::move(segment));
  }
  return segments;
}

void DeviceCache::limit(size_t bytes) {
  const CacheLock lock(mutex_);
  limit_ = bytes;
}

MemoryStats::Stats DeviceCache::stats() {
  const CacheLock lock(mutex_);
  return stats_.get();
}

void DeviceCache::reset_accumulated() {
  const CacheLock lock(mutex_);
  stats_.reset_accumulated();
}

void DeviceCache::reset_peak() {
  const CacheLock lock(mutex_);
  stats_.reset_peak();
}

// ---------------------------------------------------------------------------------------- finding memory --

// A block that is neither live nor parked, perhaps larger than `bytes`.
CachedBlock* DeviceCache::obtain(size_t bytes, c10::StreamId stream, BlockPool pool) {
  if (!pending_.empty()) pending_.collect([this](CachedBlock* block) { park(block); });
  FreeBlocks& free = streams_[stream][pool];
  if (CachedBlock* block = fit(bytes, free)) return block;
  join_neighbours(free);
  if (CachedBlock* block = fit(bytes, free)) return block;
  if (CachedBlock* block = new_segment(segment_bytes(bytes), stream, pool)) return block;
  return last_resort(bytes, stream, pool);
}

CachedBlock* DeviceCache::fit(size_t bytes, FreeBlocks& free) {
  CachedBlock* block = free.find(bytes);
  if (block != nullptr) unpark(block);
  return block;
}

// Null where the provider is out of memory, or the process has all that it may have.
CachedBlock* DeviceCache::new_segment(size_t bytes, c10::StreamId stream, BlockPool pool) {
  if (bytes > limit_ || reserved_ > limit_ - bytes) {
    reason_ = "this process may take " + human_bytes(limit_) + ", by set_per_process_memory_fraction";
    return nullptr;
  }
  void* pointer = nullptr;
  const auto status = runtime().malloc(index_, bytes, &pointer);
  if (status == TEFL_ERR_OUT_OF_MEMORY) {
    reason_ = provider_reason(status);
    return nullptr;
  }
  check(status, "malloc");
  CachedBlock* block = new_block();
  block->begin = static_cast<char*>(pointer);
  block->bytes = bytes;
  block->stream = stream;
  block->pool = pool;
  blocks_[pointer] = block;
  segments_[block->begin] = block;
  reserved_ += bytes;
  stats_.segment_made(*block);
  return block;
}

// The device is full: what other streams still hold, then the whole cache, then no more than is asked for.
CachedBlock* DeviceCache::last_resort(size_t bytes, c10::StreamId stream, BlockPool pool) {
  stats_.count_retry();
  wait_for_pending();
  FreeBlocks& free = streams_[stream][pool];
  join_neighbours(free);
  if (CachedBlock* block = fit(bytes, free)) return block;
  release_all();
  if (CachedBlock* block = new_segment(segment_bytes(bytes), stream, pool)) return block;
  return segment_bytes(bytes) == bytes ? nullptr : new_segment(bytes, stream, pool);
}

// What is left of `block` beyond `bytes` becomes a free block.
void DeviceCache::cut(CachedBlock* block, size_t bytes) {
  CachedBlock* rest = new_block();
  rest->begin = block->begin + bytes;
  rest->bytes = block->bytes - bytes;
  rest->stream = block->stream;
  rest->pool = block->pool;
  rest->freed_by = block->freed_by;
  rest->before = block;
  rest->after = block->after;
  if (rest->after != nullptr) rest->after->before = rest;
  block->after = rest;
  block->bytes = bytes;
  blocks_[rest->begin] = rest;
  park(rest);
}

// ----------------------------------------------------------------------------------------- giving it back --

void DeviceCache::join_neighbours(FreeBlocks& free) {
  std::vector<CachedBlock*> firsts;
  free.for_each([&](CachedBlock* block) {
    const bool first = block->before == nullptr || !block->before->parked;
    if (first && block->after != nullptr && block->after->parked) firsts.push_back(block);
  });
  for (CachedBlock* block : firsts) {
    unpark(block);
    while (block->after != nullptr && block->after->parked) absorb(block);
    park(block);
  }
}

// `block`, which is not parked, takes in the parked one after it.
void DeviceCache::absorb(CachedBlock* block) {
  CachedBlock* taken = block->after;
  unpark(taken);
  block->bytes += taken->bytes;
  block->freed_by = freed_by_both(block->freed_by, taken->freed_by);
  block->after = taken->after;
  if (block->after != nullptr) block->after->before = block;
  blocks_.erase(taken->begin);
  spare_.push_back(taken);
}

void DeviceCache::release_all() {
  for (auto& [stream, pools] : streams_) {
    for (FreeBlocks& free : pools) {
      join_neighbours(free);
      free.for_each([this](CachedBlock* block) {
        if (block->is_segment()) release(block);
      });
    }
  }
}

void DeviceCache::release(CachedBlock* segment) {
  unpark(segment);
  reserved_ -= segment->bytes;
  stats_.segment_released(*segment);
  blocks_.erase(segment->begin);
  segments_.erase(segment->begin);
  spare_.push_back(segment);
  const auto status = runtime().free(index_, segment->begin);
  if (status != TEFL_OK) TORCH_WARN(device_at(index_), ": free failed: ", provider_reason(status));
}

void DeviceCache::park(CachedBlock* block) {
  if (block->requested != 0) {
    stats_.inactive(*block);
    block->requested = 0;
  }
  free_blocks(*block).add(block);
  block->parked = true;
  stats_.parked(*block);
}

void DeviceCache::unpark(CachedBlock* block) {
  stats_.unparked(*block);
  block->parked = false;
  free_blocks(*block).remove(block);
}

void DeviceCache::wait_for_pending() {
  if (pending_.empty()) return;
  stats_.count_wait();
  pending_.wait([this](CachedBlock* block) { park(block); });
}

// ------------------------------------------------------------------------------------------------ objects --

CachedBlock* DeviceCache::live_at(const void* pointer) {
  const auto found = blocks_.find(pointer);
  if (found != blocks_.end()) return found->second->live ? found->second : nullptr;
  const auto* address = static_cast<const char*>(pointer);
  const auto beyond = segments_.upper_bound(address);
  if (beyond == segments_.begin()) return nullptr;
  CachedBlock* block = std::prev(beyond)->second;
  while (block != nullptr && address >= block->begin + block->bytes) block = block->after;
  return block != nullptr && block->live ? block : nullptr;
}

CachedBlock* DeviceCache::new_block() {
  if (spare_.empty()) return new CachedBlock;
  CachedBlock* block = spare_.back();
  spare_.pop_back();
  *block = CachedBlock();
  return block;
}

}  // namespace tefl::device
