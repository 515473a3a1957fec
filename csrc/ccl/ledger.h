// Finds out that ranks call different things, which the libraries beneath answer with a hang or with garbage.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <unordered_set>

#include "ccl/call.h"
#include "ccl/patient_store.h"

namespace tefl::ccl {

/// How long a call may be held up for rank 0 to announce its own where a right program might need the call to
/// go on without rank 0.
constexpr std::chrono::milliseconds kGrace{1000};

/// Between two looks into the store, the first and the longest: it is asked again and again, and not told to
/// wait, since its other users would wait behind us.
constexpr std::chrono::milliseconds kFirstLook{1}, kLongestLook{20};

/// The first call of each form (Call::form()) is compared with rank 0's call of the same number, which rank 0
/// writes into the store and waits for nobody. Later calls of the form are looked up.
class Ledger {
 public:
  Ledger(c10::intrusive_ptr<c10d::Store> store, std::chrono::milliseconds timeout)
      : store_(std::move(store)), timeout_(timeout) {}

  /// Takes note of a call. Whether this rank is to compare it with rank 0's.
  bool announce(const Call& call);

  /// Whether rank 0 has announced its call, and the same. A DistBackendError that quotes both where it is
  /// another one; where the store does not answer, it counts as not announced, and where it is gone, as the
  /// same.
  bool agrees(const Call& call);

  /// The same, asked until it is so, at most for `patience`. Throws when close() is called meanwhile. After
  /// kGrace it asks rank 0, which has announced nothing where it called its form before.
  bool agrees_within(const Call& call, std::chrono::milliseconds patience);

  /// The same, for as long as the process group waits for anything; then a DistBackendError.
  void require_agreement(const Call& call);

  /// Of a call whose end rank 0 has waited for for a while: tells what it is, if another rank asks. Nothing
  /// on other ranks.
  void answer(const Call& waiting);

  /// What rank 0 has published under `key`, looked for until it is there, at most for `patience`; then "".
  /// For `call`, and throws when close() is called meanwhile.
  std::string awaited(const Call& call, const std::string& key, std::chrono::milliseconds patience);
  void publish(const std::string& key, const std::string& text) { store_.put(key, text); }

  /// Ends all waiting for other ranks, with `reason`.
  void close(const std::string& reason);

  /// Throws after close().
  void require_open(const Call& call);

  std::chrono::milliseconds timeout() const { return timeout_; }

  /// Why `call` may have failed, as an end for a message: what some rank found to be different, or what rank
  /// 0 calls instead; "" where nothing is known.
  std::string known_difference(const Call& call) noexcept;

 private:
  // Every call is looked up by its form; text is made of those alone that are compared.
  struct SameForm {
    bool operator()(const Call& a, const Call& b) const;
  };
  struct FormHash {
    size_t operator()(const Call& call) const;
  };

  bool is_new(const Call& call);
  /// Throws where rank 0 called `theirs` and this rank calls something else.
  void require_same(const Call& call, const std::string& theirs);
  /// Publishes what the other ranks can do without.
  void tell(const std::string& key, const std::string& text) noexcept;

  PatientStore store_;
  const std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::condition_variable closing_;
  std::string closed_;                                 // why, once it is
  std::unordered_set<Call, FormHash, SameForm> seen_;  // the first of each form; none is taken out
  // Some of them, by the upper bits of their hash, to be found without the lock.
  static constexpr int kFoundBits = 6;
  std::array<std::atomic<const Call*>, 1 << kFoundBits> found_{};
};

}  // namespace tefl::ccl
