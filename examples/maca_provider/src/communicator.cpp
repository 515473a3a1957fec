// communicator.cpp: see communicator.h for the model.
#include "communicator.h"

#include <algorithm>
#include <cstring>

#include "collectives.h"
#include "status.h"

namespace maca {
namespace {

// How often nothing moved before the thread sleeps a little, and before it looks whether the others live.
constexpr int kSpins = 200, kLooks = 400;
constexpr std::chrono::microseconds kNap{50};

}  // namespace

Communicator::Communicator(const std::string& name, int32_t size, int32_t rank, int32_t card,
                           std::chrono::milliseconds timeout)
    : card_(card), segment_(name, size, rank, timeout), thread_([this] { run(); }) {}

Communicator::~Communicator() {
  {
    const Lock hold(lock_);
    destroyed_ = ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Communicator::destroy() {
  {
    const Lock hold(lock_);
    destroyed_ = true;
  }
  changed_.notify_all();
}

// Two commands: one hands the operation over, one waits for its mark and tells the stream how it ended.
void Communicator::enqueue(const std::shared_ptr<Communicator>& self, std::shared_ptr<Operation> operation,
                           tefl_stream stream) {
  require(card_of(stream) == self->card_, "the stream and the communicator belong to different cards");
  const auto mark = operation->mark;
  submit(stream, {nullptr, [self, operation] { self->post(operation); }, nullptr});
  submit(stream, {mark,
                  [operation] {
                    if (!operation->failure.empty()) throw Error(TEFL_ERR_DEVICE, operation->failure);
                  },
                  nullptr});
}

void Communicator::post(std::shared_ptr<Operation> operation) {
  {
    const Lock hold(lock_);
    posted_.push_back(std::move(operation));
  }
  changed_.notify_all();
}

// The thread ends the work when it sees the failure.
void Communicator::abort(const std::string& reason) {
  const Lock hold(lock_);
  if (!failure_.empty()) return;
  failure_ = reason;
  segment_.give_up(reason);
}

std::string Communicator::failure() {
  const Lock hold(lock_);
  return failure_;
}

void Communicator::finish(Operation& operation, const std::string& failure) {
  if (!failure.empty()) {
    operation.failure = operation.name + " on rank " + std::to_string(rank()) + " of " +
                        std::to_string(size()) + " failed: " + failure;
  }
  reach(*operation.mark);
}

// Everything under way ends, here and, by the segment, on the other ranks.
void Communicator::fail_all(const std::string& reason) {
  abort(reason);
  const std::string first = failure();
  for (auto& [number, queue] : queues_) {
    for (const auto& operation : queue) finish(*operation, first);
  }
  queues_.clear();
}

void Communicator::check_label(const Operation& operation, const Transfer& transfer) const {
  const Label& ours = transfer.label;
  const Label& theirs = transfer.received;
  if (std::memcmp(&ours, &theirs, sizeof ours) == 0) return;
  throw Error(TEFL_ERR_INVALID, "rank " + std::to_string(transfer.peer) + " is at " + text_of(theirs) +
                                    " where this rank is at " + text_of(ours) + " (" + operation.name + ")");
}

// Moves what can be moved now; says whether that was anything.
bool Communicator::move(Operation& operation, Transfer& transfer) {
  const int32_t from = transfer.sends ? rank() : transfer.peer, to = transfer.sends ? transfer.peer : rank();
  Channel& channel = segment_.channel(from, to, operation.traffic);
  const size_t before = transfer.moved;
  const auto pass = [&](unsigned char* data, size_t bytes) {
    transfer.moved += transfer.sends ? channel.write(data, bytes) : channel.take(data, bytes);
  };
  if (transfer.moved < sizeof(Label)) {
    auto* label = reinterpret_cast<unsigned char*>(transfer.sends ? &transfer.label : &transfer.received);
    pass(label + transfer.moved, sizeof(Label) - transfer.moved);
    if (transfer.moved < sizeof(Label)) return transfer.moved != before;
    if (!transfer.sends) check_label(operation, transfer);
  }
  const size_t done = transfer.moved - sizeof(Label);
  if (done < transfer.label.bytes) pass(transfer.data + done, transfer.label.bytes - done);
  return transfer.moved != before;
}

// The operation at the head of a queue; true if anything happened.
bool Communicator::advance(Queue& queue) {
  Operation& operation = *queue.front();
  bool moved = false;
  if (!operation.stages.empty()) {
    Stage& stage = operation.stages.front();
    bool done = true;
    for (Transfer& transfer : stage.transfers) {
      if (!transfer.is_done()) moved |= move(operation, transfer);
      done &= transfer.is_done();
    }
    if (!done) return moved;
    if (stage.then) stage.then();
    operation.stages.pop_front();
  }
  if (operation.stages.empty()) {
    finish(operation, "");
    queue.pop_front();
  }
  return true;
}

// Why what the operations wait for may never come; "" if nothing speaks for it.
std::string Communicator::trouble_elsewhere() {
  const std::string reason = segment_.given_up();
  if (!reason.empty()) return reason;
  for (const auto& [number, queue] : queues_) {
    if (queue.front()->stages.empty()) continue;
    for (const auto& transfer : queue.front()->stages.front().transfers) {
      if (transfer.is_done() || segment_.is_alive(transfer.peer)) continue;
      return "rank " + std::to_string(transfer.peer) + " is gone: its process has ended";
    }
  }
  return "";
}

// A rank may end right after it has sent the last of its data. So nothing is believed at the first look:
// between two looks all that is there has been moved.
void Communicator::look_at_others() {
  const std::string trouble = trouble_elsewhere();
  if (!trouble.empty() && trouble == suspicion_) throw Error(TEFL_ERR_DEVICE, trouble);
  suspicion_ = trouble;
}

// Waits until there is work, and takes over what was posted. False: there will be none.
bool Communicator::has_work() {
  Lock hold(lock_);
  changed_.wait(hold, [&] { return ending_ || !posted_.empty() || !queues_.empty(); });
  for (auto& operation : posted_) queues_[operation->queue].push_back(std::move(operation));
  posted_.clear();
  return !queues_.empty();
}

void Communicator::require_open() {
  const Lock hold(lock_);
  if (!failure_.empty()) throw Error(TEFL_ERR_DEVICE, failure_);
  if (destroyed_) throw Error(TEFL_ERR_DEVICE, "the communicator was destroyed");
}

// One step of each queue; true if anything happened.
bool Communicator::advance_all() {
  bool moved = false;
  for (auto entry = queues_.begin(); entry != queues_.end();) {
    moved |= advance(entry->second);
    entry = entry->second.empty() ? queues_.erase(entry) : std::next(entry);
  }
  return moved;
}

// Only this thread moves data and reduces, and it holds no lock meanwhile: nobody waits for it who posts,
// aborts or asks for a failure.
void Communicator::run() {
  for (int idle = 0; has_work();) {
    try {
      require_open();
      const bool moved = advance_all();
      idle = moved ? 0 : idle + 1;
      if (moved) suspicion_.clear();
      if (idle > 0 && idle % kLooks == 0) look_at_others();
    } catch (const std::exception& error) {
      fail_all(error.what());
    }
    if (idle > kSpins) {
      std::this_thread::sleep_for(kNap);
    } else {
      std::this_thread::yield();
    }
  }
}

}  // namespace maca
