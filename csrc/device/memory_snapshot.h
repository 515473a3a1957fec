// What one device's cache holds at one moment, as plain data.
#pragma once

#include <c10/core/Stream.h>

#include <cstdint>
#include <vector>

#include "device/block.h"

namespace tefl::device {

struct BlockSnapshot {
  uintptr_t address;
  size_t bytes;
  size_t requested;  // bytes asked for; 0 where it is free
  bool live;         // a storage has it
  bool pending;      // freed, and another stream may still use it
};

/// A piece of memory as the provider gave it, with its blocks in the order of their addresses.
struct SegmentSnapshot {
  uintptr_t address;
  size_t bytes;
  c10::StreamId stream;
  BlockPool pool;
  std::vector<BlockSnapshot> blocks;
};

}  // namespace tefl::device
