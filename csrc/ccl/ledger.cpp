#include "ccl/ledger.h"

#include <c10/util/Exception.h>

#include <algorithm>

namespace tefl::ccl {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMostForms = 256;  // a program whose shapes all differ shall not fill the store
constexpr char kDifference[] = "tefl/difference";
constexpr char kAsked[] = "tefl/asked";  // by the number of a call: what it is on rank 0

// Groups of calls have no number of their own, and messages others.
bool is_numbered(const Call& call) { return !call.is_message() && call.type != c10d::OpType::COALESCED; }

std::string difference_of(const Call& call, const std::string& theirs) {
  return "rank 0 calls " + theirs + " as #" + std::to_string(call.number) + ", rank " +
         std::to_string(call.rank) + " calls " + call.form();
}

std::string key_of(const Call& call) { return "tefl/call/" + std::to_string(call.number); }

}  // namespace

// What Call::form() tells, without its text. Names are literals, each of one place: one elsewhere would be
// compared once more.
bool Ledger::SameForm::operator()(const Call& a, const Call& b) const {
  return a.type == b.type && a.name == b.name && a.reduction == b.reduction && a.root == b.root &&
         (a.amounts_differ || (a.numel == b.numel && a.dtype == b.dtype)) && a.layout == b.layout;
}

// Of what is cheap to hash and tells nearly all forms of a program apart, in 32 bits. By multiplication
// (Knuth, The Art of Computer Programming 3, 6.4), of which the upper bits depend on all of a count's.
size_t Ledger::FormHash::operator()(const Call& call) const {
  const uint64_t amount = call.amounts_differ ? 0 : static_cast<uint64_t>(call.numel);
  return ((amount << 8 | static_cast<uint8_t>(call.type)) * 0x9E3779B97F4A7C15) >> 32;
}

bool Ledger::is_new(const Call& call) {
  auto& place = found_[FormHash()(call) >> (32 - kFoundBits)];
  const Call* known = place.load(std::memory_order_acquire);
  if (C10_LIKELY(known != nullptr && SameForm()(*known, call))) return false;
  const std::lock_guard<std::mutex> lock(mutex_);
  auto form = seen_.find(call);
  const bool is_new = form == seen_.end();
  if (is_new && seen_.size() >= kMostForms) return false;
  if (is_new) form = seen_.insert(call).first;
  place.store(&*form, std::memory_order_release);
  return is_new;
}

bool Ledger::announce(const Call& call) {
  if (call.size == 1 || !is_new(call)) return false;
  if (call.rank != 0) return true;
  tell(key_of(call), call.form());
  return false;
}

void Ledger::require_same(const Call& call, const std::string& theirs) {
  const std::string ours = call.form();
  if (theirs == ours) return;
  tell(kDifference, difference_of(call, theirs));
  fail(call, "rank 0 calls " + theirs + " where this rank calls " + ours +
                 "; all ranks must call the same, with the same dtype and number of elements");
}

bool Ledger::agrees(const Call& call) {
  const std::string theirs = store_.look(key_of(call));
  if (theirs.empty()) return store_.is_gone();
  require_same(call, theirs);
  return true;
}

std::string Ledger::awaited(const Call& call, const std::string& key, std::chrono::milliseconds patience) {
  const auto deadline = Clock::now() + patience;
  for (auto nap = kFirstLook;; nap = std::min(2 * nap, kLongestLook)) {
    auto text = store_.look(key);
    if (!text.empty() || store_.is_gone() || Clock::now() >= deadline) return text;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      closing_.wait_for(lock, nap, [&] { return !closed_.empty(); });
    }
    require_open(call);
  }
}

void Ledger::require_open(const Call& call) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!closed_.empty()) fail(call, "given up before all ranks had made the call: " + closed_);
}

bool Ledger::agrees_within(const Call& call, std::chrono::milliseconds patience) {
  const auto deadline = Clock::now() + patience;
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    const std::string theirs = awaited(call, key_of(call), std::min(left, kGrace));
    if (!theirs.empty()) {
      require_same(call, theirs);
      return true;
    }
    if (store_.is_gone()) return true;
    if (Clock::now() >= deadline) return false;
    tell(kAsked, std::to_string(call.number));
  }
}

// What it may overwrite is the same text.
void Ledger::answer(const Call& waiting) {
  if (waiting.rank != 0 || waiting.size == 1 || !is_numbered(waiting)) return;
  if (store_.look(kAsked) == std::to_string(waiting.number)) tell(key_of(waiting), waiting.form());
}

void Ledger::require_agreement(const Call& call) {
  if (agrees_within(call, timeout_)) return;
  fail(call, "rank 0 announced no such call as its #" + std::to_string(call.number) + " within " +
                 std::to_string(timeout_.count()) + " ms: it is late, gone, or calls something else" +
                 known_difference(call));
}

void Ledger::close(const std::string& reason) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (closed_.empty()) closed_ = reason;
  }
  closing_.notify_all();
}

// A call of a form that this rank knows is not compared before: it is where something went wrong.
std::string Ledger::known_difference(const Call& call) noexcept {
  try {
    auto difference = store_.look(kDifference);
    if (difference.empty() && call.rank != 0 && is_numbered(call)) {
      const auto theirs = store_.look(key_of(call));
      if (!theirs.empty() && theirs != call.form()) difference = difference_of(call, theirs);
      if (!difference.empty()) tell(kDifference, difference);
    }
    return difference.empty() ? "" : " (" + difference + ")";
  } catch (const std::exception&) {  // no memory, no thread: the message does without
    return "";
  }
}

void Ledger::tell(const std::string& key, const std::string& text) noexcept {
  try {
    publish(key, text);
  } catch (const std::exception&) {
    // The store is gone, or memory: nothing is compared, and the others learn of an end by their time-outs.
  }
}

}  // namespace tefl::ccl
