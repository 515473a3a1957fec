// communicator.h: the work of one rank of a communicator, and the thread that does it.
//
// On a card, collectives are done by its link hardware while the engine goes on. Here a thread of the
// communicator's own plays that part: a command of the stream hands it an Operation, and the next command of
// the stream is gated by the mark that the operation reaches. So a stream whose collective waits for another
// rank holds up nobody but itself.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine.h"
#include "segment.h"

namespace maca {

/// What is sent before the data: both sides must mean the same.
struct Label {
  uint32_t collective;  // its place in the table of names, see collectives.cpp
  int32_t detail;       // root, or dtype and reduction
  uint64_t bytes;
};

/// One block of bytes to or from one rank.
struct Transfer {
  int32_t peer;
  bool sends;
  unsigned char* data;
  Label label;
  size_t moved = 0;     // of label and data together
  Label received = {};  // the peer's, where this side receives

  size_t length() const { return sizeof(Label) + label.bytes; }
  bool is_done() const { return moved == length(); }
};

/// Blocks that move at the same time, and what is done when all have.
struct Stage {
  std::vector<Transfer> transfers;
  std::function<void()> then;
};

struct Operation {
  std::string name;  // for messages: "all_reduce #3 of 4096 bytes"
  Traffic traffic;
  int32_t queue;  // operations of one queue go one after another
  std::deque<Stage> stages;
  std::vector<unsigned char> scratch;
  std::shared_ptr<Mark> mark = std::make_shared<Mark>();
  std::string failure;  // written before the mark is reached
};

class Communicator {
 public:
  Communicator(const std::string& name, int32_t size, int32_t rank, int32_t card,
               std::chrono::milliseconds timeout);
  ~Communicator();

  int32_t size() const { return segment_.size(); }
  int32_t rank() const { return segment_.rank(); }

  /// Enqueues `operation` on `stream`.
  static void enqueue(const std::shared_ptr<Communicator>& self, std::shared_ptr<Operation> operation,
                      tefl_stream stream);

  /// Work that is not done ends, here and on the other ranks, and so does what comes. Returns at once.
  void abort(const std::string& reason);
  /// The same for work that is not done, if any: a rank may go whose work is done, while others have more.
  void destroy();
  /// "" while it is sound.
  std::string failure();
  /// How many collectives were begun, this one included.
  uint64_t next_number() { return ++collectives_; }

 private:
  using Queue = std::deque<std::shared_ptr<Operation>>;
  using Lock = std::unique_lock<std::mutex>;

  void post(std::shared_ptr<Operation> operation);
  void run();
  bool has_work();
  void require_open();
  bool advance_all();
  bool advance(Queue& queue);
  bool move(Operation& operation, Transfer& transfer);
  void check_label(const Operation& operation, const Transfer& transfer) const;
  std::string trouble_elsewhere();
  void look_at_others();
  void finish(Operation& operation, const std::string& failure);
  void fail_all(const std::string& reason);

  const int32_t card_;
  Segment segment_;
  std::atomic<uint64_t> collectives_{0};

  std::mutex lock_;  // guards these
  std::condition_variable changed_;
  std::vector<std::shared_ptr<Operation>> posted_;
  std::string failure_;
  bool destroyed_ = false, ending_ = false;

  std::map<int32_t, Queue> queues_;  // these are the thread's own
  std::string suspicion_;
  std::thread thread_;
};

}  // namespace maca
