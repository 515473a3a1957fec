// The pinned host memory of the process: blocks that are kept for the next use.
#pragma once

#include <c10/core/Stream.h>
#include <c10/util/SmallVector.h>

#include <array>
#include <map>
#include <mutex>
#include <vector>

#include "device/pending.h"
#include "device/pinned.h"

namespace tefl::device {

/// Thread-safe, by one lock.
class PinnedCache {
 public:
  /// At least `bytes` > 0. Out of memory, after the cache has been given back, is an error.
  void* take(size_t bytes);
  /// Gives back what take() returned. Free once the streams that use_in() named have done what is in them.
  void give_back(void* pointer);
  /// Whether `pointer` lies in a live block; notes that `stream`, if given, uses it.
  bool use_in(const void* pointer, const c10::Stream* stream);
  void release_free_blocks();

  at::HostStats stats();
  void reset_accumulated();
  void reset_peak();

  /// Held around a fork, so that the child's copy is whole.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  struct HostBlock {
    char* begin = nullptr;
    size_t bytes = 0;
    bool live = false;
    int pending = 0;
    c10::SmallVector<c10::Stream, 1> users;
  };

  // With the lock held.
  HostBlock* new_host_block(size_t bytes);
  void park(HostBlock* block);
  void release_all();

  std::mutex mutex_;
  std::map<const char*, HostBlock*> blocks_;      // by address, free ones included
  std::array<std::vector<HostBlock*>, 64> free_;  // by the size's power of two
  Pending<HostBlock> pending_;
  at::HostStats stats_;
};

}  // namespace tefl::device
