// The table of a device's live allocations, and what is counted about them.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "device/allocator.h"

namespace tefl::device {

/// Thread-safe. Ordered by address, so that a pointer into the middle finds its block.
class BlockTable {
 public:
  using Stats = c10::CachingDeviceAllocator::DeviceStats;

  /// Held around a fork, so that the child's copy of the table is whole and free.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

  void add(const Block& block);
  std::optional<Block> remove(void* begin);
  std::optional<Block> find(const void* pointer) const;

  void count_out_of_memory(c10::DeviceIndex index);
  Stats stats(c10::DeviceIndex index);
  void reset_accumulated(c10::DeviceIndex index);
  void reset_peak(c10::DeviceIndex index);

 private:
  Stats& stats_of(c10::DeviceIndex index);  // with the mutex held

  mutable std::mutex mutex_;
  std::map<uintptr_t, Block> blocks_;
  std::vector<Stats> stats_;
};

}  // namespace tefl::device
