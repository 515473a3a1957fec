// One piece of a segment, and what decides how memory is cut into such pieces.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <c10/util/SmallVector.h>

#include <cstddef>
#include <cstdint>

namespace tefl::device {

constexpr size_t kGranule = 512;              // every block is a multiple of it
constexpr size_t kLargestSmall = 1 << 20;     // blocks up to this size come from small segments
constexpr size_t kSmallSegment = 2 << 20;     // what is taken from the provider for those
constexpr size_t kLargeSegment = 20 << 20;    // ... and for those above
constexpr size_t kLargestShared = 10 << 20;   // blocks above this size have a segment of their own
constexpr size_t kLargest = size_t{1} << 62;  // no device has that much
enum BlockPool : uint8_t { kSmallPool, kLargePool, kPools };

/// `bytes` as a whole number of granules.
constexpr size_t whole_granules(size_t bytes) { return (bytes + kGranule - 1) / kGranule * kGranule; }

/// The thread that freed a block, by number: nobody where the memory was never used, several after a merger.
constexpr uint64_t kNobody = UINT64_MAX;
constexpr uint64_t kSeveral = 0;

/// A free or live part of a segment. Blocks of a segment are linked in the order of their addresses, and
/// belong to the stream that the segment was made for.
struct CachedBlock {
  char* begin = nullptr;
  size_t bytes = 0;
  size_t requested = 0;  // bytes asked for; only while live
  c10::StreamId stream = 0;
  BlockPool pool = kSmallPool;
  bool live = false;    // a storage has it
  bool parked = false;  // it is among its stream's free blocks
  uint64_t freed_by = kNobody;
  int pending = 0;                // events of other streams that must pass before it is free
  CachedBlock* before = nullptr;  // in its segment, null at its ends
  CachedBlock* after = nullptr;
  CachedBlock* previous = nullptr;  // among free blocks of its size
  CachedBlock* next = nullptr;
  c10::SmallVector<c10::Stream, 1> users;  // other streams that use it, by record_stream

  bool is_segment() const { return before == nullptr && after == nullptr; }
};

}  // namespace tefl::device
