// What is counted about a device's memory, in the form in which PyTorch shows it.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include "device/block.h"

namespace tefl::device {

/// Not thread-safe. Blocks are counted when they change state, with the size they then have.
class MemoryStats {
 public:
  using Stats = c10::CachingDeviceAllocator::DeviceStats;

  void allocated(const CachedBlock& block);  // a storage took it
  void freed(const CachedBlock& block);      // the storage is gone
  void inactive(const CachedBlock& block);   // ... and all other streams have done with it
  void parked(const CachedBlock& block);     // it is among the free blocks
  void unparked(const CachedBlock& block);   // ... and no longer
  void segment_made(const CachedBlock& block);
  void segment_released(const CachedBlock& block);

  void count_retry() { ++stats_.num_alloc_retries; }
  void count_out_of_memory() { ++stats_.num_ooms; }
  void count_wait() { ++stats_.num_sync_all_streams; }

  const Stats& get() const { return stats_; }
  void reset_accumulated();
  void reset_peak();

 private:
  Stats stats_;
};

}  // namespace tefl::device
