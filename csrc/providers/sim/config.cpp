#include "config.h"

#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include "error.h"

namespace tefl_sim {
namespace {

uint64_t unit_of(char suffix) {
  switch (suffix) {
    case 'K':
    case 'k':
      return uint64_t{1} << 10;
    case 'M':
    case 'm':
      return uint64_t{1} << 20;
    case 'G':
    case 'g':
      return uint64_t{1} << 30;
    default:
      return 1;
  }
}

constexpr const char* kChecked = "TEFL_SIM_CHECKED";
constexpr const char* kOpaque = "TEFL_SIM_OPAQUE";

bool is_on(const char* variable) {
  const char* text = std::getenv(variable);
  return text != nullptr && std::string_view(text) == "1";
}

void check_switch(const char* variable) {
  const char* text = std::getenv(variable);
  if (text == nullptr) return;
  const std::string_view value = text;
  if (!value.empty() && value != "0" && value != "1") bad_value(variable, text, "want 0 or 1");
}

}  // namespace

std::optional<uint64_t> whole_number(std::string_view text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

void bad_value(const char* variable, const char* text, const char* wanted) {
  invalid(std::string(variable) + "='" + text + "': " + wanted);
}

int32_t configured_devices() {
  const char* text = std::getenv("TEFL_SIM_DEVICES");
  if (text == nullptr || *text == '\0') return 2;
  const auto count = whole_number(text);
  if (!count || *count < 1 || *count > kMaxDevices)
    bad_value("TEFL_SIM_DEVICES", text, "want a whole number from 1 to 64");
  return static_cast<int32_t>(*count);
}

uint64_t configured_capacity() {
  const char* text = std::getenv("TEFL_SIM_CAPACITY");
  if (text == nullptr || *text == '\0') {
    return static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  }
  std::string_view digits = text;
  const uint64_t unit = unit_of(digits.back());
  if (unit != 1) digits.remove_suffix(1);
  const auto count = whole_number(digits);
  if (!count || *count == 0 || *count > UINT64_MAX / unit) {
    bad_value("TEFL_SIM_CAPACITY", text, "want a whole number of bytes above 0, or one with K, M or G");
  }
  return *count * unit;
}

Guarding configured_guarding() {
  if (is_on(kOpaque)) return Guarding::kOpaque;
  return is_on(kChecked) ? Guarding::kChecked : Guarding::kNone;
}

void check_guarding() {
  check_switch(kOpaque);
  check_switch(kChecked);
}

}  // namespace tefl_sim
