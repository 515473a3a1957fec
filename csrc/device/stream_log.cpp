#include "device/stream_log.h"

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <unordered_set>

#include "device/current_device.h"
#include "device/provider.h"

namespace tefl::device {
namespace {

constexpr size_t kKept = 16;     // the last ones of each stream
constexpr size_t kSlots = 4096;  // streams that can be told apart; those beyond are not noted

struct Entry {
  std::atomic<const char*> what{nullptr}, name{nullptr};
  std::atomic<uint64_t> bytes{0};
};

struct Log {
  Log(c10::Stream stream, tefl_stream native) : stream(stream), native(native) {}

  const c10::Stream stream;
  const tefl_stream native;
  std::atomic<uint64_t> enqueued{0}, done{0};
  std::array<Entry, kKept> last;
};

// By the stream's handle, with open addressing. Streams are pooled and never go, and neither do their logs.
std::array<std::atomic<Log*>, kSlots> logs{};

size_t home_of(tefl_stream native) { return reinterpret_cast<uintptr_t>(native) / 64 % kSlots; }

// The log of `native`, else the slot where it would be.
std::pair<Log*, std::atomic<Log*>*> look_up(tefl_stream native) noexcept {
  for (size_t i = 0, at = home_of(native); i < kSlots; ++i, at = (at + 1) % kSlots) {
    Log* log = logs[at].load(std::memory_order_acquire);
    if (log == nullptr) return {nullptr, &logs[at]};
    if (log->native == native) return {log, nullptr};
  }
  return {nullptr, nullptr};
}

Log* log_of(c10::Stream stream, tefl_stream native) {
  while (true) {
    const auto [log, slot] = look_up(native);
    if (log != nullptr || slot == nullptr) return log;
    auto fresh = std::make_unique<Log>(stream, native);
    Log* nobody = nullptr;
    if (slot->compare_exchange_strong(nobody, fresh.get())) return fresh.release();
  }
}

std::string text_of(const Entry& entry) {
  const char* what = entry.what.load();
  const char* name = entry.name.load();
  std::string text = what != nullptr ? what : "";
  if (name != nullptr) text += std::string(" '") + name + "'";
  if (const uint64_t bytes = entry.bytes.load()) text += " (" + std::to_string(bytes) + " bytes)";
  return text;
}

bool is_busy(const Log& log) { return log.done < log.enqueued; }

std::string unfinished(const Log& log) {
  const uint64_t end = log.enqueued, begin = log.done;
  const uint64_t first = end - begin > kKept ? end - kKept : begin;
  std::string text = first > begin ? std::to_string(first - begin) + " earlier" : "";
  for (uint64_t i = first; i < end; ++i) text += (text.empty() ? "" : ", ") + text_of(log.last[i % kKept]);
  return text;
}

// "" where the provider does not say.
std::string provider_says(tefl_stream native) {
  char text[256] = "";
  const bool told = runtime().stream_describe != nullptr &&
                    runtime().stream_describe(native, text, sizeof(text)) == TEFL_OK;
  return told ? text : "";
}

}  // namespace

const char* interned(const std::string& text) {
  static auto* mutex = new std::mutex;
  static auto* texts = new std::unordered_set<std::string>;  // never destroyed: the logs point into it
  const std::lock_guard<std::mutex> lock(*mutex);
  return texts->insert(text).first->c_str();
}

void note_enqueued(c10::Stream stream, tefl_stream native, const char* what, const char* name,
                   uint64_t bytes) {
  Log* log = log_of(stream, native);
  if (log == nullptr) return;
  Entry& entry = log->last[log->enqueued.load(std::memory_order_relaxed) % kKept];
  entry.what.store(what, std::memory_order_relaxed);
  entry.name.store(name, std::memory_order_relaxed);
  entry.bytes.store(bytes, std::memory_order_relaxed);
  log->enqueued.fetch_add(1, std::memory_order_release);
}

uint64_t noted(tefl_stream native) noexcept {
  const Log* log = look_up(native).first;
  return log == nullptr ? 0 : log->enqueued.load(std::memory_order_acquire);
}

void note_done(tefl_stream native, uint64_t count) noexcept {
  Log* log = look_up(native).first;
  if (log == nullptr) return;
  uint64_t before = log->done.load(std::memory_order_relaxed);
  while (before < count && !log->done.compare_exchange_weak(before, count)) {
  }
}

std::string describe_stream(c10::Stream stream, tefl_stream native) {
  std::string text = c10::Device(stream.device()).str() +
                     (stream.id() == 0 ? ", default stream" : ", stream " + std::to_string(stream.id()));
  if (const auto doing = provider_says(native); !doing.empty()) text += "; it is at " + doing;
  const Log* log = look_up(native).first;
  if (log != nullptr && is_busy(*log)) {
    text += "; enqueued there and not known to be done: " + unfinished(*log);
  }
  return text;
}

std::string describe_busy_streams(c10::DeviceIndex index) {
  std::string text;
  for (const auto& slot : logs) {
    const Log* log = slot.load(std::memory_order_acquire);
    if (log == nullptr || !is_busy(*log)) continue;
    if (index >= 0 && log->stream.device_index() != index) continue;
    text += (text.empty() ? "" : " | ") + describe_stream(log->stream, log->native);
  }
  return text;
}

}  // namespace tefl::device
