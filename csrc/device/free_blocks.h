// The free blocks of one stream, found by size.
#pragma once

#include <array>
#include <memory>
#include <set>

#include "device/block.h"

namespace tefl::device {

/// Small sizes have a list each, larger ones a common tree. Not thread-safe.
class FreeBlocks {
 public:
  void add(CachedBlock* block);
  void remove(CachedBlock* block);

  /// The smallest block of at least `bytes`, null if there is none. It stays.
  CachedBlock* find(size_t bytes) const;

  /// Calls `visit(block)` for each block. `visit` may remove that block, but no other.
  template <typename Visit>
  void for_each(const Visit& visit) {
    if (lists_) {
      for (CachedBlock* block : lists_->first) {
        while (block != nullptr) {
          CachedBlock* next = block->next;
          visit(block);
          block = next;
        }
      }
    }
    for (auto it = tree_.begin(); it != tree_.end();) visit(*it++);
  }

 private:
  static constexpr size_t kSizes = kLargestSmall / kGranule;

  struct Lists {
    std::array<CachedBlock*, kSizes> first{};      // by number of granules, less one
    std::array<uint64_t, kSizes / 64> occupied{};  // which of them are not empty
  };
  struct BySize {
    bool operator()(const CachedBlock* a, const CachedBlock* b) const {
      return a->bytes != b->bytes ? a->bytes < b->bytes : a->begin < b->begin;
    }
  };

  static size_t list_of(size_t bytes) { return bytes / kGranule - 1; }
  CachedBlock* find_listed(size_t bytes) const;

  std::unique_ptr<Lists> lists_;  // made when the first small block is added
  std::set<CachedBlock*, BySize> tree_;
};

}  // namespace tefl::device
