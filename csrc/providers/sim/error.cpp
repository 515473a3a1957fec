#include "error.h"

#include <pthread.h>

#include <atomic>

namespace tefl_sim {
namespace {

thread_local std::string t_message;
std::atomic<bool> g_forked{false};

}  // namespace

tefl_status fail(tefl_status status, const std::string& message) noexcept {
  try {
    t_message = message;
  } catch (const std::bad_alloc&) {
    t_message.clear();
  }
  return status;
}

const char* last_error() noexcept { return t_message.c_str(); }

bool forked() noexcept { return g_forked.load(std::memory_order_relaxed); }

void remember_forks() {
  pthread_atfork(nullptr, nullptr, [] { g_forked.store(true); });
}

}  // namespace tefl_sim
