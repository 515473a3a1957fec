#include "faults.h"

#include <array>
#include <atomic>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "config.h"

namespace tefl_sim {
namespace {

constexpr const char* kCallNames[] = {
    "device_properties",
    "device_synchronize",
    "malloc",
    "free",
    "memory_info",
    "host_malloc",
    "host_free",
    "memcpy_async",
    "memset_async",
    "stream_priority_range",
    "stream_create",
    "stream_destroy",
    "stream_default",
    "stream_query",
    "stream_synchronize",
    "stream_wait_event",
    "event_create",
    "event_destroy",
    "event_record",
    "event_query",
    "event_synchronize",
    "event_elapsed_ms",
    "module_load",
    "module_unload",
    "module_function",
    "",
    "memcpy",
    "memset",
    "launch",
    "hang",
};
constexpr size_t kCalls = std::size(kCallNames);
constexpr const char* kVariable = "TEFL_SIM_FAULTS";
constexpr const char* kWanted =
    "want function:n separated by commas, such as malloc:100,stream_synchronize:3*: the function's n-th call "
    "fails, with a * every n-th; functions are those of tefl_provider.h but init, device_count, "
    "set_current_device, stream_describe, host_access_begin, host_access_end and the collectives, and "
    "memcpy, memset, launch (fail when the stream gets there) and hang";

struct Rule {
  uint64_t call = 0;
  bool every = false;

  bool meets(uint64_t count) const { return every ? count % call == 0 : count == call; }
};

struct Site {
  std::vector<Rule> rules;  // written by configure_faults alone
  std::atomic<uint64_t> calls{0};
};

std::array<Site, kCalls>& sites() {
  static auto* all = new std::array<Site, kCalls>;  // never destroyed: streams may be at work
  return *all;
}

std::atomic<bool> g_any{false};

// "stream_sync" is short for "stream_synchronize".
size_t call_named(std::string_view name) {
  for (size_t i = 0; i < kCalls; ++i) {
    const std::string_view known = kCallNames[i];
    const bool is_short =
        name.size() > 4 && name.substr(name.size() - 4) == "sync" && std::string(name) + "hronize" == known;
    if (!name.empty() && (name == known || is_short)) return i;
  }
  bad_value(kVariable, std::getenv(kVariable), kWanted);
}

void read_rule(std::string_view text) {
  const size_t colon = text.find(':');
  if (colon == std::string_view::npos) bad_value(kVariable, std::getenv(kVariable), kWanted);
  Site& site = sites()[call_named(text.substr(0, colon))];
  std::string_view digits = text.substr(colon + 1);
  const bool every = !digits.empty() && digits.back() == '*';
  if (every) digits.remove_suffix(1);
  const auto number = whole_number(digits);
  if (!number || *number == 0) bad_value(kVariable, std::getenv(kVariable), kWanted);
  site.rules.push_back({*number, every});
}

tefl_status status_of(Call call) {
  switch (call) {
    case Call::kMalloc:
    case Call::kHostMalloc:
      return TEFL_ERR_OUT_OF_MEMORY;
    case Call::kDeviceSynchronize:
    case Call::kStreamSynchronize:
    case Call::kEventSynchronize:
      return TEFL_ERR_DEVICE;
    default:
      return TEFL_ERR_INTERNAL;
  }
}

}  // namespace

void configure_faults() {
  for (Site& site : sites()) site.rules.clear();
  const char* text = std::getenv(kVariable);
  std::string_view rest = text != nullptr ? text : "";
  const bool any = !rest.empty();
  for (bool more = any; more;) {
    const size_t comma = rest.find(',');
    read_rule(rest.substr(0, comma));
    more = comma != std::string_view::npos;
    if (more) rest.remove_prefix(comma + 1);
  }
  g_any.store(any, std::memory_order_release);
}

bool fault_is_due(Call call) noexcept {
  if (!g_any.load(std::memory_order_acquire)) return false;
  Site& site = sites()[static_cast<size_t>(call)];
  if (site.rules.empty()) return false;
  const uint64_t count = ++site.calls;
  for (const Rule& rule : site.rules) {
    if (rule.meets(count)) return true;
  }
  return false;
}

void fail_if_due(Call call) {
  if (!fault_is_due(call)) return;
  throw Failure(status_of(call), std::string("a fault injected by TEFL_SIM_FAULTS into ") +
                                     kCallNames[static_cast<size_t>(call)]);
}

}  // namespace tefl_sim
