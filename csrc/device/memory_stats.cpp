#include "device/memory_stats.h"

namespace tefl::device {
namespace {

using c10::CachingAllocator::StatArray;
using c10::CachingAllocator::StatType;

void increase_stat(StatArray& array, BlockPool pool, size_t amount) {
  array[static_cast<size_t>(StatType::AGGREGATE)].increase(amount);
  array[static_cast<size_t>(pool == kSmallPool ? StatType::SMALL_POOL : StatType::LARGE_POOL)].increase(
      amount);
}

void decrease_stat(StatArray& array, BlockPool pool, size_t amount) {
  array[static_cast<size_t>(StatType::AGGREGATE)].decrease(amount);
  array[static_cast<size_t>(pool == kSmallPool ? StatType::SMALL_POOL : StatType::LARGE_POOL)].decrease(
      amount);
}

template <typename Change>
void for_each_stat(MemoryStats::Stats& stats, const Change& change) {
  for (auto* array :
       {&stats.allocation, &stats.segment, &stats.active, &stats.inactive_split, &stats.allocated_bytes,
        &stats.reserved_bytes, &stats.active_bytes, &stats.inactive_split_bytes, &stats.requested_bytes}) {
    for (auto& stat : *array) change(stat);
  }
}

}  // namespace

void MemoryStats::allocated(const CachedBlock& block) {
  increase_stat(stats_.allocation, block.pool, 1);
  increase_stat(stats_.allocated_bytes, block.pool, block.bytes);
  increase_stat(stats_.requested_bytes, block.pool, block.requested);
  increase_stat(stats_.active, block.pool, 1);
  increase_stat(stats_.active_bytes, block.pool, block.bytes);
}

void MemoryStats::freed(const CachedBlock& block) {
  decrease_stat(stats_.allocation, block.pool, 1);
  decrease_stat(stats_.allocated_bytes, block.pool, block.bytes);
  decrease_stat(stats_.requested_bytes, block.pool, block.requested);
}

void MemoryStats::inactive(const CachedBlock& block) {
  decrease_stat(stats_.active, block.pool, 1);
  decrease_stat(stats_.active_bytes, block.pool, block.bytes);
}

void MemoryStats::parked(const CachedBlock& block) {
  if (block.is_segment()) return;
  increase_stat(stats_.inactive_split, block.pool, 1);
  increase_stat(stats_.inactive_split_bytes, block.pool, block.bytes);
}

void MemoryStats::unparked(const CachedBlock& block) {
  if (block.is_segment()) return;
  decrease_stat(stats_.inactive_split, block.pool, 1);
  decrease_stat(stats_.inactive_split_bytes, block.pool, block.bytes);
}

void MemoryStats::segment_made(const CachedBlock& block) {
  increase_stat(stats_.segment, block.pool, 1);
  increase_stat(stats_.reserved_bytes, block.pool, block.bytes);
  ++stats_.num_device_alloc;
}

void MemoryStats::segment_released(const CachedBlock& block) {
  decrease_stat(stats_.segment, block.pool, 1);
  decrease_stat(stats_.reserved_bytes, block.pool, block.bytes);
  ++stats_.num_device_free;
}

void MemoryStats::reset_accumulated() {
  for_each_stat(stats_, [](auto& stat) { stat.reset_accumulated(); });
  stats_.num_alloc_retries = stats_.num_ooms = stats_.num_sync_all_streams = 0;
  stats_.num_device_alloc = stats_.num_device_free = 0;
}

void MemoryStats::reset_peak() {
  for_each_stat(stats_, [](auto& stat) { stat.reset_peak(); });
}

}  // namespace tefl::device
