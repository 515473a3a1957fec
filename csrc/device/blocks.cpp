#include "device/blocks.h"

namespace tefl::device {
namespace {

using c10::CachingAllocator::StatArray;
using c10::CachingAllocator::StatType;

c10::CachingAllocator::Stat& aggregate(StatArray& array) {
  return array[static_cast<size_t>(StatType::AGGREGATE)];
}

uintptr_t address(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); }

// Applies `change` to everything counted in blocks, and in bytes. Each block is a segment of its own here.
template <typename Change>
void for_each_count(BlockTable::Stats& stats, const Change& change) {
  for (auto* array : {&stats.allocation, &stats.segment, &stats.active}) change(aggregate(*array));
}

template <typename Change>
void for_each_sum(BlockTable::Stats& stats, const Change& change) {
  for (auto* array :
       {&stats.allocated_bytes, &stats.reserved_bytes, &stats.active_bytes, &stats.requested_bytes}) {
    change(aggregate(*array));
  }
}

}  // namespace

BlockTable::Stats& BlockTable::stats_of(c10::DeviceIndex index) {
  if (stats_.size() <= static_cast<size_t>(index)) stats_.resize(index + 1);
  return stats_[index];
}

void BlockTable::add(const Block& block) {
  std::lock_guard<std::mutex> lock(mutex_);
  blocks_.emplace(address(block.begin), block);
  Stats& stats = stats_of(block.device);
  for_each_count(stats, [](auto& stat) { stat.increase(1); });
  for_each_sum(stats, [&](auto& stat) { stat.increase(block.bytes); });
  ++stats.num_device_alloc;
}

std::optional<Block> BlockTable::remove(void* begin) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = blocks_.find(address(begin));
  if (found == blocks_.end()) return std::nullopt;
  const Block block = found->second;
  blocks_.erase(found);
  Stats& stats = stats_of(block.device);
  for_each_count(stats, [](auto& stat) { stat.decrease(1); });
  for_each_sum(stats, [&](auto& stat) { stat.decrease(block.bytes); });
  ++stats.num_device_free;
  return block;
}

std::optional<Block> BlockTable::find(const void* pointer) const {
  std::lock_guard<std::mutex> lock(mutex_);
  auto after = blocks_.upper_bound(address(pointer));
  if (after == blocks_.begin()) return std::nullopt;
  const Block& block = std::prev(after)->second;
  const bool inside = address(pointer) < address(block.begin) + block.bytes;
  return inside ? std::optional<Block>(block) : std::nullopt;
}

void BlockTable::count_out_of_memory(c10::DeviceIndex index) {
  std::lock_guard<std::mutex> lock(mutex_);
  ++stats_of(index).num_ooms;
}

BlockTable::Stats BlockTable::stats(c10::DeviceIndex index) {
  std::lock_guard<std::mutex> lock(mutex_);
  return stats_of(index);
}

void BlockTable::reset_accumulated(c10::DeviceIndex index) {
  std::lock_guard<std::mutex> lock(mutex_);
  Stats& stats = stats_of(index);
  const auto reset = [](auto& stat) { stat.reset_accumulated(); };
  for_each_count(stats, reset);
  for_each_sum(stats, reset);
  stats.num_alloc_retries = stats.num_ooms = stats.num_device_alloc = stats.num_device_free = 0;
}

void BlockTable::reset_peak(c10::DeviceIndex index) {
  std::lock_guard<std::mutex> lock(mutex_);
  Stats& stats = stats_of(index);
  const auto reset = [](auto& stat) { stat.reset_peak(); };
  for_each_count(stats, reset);
  for_each_sum(stats, reset);
}

}  // namespace tefl::device
