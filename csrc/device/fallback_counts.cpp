#include "device/fallback_counts.h"

#include <map>
#include <mutex>
#include <set>

namespace tefl::device {
namespace {

struct Counts {
  std::mutex mutex;
  std::map<std::string, FallbackCount> by_op;
  std::set<std::string> noticed;
  std::function<void(const std::string&)> notice;
};

Counts& counts() {
  static auto* all = new Counts;  // never destroyed: it may hold a Python object, and threads outlive main
  return *all;
}

}  // namespace

void count_fallback(const std::string& op, uint64_t bytes_to_host, uint64_t bytes_to_device) {
  auto& [mutex, by_op, noticed, notice] = counts();
  {
    const std::lock_guard<std::mutex> lock(mutex);
    FallbackCount& count = by_op[op];
    count.op = op;
    ++count.calls;
    count.bytes_to_host += bytes_to_host;
    count.bytes_to_device += bytes_to_device;
    if (!noticed.insert(op).second || !notice) return;
  }
  notice(op);  // without the lock: it takes Python's
}

std::vector<FallbackCount> fallback_counts() {
  const std::lock_guard<std::mutex> lock(counts().mutex);
  std::vector<FallbackCount> all;
  for (const auto& [op, count] : counts().by_op) all.push_back(count);
  return all;
}

void reset_fallback_counts() {
  const std::lock_guard<std::mutex> lock(counts().mutex);
  counts().by_op.clear();
}

void on_first_fallback(std::function<void(const std::string&)> notice) {
  const std::lock_guard<std::mutex> lock(counts().mutex);
  counts().notice = std::move(notice);
}

}  // namespace tefl::device
