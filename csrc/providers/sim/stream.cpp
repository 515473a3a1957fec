#include "stream.h"

#include <pthread.h>
#include <signal.h>

#include <array>
#include <thread>

#include "config.h"
#include "device.h"
#include "error.h"
#include "faults.h"
#include "tables.h"

namespace tefl_sim {

// ------------------------------------------------------------------------------------------------- marks --

void Mark::reach() {
  const std::lock_guard<std::mutex> lock(mutex_);
  time_ = std::chrono::steady_clock::now();
  changed_.notify_all();
}

bool Mark::reached() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return time_.has_value();
}

void Mark::wait() const {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return time_.has_value(); });
}

std::chrono::steady_clock::time_point Mark::time() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return time_.value();
}

// ------------------------------------------------------------------------------------------------ stream --

void Stream::enqueue(Task task, std::string what) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (closed_) invalid("the stream was destroyed");
  if (!started_) start();
  queue_.push_back({std::move(task), std::move(what)});
  ++enqueued_;
  arrived_.notify_one();
}

std::shared_ptr<Mark> Stream::mark() {
  auto mark = std::make_shared<Mark>();
  enqueue([mark] { mark->reach(); });
  return mark;
}

bool Stream::idle() const {
  return completed_.load(std::memory_order_acquire) >= enqueued_.load(std::memory_order_acquire);
}

void Stream::wait() const {
  const uint64_t target = enqueued_.load(std::memory_order_acquire);
  if (completed_.load(std::memory_order_acquire) >= target) return;
  std::unique_lock<std::mutex> lock(mutex_);
  done_.wait(lock, [this, target] { return completed_ >= target; });
}

std::optional<std::string> Stream::take_error() {
  if (!failed_.load(std::memory_order_acquire)) return std::nullopt;
  const std::lock_guard<std::mutex> lock(mutex_);
  failed_ = false;
  return std::exchange(error_, std::nullopt);
}

std::string Stream::describe() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return doing_;
}

void Stream::close() {
  const std::lock_guard<std::mutex> lock(mutex_);
  closed_ = true;
  arrived_.notify_one();
}

// The thread is detached and holds its stream: a process may end with streams alive, and nobody joins it. It
// takes no signals, which are the host program's.
void Stream::start() {
  sigset_t every, before;
  sigfillset(&every);
  pthread_sigmask(SIG_SETMASK, &every, &before);
  try {
    std::thread([self = shared_from_this()] { self->work(); }).detach();
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  started_ = true;
}

void Stream::work() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    arrived_.wait(lock, [this] { return closed_ || !queue_.empty(); });
    if (queue_.empty()) return;
    Task task = std::move(queue_.front().task);
    doing_ = std::move(queue_.front().what);
    queue_.pop_front();
    lock.unlock();
    run(task);
    task = nullptr;  // what the task holds goes before its end is seen
    lock.lock();
    doing_.clear();
    ++completed_;
    done_.notify_all();
  }
}

void Stream::run(const Task& task) {
  try {
    task();
  } catch (const std::exception& error) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!error_) error_ = error.what();
    failed_ = true;
  }
}

// ----------------------------------------------------------------------------------------------- the ABI --

namespace {

constexpr int32_t kLeastPriority = 0;
constexpr int32_t kGreatestPriority = -3;

// By device, null beyond the last. They live as long as the process, and are found without a lock.
std::array<std::atomic<Stream*>, kMaxDevices> g_default_streams{};

tefl_status stream_priority_range(int32_t device, int32_t* least, int32_t* greatest) {
  return guarded(Call::kStreamPriorityRange, [&] {
    check_device(device);
    *least = kLeastPriority;
    *greatest = kGreatestPriority;
  });
}

tefl_status stream_create(int32_t device, int32_t priority, tefl_stream* stream) {
  return guarded(Call::kStreamCreate, [&] {
    check_device(device);
    if (priority > kLeastPriority || priority < kGreatestPriority) {
      invalid("priority " + std::to_string(priority) + " is outside " + std::to_string(kGreatestPriority) +
              " .. " + std::to_string(kLeastPriority));
    }
    *stream = streams().add(std::make_shared<Stream>(device, priority));
  });
}

tefl_status stream_destroy(tefl_stream stream) {
  return guarded(Call::kStreamDestroy, [&] {
    if (default_stream_of(stream) != nullptr) invalid("a default stream is never destroyed");
    streams().remove(stream)->close();
  });
}

tefl_status stream_default(int32_t device, tefl_stream* stream) {
  return guarded(Call::kStreamDefault, [&] {
    check_device(device);
    *stream = reinterpret_cast<tefl_stream>(g_default_streams[static_cast<size_t>(device)].load());
  });
}

tefl_status stream_query(tefl_stream stream) {
  return guarded(Call::kStreamQuery, [&]() -> tefl_status {
    const bool idle = with_stream(stream, [](const Stream& found) { return found.idle(); });
    return idle ? TEFL_OK : TEFL_NOT_READY;
  });
}

tefl_status stream_synchronize(tefl_stream stream) {
  return guarded([&] {
    with_stream(stream, [](Stream& found) {
      found.wait();
      raise_error(found);
    });
    fail_if_due(Call::kStreamSynchronize);  // as a device fails, after the wait: the caller may free memory
  });
}

tefl_status stream_describe(tefl_stream stream, char* text, size_t bytes) {
  return guarded([&] {
    const std::string doing = with_stream(stream, [](const Stream& found) { return found.describe(); });
    text[doing.copy(text, bytes - 1)] = '\0';
  });
}

[[noreturn]] void never_end() {
  while (true) std::this_thread::sleep_for(std::chrono::hours(1));
}

}  // namespace

Registry<tefl_stream, Stream>& streams() {
  static auto* registry = new Registry<tefl_stream, Stream>("stream");
  return *registry;
}

Stream* default_stream_of(tefl_stream handle) noexcept {
  for (const auto& known : g_default_streams) {
    Stream* stream = known.load(std::memory_order_acquire);
    if (stream == nullptr || reinterpret_cast<tefl_stream>(stream) == handle) return stream;
  }
  return nullptr;
}

void raise_error(Stream& stream) {
  if (const auto error = stream.take_error()) throw Failure(TEFL_ERR_DEVICE, *error);
}

void enqueue_operation(Stream& stream, Call call, Stream::Task task, std::string what) {
  if (fault_is_due(Call::kHang)) {
    task = never_end;
  } else if (fault_is_due(call)) {
    task = [what] { throw Failure(TEFL_ERR_DEVICE, what + " failed: a fault injected by TEFL_SIM_FAULTS"); };
  }
  stream.enqueue(std::move(task), std::move(what));
}

void create_default_streams(int32_t device_count) {
  for (int32_t device = 0; device < device_count; ++device) {
    auto stream = std::make_shared<Stream>(device, 0);
    g_default_streams[static_cast<size_t>(device)] = stream.get();
    streams().add(std::move(stream));
  }
}

void fill_streams(tefl_runtime& table) {
  table.stream_priority_range = stream_priority_range;
  table.stream_create = stream_create;
  table.stream_destroy = stream_destroy;
  table.stream_default = stream_default;
  table.stream_query = stream_query;
  table.stream_synchronize = stream_synchronize;
  table.stream_describe = stream_describe;
}

}  // namespace tefl_sim
