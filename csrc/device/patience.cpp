#include "device/patience.h"

#include <atomic>
#include <sstream>

#include "device/provider.h"

namespace tefl::device {
namespace {

std::atomic<double> limit{0};

}  // namespace

double patience() noexcept { return limit.load(std::memory_order_relaxed); }

void set_patience(double seconds) noexcept { limit = seconds; }

void throw_timed_out(const char* what, double seconds, const std::string& where) {
  std::ostringstream text;
  text << "not done after " << seconds << " s: " << (where.empty() ? "nothing is known of its work" : where)
       << ". The work goes on or hangs, and its memory is in use: end the process, or wait again";
  throw_status(TEFL_ERR_DEVICE, what, text.str());
}

}  // namespace tefl::device
