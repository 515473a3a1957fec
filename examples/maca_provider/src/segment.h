// segment.h: the memory that the ranks of a communicator share, which stands for the links between cards.
//
// For each ordered pair of ranks there are two channels, one for collectives and one for messages. A channel
// is a ring of bytes with one writer and one reader, who each move their own counter. A rank proves that it
// lives by a lock on a byte of the file: the system takes the lock away when the process ends, however it
// ends.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

namespace maca {

constexpr size_t kRing = 256 * 1024;

struct Channel {
  alignas(64) std::atomic<uint64_t> written;
  alignas(64) std::atomic<uint64_t> read;
  alignas(64) unsigned char ring[kRing];

  /// Copies as much of `bytes` bytes as there is room or data for; returns how much.
  size_t write(const unsigned char* data, size_t bytes);
  size_t take(unsigned char* data, size_t bytes);
};

enum class Traffic { collectives, messages };

class Segment {
 public:
  /// Opens the segment of that name, creating it if this is the first rank, and waits for the others. Throws
  /// Error with the missing ranks where they do not come in time.
  Segment(const std::string& name, int32_t size, int32_t rank, std::chrono::milliseconds timeout);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  int32_t size() const { return size_; }
  int32_t rank() const { return rank_; }
  Channel& channel(int32_t from, int32_t to, Traffic traffic);

  /// Whether the process of `rank` has not ended.
  bool is_alive(int32_t rank) const;

  /// One rank's failure is everybody's: the first reason given is kept, and read by all.
  void give_up(const std::string& reason);
  /// "" while nobody has given up.
  std::string given_up() const;

 private:
  struct Head;
  Head& head() const;
  void claim_rank() const;
  void wait_for_all(std::chrono::milliseconds timeout) const;

  const std::string name_;
  const int32_t size_, rank_;
  size_t bytes_ = 0;
  int file_ = -1;
  void* memory_ = nullptr;
};

}  // namespace maca
