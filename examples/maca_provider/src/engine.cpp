// engine.cpp: see engine.h for the model.
#include "engine.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "status.h"

// The header declares `struct tefl_stream_s` and leaves its contents to the provider. Defining it here makes
// tefl_stream an ordinary pointer for us, with no cast anywhere. All fields but the constant ones are guarded
// by State::lock.
struct tefl_stream_s {
  tefl_stream_s(const void* library, int32_t card, int32_t priority)
      : library(library), card(card), priority(priority) {}
  const void* const library;  // which copy of this library made it, see check_stream
  const int32_t card;
  const int32_t priority;
  std::deque<maca::Command> queue;
  uint64_t submitted = 0;
  uint64_t finished = 0;
  uint64_t last_served = 0;  // the engine's command count when this stream last had its turn
  std::string failure;       // the first asynchronous error not reported yet
};

namespace maca {
namespace {

struct Card {
  std::vector<std::unique_ptr<tefl_stream_s>> streams;  // the first one is the default stream
  uint64_t served = 0;
};

// One lock and one condition for everything that can be waited for. Whoever changes something says so,
// whoever waits looks again: no wake-up can be lost, also between cards. Commands run with the lock released.
struct State {
  std::mutex lock;
  std::condition_variable changed;
  std::vector<Card> cards;  // empty until start_engines
};

// Never destroyed: the engines' threads use it until the process is gone, and destructors of static objects
// run earlier than that.
State& state() {
  static State& forever = *new State;
  return forever;
}

using Lock = std::unique_lock<std::mutex>;

Card& started_card(int32_t card) {
  check_card(card);
  if (state().cards.empty())
    throw Error(TEFL_ERR_INVALID, "the maca runtime is not started: call init first");
  return state().cards[static_cast<size_t>(card)];
}

// A process can hold two copies of this library: tefl loaded one from a build folder, say, and the Python
// package brought its own. The second must not touch the streams of the first, as it does not know their
// lock.
void check_stream(tefl_stream stream) {
  require(stream != nullptr, "stream is NULL");
  require(stream->library == &state(), "this stream belongs to another copy of the maca library");
}

bool may_run(const tefl_stream_s& stream) {
  if (stream.queue.empty()) return false;
  const auto& gate = stream.queue.front().gate;
  return !gate || gate->reached;
}

// True if `a` is to have its turn before `b`.
bool goes_before(const tefl_stream_s& a, const tefl_stream_s& b) {
  return a.priority != b.priority ? a.priority < b.priority : a.last_served < b.last_served;
}

// The stream whose head runs next; null if none can.
tefl_stream choose(const Card& card) {
  tefl_stream best = nullptr;
  for (const auto& stream : card.streams) {
    if (may_run(*stream) && (best == nullptr || goes_before(*stream, *best))) best = stream.get();
  }
  return best;
}

// Runs a command's work and lets go of what it holds, all without the lock, which a communicator takes as it
// goes. Returns what went wrong, "" if nothing did.
std::string perform(std::function<void()> work) {
  if (!work) return "";
  try {
    work();
    return "";
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "unknown failure of a command";
  }
}

void finish(tefl_stream stream, const Command& command, const std::string& failure) {
  if (stream->failure.empty()) stream->failure = failure;
  if (stream->failure.empty() && command.gate) stream->failure = command.gate->failure;
  if (command.mark) {
    command.mark->reached = true;
    command.mark->when = std::chrono::steady_clock::now();
    command.mark->failure = stream->failure;
  }
  ++stream->finished;  // last: from here on the stream may be destroyed
}

// The life of an engine. Failed work does not stop a stream: what follows it runs, as its caller will see the
// failure at the next synchronisation and can trust nothing computed since the last one.
[[noreturn]] void run_engine(Card& card) {
  Lock hold(state().lock);
  for (;;) {
    tefl_stream stream = choose(card);
    if (stream == nullptr) {
      state().changed.wait(hold);
      continue;
    }
    Command command = std::move(stream->queue.front());
    stream->queue.pop_front();
    stream->last_served = ++card.served;
    hold.unlock();
    const std::string failure = perform(std::move(command.work));
    hold.lock();
    finish(stream, command, failure);
    state().changed.notify_all();
  }
}

// Waits for what is in the queue now, not for what others add meanwhile.
void wait_for(tefl_stream stream, Lock& hold) {
  const uint64_t goal = stream->submitted;
  state().changed.wait(hold, [&] { return stream->finished >= goal; });
}

void throw_failure(tefl_stream stream) {
  if (stream->failure.empty()) return;
  std::string failure;
  failure.swap(stream->failure);  // reported once
  throw Error(TEFL_ERR_DEVICE,
              "work enqueued earlier on card " + std::to_string(stream->card) + " failed: " + failure);
}

// The streams of a card at this moment; create_stream may add one while we wait for these.
std::vector<tefl_stream> streams_of(const Card& card) {
  std::vector<tefl_stream> streams;
  for (const auto& stream : card.streams) streams.push_back(stream.get());
  return streams;
}

}  // namespace

void start_engines() {
  Lock hold(state().lock);
  if (!state().cards.empty()) return;
  std::vector<Card> cards(kCards);
  for (int32_t i = 0; i < kCards; ++i)
    cards[i].streams.push_back(std::make_unique<tefl_stream_s>(&state(), i, 0));
  state().cards = std::move(cards);  // never resized again, so the engines may keep references
  for (Card& card : state().cards) std::thread(run_engine, std::ref(card)).detach();
}

void check_card(int32_t card) {
  if (card >= 0 && card < kCards) return;
  throw Error(TEFL_ERR_INVALID, "there is no card " + std::to_string(card) + "; maca has cards 0 to " +
                                    std::to_string(kCards - 1));
}

tefl_stream create_stream(int32_t card, int32_t priority) {
  require(priority == 0 || priority == -1, "a maca stream's priority is 0 or -1");
  Lock hold(state().lock);
  auto& streams = started_card(card).streams;
  streams.push_back(std::make_unique<tefl_stream_s>(&state(), card, priority));
  return streams.back().get();
}

void destroy_stream(tefl_stream stream) {
  check_stream(stream);
  Lock hold(state().lock);
  auto& streams = started_card(stream->card).streams;
  require(stream != streams.front().get(), "the default stream is not to be destroyed");
  wait_for(stream, hold);
  const auto is_it = [&](const auto& held) { return held.get() == stream; };
  streams.erase(std::find_if(streams.begin(), streams.end(), is_it));
}

tefl_stream default_stream(int32_t card) {
  Lock hold(state().lock);
  return started_card(card).streams.front().get();
}

int32_t card_of(tefl_stream stream) {
  check_stream(stream);
  return stream->card;
}

void submit(tefl_stream stream, Command command) {
  check_stream(stream);
  {
    Lock hold(state().lock);
    stream->queue.push_back(std::move(command));
    ++stream->submitted;
  }
  state().changed.notify_all();
}

bool is_idle(tefl_stream stream) {
  check_stream(stream);
  Lock hold(state().lock);
  return stream->finished == stream->submitted;
}

void synchronize(tefl_stream stream) {
  check_stream(stream);
  Lock hold(state().lock);
  wait_for(stream, hold);
  throw_failure(stream);
}

void synchronize_card(int32_t card) {
  Lock hold(state().lock);
  const auto streams = streams_of(started_card(card));
  for (tefl_stream stream : streams) wait_for(stream, hold);
  for (tefl_stream stream : streams) throw_failure(stream);
}

void drain_all_cards() {
  Lock hold(state().lock);
  for (const Card& card : state().cards) {
    for (tefl_stream stream : streams_of(card)) wait_for(stream, hold);
  }
}

void reach(Mark& mark) {
  {
    Lock hold(state().lock);
    mark.reached = true;
    mark.when = std::chrono::steady_clock::now();
  }
  state().changed.notify_all();
}

bool is_reached(const Mark& mark) {
  Lock hold(state().lock);
  return mark.reached;
}

void wait_until_reached(const Mark& mark) {
  Lock hold(state().lock);
  state().changed.wait(hold, [&] { return mark.reached; });
}

}  // namespace maca
