// Calls that went on before rank 0 had announced its own, compared as soon as it has.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <thread>

#include "ccl/ledger.h"

namespace tefl::ccl {

class Comparer {
 public:
  /// `differs` is called once, in a thread of ours, with the reason, when a call turns out to be another one
  /// than rank 0's.
  Comparer(std::shared_ptr<Ledger> ledger, std::function<void(const std::string&)> differs)
      : ledger_(std::move(ledger)), differs_(std::move(differs)) {}
  ~Comparer() { stop(); }

  void add(const Call& call);
  /// Whether calls are left that rank 0 has not announced.
  bool behind();
  /// Compares no more; returns when the thread has ended.
  void stop();

 private:
  using Clock = std::chrono::steady_clock;
  struct Entry {
    Call call;
    Clock::time_point deadline;
  };
  void run();
  /// Whether the entry is over. Throws where ranks differ.
  bool settle(const Entry& entry);

  const std::shared_ptr<Ledger> ledger_;
  const std::function<void(const std::string&)> differs_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<Entry> entries_;
  bool ending_ = false;
  std::thread thread_;  // started by the first call that is added
};

}  // namespace tefl::ccl
