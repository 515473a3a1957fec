// engine.h: cards, streams and events. The part of a provider that real hardware does for its vendor.
//
// A maca card has one engine: a thread that executes commands. A stream is a queue of commands. The engine
// looks at the head of each of its queues and takes one that may run, the most urgent stream first and
// streams of equal urgency in turn. So commands of one stream keep their order, and a stream that waits for
// an event holds up nobody but itself.
//
// An event is a reference to a Mark, a point in a stream's work. Recording an event queues a command that
// reaches a new mark; waiting for an event queues a command behind the mark it refers to at that moment. Both
// share ownership of the mark, so an event may be recorded again or destroyed while waits for it are still
// queued. A failure goes along: a stream that waited for a mark of a failed one has failed too, so that
// whoever uses its results is told.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "tefl_provider.h"

namespace maca {

constexpr int32_t kCards = 2;

struct Mark {
  bool reached = false;
  std::chrono::steady_clock::time_point when;  // set when reached
  std::string failure;                         // of the stream, where it had one nobody has been told of
};

/// One entry of a stream's queue. What is absent is skipped: a plain kernel has only `work`.
struct Command {
  std::shared_ptr<const Mark> gate;  // do not start before this is reached
  std::function<void()> work;        // runs on the engine's thread; what it throws is an asynchronous error
  std::shared_ptr<Mark> mark;        // reached when the work is done
};

/// Starts the engines. Everything below but `check_card` throws before this was called.
void start_engines();

/// Throws unless `card` is one of ours.
void check_card(int32_t card);

/// `priority` is 0 or -1; -1 is more urgent.
tefl_stream create_stream(int32_t card, int32_t priority);
/// Waits for the stream's work first.
void destroy_stream(tefl_stream stream);
tefl_stream default_stream(int32_t card);
int32_t card_of(tefl_stream stream);

/// Appends `command` to the stream's queue and returns at once.
void submit(tefl_stream stream, Command command);

bool is_idle(tefl_stream stream);
/// Waits for what is queued now. Throws TEFL_ERR_DEVICE, once, if any work of the stream has failed.
void synchronize(tefl_stream stream);
void synchronize_card(int32_t card);
/// Waits for what is queued now on every stream of every card, and leaves failures for synchronize to report.
void drain_all_cards();

/// For a mark that no command reaches, but other hardware does.
void reach(Mark& mark);
bool is_reached(const Mark& mark);
void wait_until_reached(const Mark& mark);

}  // namespace maca
