// The memory taken from one device: segments, cut into blocks that are kept for the next tensor.
#pragma once

#include <c10/util/flat_hash_map.h>

#include <array>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "device/block.h"
#include "device/free_blocks.h"
#include "device/memory_snapshot.h"
#include "device/memory_stats.h"
#include "device/pending.h"

namespace tefl::device {

/// Thread-safe, by one lock. A block goes back to the stream it was taken for at once: what that stream does
/// with it next comes after all that it did before. Free neighbours are joined only when nothing free is
/// large enough, so that sizes that recur are served without cutting and joining.
class DeviceCache {
 public:
  explicit DeviceCache(c10::DeviceIndex index) : index_(index) {}

  struct Taken {
    void* pointer;       // null: the device has no memory left, even after free segments were given back
    uint64_t freed_by;   // the thread that had it before
    std::string reason;  // the provider's, where `pointer` is null
  };

  /// At least `bytes` > 0 for work of `stream`.
  Taken take(size_t bytes, c10::StreamId stream);

  /// Gives back what take() returned, and returns its size in bytes; 0 where it is not of this device. The
  /// block is free once all streams that use_in() named have done what is now in them.
  size_t give_back(void* pointer, uint64_t thread);

  /// Notes that work of `stream` uses the block that begins at `pointer`.
  void use_in(const void* pointer, c10::Stream stream);

  /// The live block that `pointer` lies in: where it begins and its size; nulls where there is none.
  std::pair<void*, size_t> find(const void* pointer);

  /// Waits for other streams' use of freed blocks and gives every segment that has no live block back.
  void release_free_segments();

  std::vector<SegmentSnapshot> snapshot();

  /// Takes no more than `bytes` in all from the provider from now on; what is taken already stays.
  void limit(size_t bytes);

  MemoryStats::Stats stats();
  void reset_accumulated();
  void reset_peak();

  /// Held around a fork, so that the child's copy is whole.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  using Streams = std::array<FreeBlocks, kPools>;

  // All with the lock held.
  CachedBlock* obtain(size_t bytes, c10::StreamId stream, BlockPool pool);
  CachedBlock* fit(size_t bytes, FreeBlocks& free);
  CachedBlock* new_segment(size_t bytes, c10::StreamId stream, BlockPool pool);
  CachedBlock* last_resort(size_t bytes, c10::StreamId stream, BlockPool pool);
  void cut(CachedBlock* block, size_t bytes);
  void join_neighbours(FreeBlocks& free);
  void absorb(CachedBlock* block);
  void release_all();
  void release(CachedBlock* segment);
  void park(CachedBlock* block);
  void unpark(CachedBlock* block);
  void wait_for_pending();
  CachedBlock* live_at(const void* pointer);
  CachedBlock* new_block();
  FreeBlocks& free_blocks(const CachedBlock& block) { return streams_[block.stream][block.pool]; }

  const c10::DeviceIndex index_;
  std::mutex mutex_;
  std::unordered_map<c10::StreamId, Streams> streams_;
  ska::flat_hash_map<const void*, CachedBlock*> blocks_;  // by where they begin, free ones included
  std::map<const char*, CachedBlock*> segments_;          // their first blocks, by address
  std::vector<CachedBlock*> spare_;                       // objects of blocks that are no more
  Pending<CachedBlock> pending_;
  MemoryStats stats_;
  size_t reserved_ = 0;      // bytes of all segments
  size_t limit_ = kLargest;  // what they may come to
  std::string reason_;       // why there was no memory, last time
};

}  // namespace tefl::device
