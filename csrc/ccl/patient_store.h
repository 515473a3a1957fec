// The store of a process group, asked by a thread of ours: whoever asks goes on where it does not answer.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace tefl::ccl {

/// A store blocks who asks it, some for ever where its server has stopped. Here nobody waits for more than
/// kAnswer; a question goes on, and its answer is there for who asks again.
class PatientStore {
 public:
  explicit PatientStore(c10::intrusive_ptr<c10d::Store> store);
  ~PatientStore();
  PatientStore(const PatientStore&) = delete;
  PatientStore& operator=(const PatientStore&) = delete;

  /// What is under `key`: "" where nothing is, or the store is gone or does not answer.
  std::string look(const std::string& key);

  /// Whether the store has failed to answer a question, as it does once the process that keeps it has ended.
  /// It is asked nothing more then.
  bool is_gone() const;

  /// Puts `text`, which is not "", under `key`, later where the store does not answer now. Throws what the
  /// store throws.
  void put(const std::string& key, const std::string& text);

 private:
  struct Question;
  struct Shared;
  using Lock = std::unique_lock<std::mutex>;

  std::shared_ptr<Question> ask(Lock& lock, const std::string& key, const std::string& text);
  void wait_for(Lock& lock, const Question& question);

  const std::shared_ptr<Shared> shared_;  // with the thread, which may be in the store for ever
  std::thread thread_;                    // started by the first question
};

}  // namespace tefl::ccl
