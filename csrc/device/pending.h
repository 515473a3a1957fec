// Memory that was given back while other streams may still use it.
#pragma once

#include <c10/core/Stream.h>
#include <c10/util/Exception.h>

#include <deque>
#include <map>
#include <vector>

#include "device/events.h"
#include "device/streams.h"

namespace tefl::device {

/// Blocks, each with a member `pending` that counts the events it waits for. Not thread-safe.
template <typename Block>
class Pending {
 public:
  bool empty() const { return queues_.empty(); }

  /// `block` waits for all work now in `stream`.
  void add(Block* block, c10::Stream stream) {
    void* event = nullptr;
    if (!spare_.empty() && spare_device_ == stream.device_index()) {
      event = spare_.back();
      spare_.pop_back();
    }
    try {
      record_event(&event, stream, /*timing=*/false);
    } catch (const c10::Error&) {
      destroy_event(event, stream.device_index());
      if (!drain_stream(stream)) ++block->pending;  // better lost than written over
      return;                                       // what cannot be marked was waited for
    }
    queues_[{stream.device_index(), stream.id()}].push_back({event, block});
    ++block->pending;
  }

  /// Calls `release(block)` for each block all of whose events have passed. Streams run in order, so that no
  /// event passes before one that was recorded earlier in its stream.
  template <typename Release>
  void collect(const Release& release) {
    take(release, [](void* event) { return query_event(event); });
  }

  /// The same after waiting for all of them.
  template <typename Release>
  void wait(const Release& release) {
    take(release, [](void* event) {
      synchronize_event(event);
      return true;
    });
  }

 private:
  struct Entry {
    void* event;
    Block* block;
  };
  using Place = std::pair<c10::DeviceIndex, c10::StreamId>;

  template <typename Release, typename Passed>
  void take(const Release& release, const Passed& passed) {
    for (auto queue = queues_.begin(); queue != queues_.end();) {
      auto& [place, entries] = *queue;
      while (!entries.empty() && passed(entries.front().event)) {
        const Entry entry = entries.front();
        entries.pop_front();
        keep(entry.event, place.first);
        if (--entry.block->pending == 0) release(entry.block);
      }
      queue = entries.empty() ? queues_.erase(queue) : std::next(queue);
    }
  }

  // Events are used again: making one may cost a call into the driver.
  void keep(void* event, c10::DeviceIndex device) {
    if (spare_.empty()) spare_device_ = device;
    if (spare_device_ == device && spare_.size() < kSpare) {
      spare_.push_back(event);
    } else {
      destroy_event(event, device);
    }
  }

  static constexpr size_t kSpare = 256;
  std::map<Place, std::deque<Entry>> queues_;
  std::vector<void*> spare_;
  c10::DeviceIndex spare_device_ = 0;
};

}  // namespace tefl::device
