#include "ccl/patient_store.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace tefl::ccl {
namespace {

using StoreClock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kAnswer{1000};
constexpr std::chrono::milliseconds kFresh{100};  // as long as that, "nothing is there" is believed

std::vector<uint8_t> bytes_in(const std::string& text) { return {text.begin(), text.end()}; }

}  // namespace

struct PatientStore::Question {
  std::string key;
  std::string text;  // to put; "" to look
  bool done = false;
  StoreClock::time_point when{};  // it was done
  std::string answer{};
  std::exception_ptr error{};

  bool is_stale() const { return done && answer.empty() && StoreClock::now() > when + kFresh; }
};

struct PatientStore::Shared {
  explicit Shared(c10::intrusive_ptr<c10d::Store> given) : store(std::move(given)) {}

  const c10::intrusive_ptr<c10d::Store> store;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::shared_ptr<Question>> waiting;
  std::map<std::string, std::shared_ptr<Question>> looks;  // by key, until somebody has the answer
  std::exception_ptr failure;                              // of the first question that it did not answer
  bool busy = false;                                       // the thread is in the store
  StoreClock::time_point since;                            // when the store last took a question, or was to
  bool ending = false;

  void run();
  void answer(Question& question) const;
};

void PatientStore::Shared::answer(Question& question) const {
  try {
    if (!question.text.empty()) {
      store->set(question.key, bytes_in(question.text));
    } else if (store->check({question.key})) {
      const auto bytes = store->get(question.key);
      question.answer.assign(bytes.begin(), bytes.end());
    }
  } catch (const std::exception&) {  // it went down with the rank that kept it
    question.error = std::current_exception();
  }
}

void PatientStore::Shared::run() {
  Lock lock(mutex);
  for (;;) {
    changed.wait(lock, [&] { return ending || !waiting.empty(); });
    if (ending) return;
    const auto question = std::move(waiting.front());
    waiting.pop_front();
    busy = true;
    since = StoreClock::now();
    lock.unlock();
    answer(*question);
    lock.lock();
    busy = false;
    if (question->error && !failure) failure = question->error;
    question->done = true;
    question->when = since = StoreClock::now();
    changed.notify_all();
  }
}

PatientStore::PatientStore(c10::intrusive_ptr<c10d::Store> store)
    : shared_(std::make_shared<Shared>(std::move(store))) {}

PatientStore::~PatientStore() {
  if (!thread_.joinable()) return;
  bool is_in_store = false;
  {
    const Lock lock(shared_->mutex);
    shared_->ending = true;
    is_in_store = shared_->busy;
  }
  shared_->changed.notify_all();
  if (is_in_store) {
    thread_.detach();
  } else {
    thread_.join();
  }
}

std::shared_ptr<PatientStore::Question> PatientStore::ask(Lock&, const std::string& key,
                                                          const std::string& text) {
  const auto question = std::make_shared<Question>(Question{key, text});
  if (shared_->waiting.empty() && !shared_->busy) shared_->since = StoreClock::now();
  shared_->waiting.push_back(question);
  if (!thread_.joinable()) thread_ = std::thread([shared = shared_] { shared->run(); });
  shared_->changed.notify_all();
  return question;
}

// A store that has been silent for long enough is not waited for again.
void PatientStore::wait_for(Lock& lock, const Question& question) {
  while (!question.done && StoreClock::now() < shared_->since + kAnswer) {
    shared_->changed.wait_until(lock, shared_->since + kAnswer);
  }
}

bool PatientStore::is_gone() const {
  const Lock lock(shared_->mutex);
  return shared_->failure != nullptr;
}

std::string PatientStore::look(const std::string& key) {
  Lock lock(shared_->mutex);
  if (shared_->failure) return "";
  auto& known = shared_->looks[key];
  if (!known || known->is_stale()) known = ask(lock, key, "");
  const auto question = known;
  wait_for(lock, *question);
  if (!question->done) return "";
  const auto found = shared_->looks.find(key);
  if (found != shared_->looks.end() && found->second == question) shared_->looks.erase(found);
  return question->answer;
}

void PatientStore::put(const std::string& key, const std::string& text) {
  Lock lock(shared_->mutex);
  if (shared_->failure) std::rethrow_exception(shared_->failure);
  const auto question = ask(lock, key, text);
  wait_for(lock, *question);
  if (question->done && question->error) std::rethrow_exception(question->error);
}

}  // namespace tefl::ccl
