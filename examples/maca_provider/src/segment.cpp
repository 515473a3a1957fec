// segment.cpp: see segment.h for the model.
#include "segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <thread>

#include "status.h"

namespace maca {

// Before the channels. A file of zeros is a valid, empty one, so that it does not matter which rank comes
// first.
struct Segment::Head {
  static constexpr size_t kMostRanks = 256;
  std::atomic<int32_t> joined[kMostRanks];
  std::atomic<int32_t> reason_state;  // 0 none, 1 being written, 2 there
  char reason[512];
};

namespace {

constexpr size_t kHead = 4096;

struct flock lock_on(int32_t rank) {
  struct flock lock{};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = rank;
  lock.l_len = 1;
  return lock;
}

[[noreturn]] void fail(const std::string& what) {
  throw Error(TEFL_ERR_INTERNAL, what + ": " + std::strerror(errno));
}

}  // namespace

size_t Channel::write(const unsigned char* data, size_t bytes) {
  const uint64_t position = written.load(std::memory_order_relaxed);
  const size_t room = kRing - static_cast<size_t>(position - read.load(std::memory_order_acquire));
  const size_t count = std::min(bytes, room);
  const size_t begin = position % kRing, first = std::min(count, kRing - begin);
  std::memcpy(ring + begin, data, first);
  std::memcpy(ring, data + first, count - first);
  written.store(position + count, std::memory_order_release);
  return count;
}

size_t Channel::take(unsigned char* data, size_t bytes) {
  const uint64_t position = read.load(std::memory_order_relaxed);
  const auto there = static_cast<size_t>(written.load(std::memory_order_acquire) - position);
  const size_t count = std::min(bytes, there);
  const size_t begin = position % kRing, first = std::min(count, kRing - begin);
  std::memcpy(data, ring + begin, first);
  std::memcpy(data + first, ring, count - first);
  read.store(position + count, std::memory_order_release);
  return count;
}

Segment::Segment(const std::string& name, int32_t size, int32_t rank, std::chrono::milliseconds timeout)
    : name_(name), size_(size), rank_(rank) {
  static_assert(sizeof(Head) <= kHead);
  require(size > 0 && static_cast<size_t>(size) <= Head::kMostRanks, "a communicator has 1 to 256 ranks");
  require(rank >= 0 && rank < size, "the rank is not among the communicator's");
  bytes_ = kHead + sizeof(Channel) * 2 * static_cast<size_t>(size) * static_cast<size_t>(size);
  file_ = shm_open(name_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, S_IRUSR | S_IWUSR);
  if (file_ < 0) fail("the shared memory of the communicator cannot be opened");
  try {
    if (ftruncate(file_, static_cast<off_t>(bytes_)) != 0) fail("the shared memory cannot be sized");
    claim_rank();
    memory_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
    if (memory_ == MAP_FAILED) fail("the shared memory cannot be mapped");
    head().joined[rank_] = 1;
    wait_for_all(timeout);
  } catch (...) {
    if (memory_ != nullptr && memory_ != MAP_FAILED) munmap(memory_, bytes_);
    close(file_);
    shm_unlink(name_.c_str());
    throw;
  }
  // Everybody has it open: without its name it goes when the last of them does, killed or not.
  if (rank_ == 0) shm_unlink(name_.c_str());
}

Segment::~Segment() {
  munmap(memory_, bytes_);
  close(file_);
}

Segment::Head& Segment::head() const { return *static_cast<Head*>(memory_); }

void Segment::claim_rank() const {
  auto lock = lock_on(rank_);
  if (fcntl(file_, F_SETLK, &lock) == 0) return;
  throw Error(TEFL_ERR_INVALID, "rank " + std::to_string(rank_) +
                                    " of the communicator is taken by another " +
                                    "process: two were started with the same rank");
}

void Segment::wait_for_all(std::chrono::milliseconds timeout) const {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  for (;;) {
    std::string missing;
    for (int32_t rank = 0; rank < size_; ++rank) {
      if (head().joined[rank] == 0) missing += (missing.empty() ? "" : ", ") + std::to_string(rank);
    }
    if (missing.empty()) return;
    if (std::chrono::steady_clock::now() > deadline) {
      throw Error(TEFL_ERR_INTERNAL, "rank " + missing + " of " + std::to_string(size_) +
                                         " did not join the communicator within " +
                                         std::to_string(timeout.count()) + " ms");
    }
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

Channel& Segment::channel(int32_t from, int32_t to, Traffic traffic) {
  auto* channels = reinterpret_cast<Channel*>(static_cast<char*>(memory_) + kHead);
  const auto pair = static_cast<size_t>(from) * static_cast<size_t>(size_) + static_cast<size_t>(to);
  return channels[2 * pair + (traffic == Traffic::messages ? 1 : 0)];
}

bool Segment::is_alive(int32_t rank) const {
  if (rank == rank_) return true;
  auto lock = lock_on(rank);
  return fcntl(file_, F_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

void Segment::give_up(const std::string& reason) {
  int32_t none = 0;
  if (!head().reason_state.compare_exchange_strong(none, 1)) return;
  const std::string text = "rank " + std::to_string(rank_) + " gave up: " + reason;
  std::strncpy(head().reason, text.c_str(), sizeof(head().reason) - 1);
  head().reason_state = 2;
}

std::string Segment::given_up() const { return head().reason_state == 2 ? head().reason : ""; }

}  // namespace maca
