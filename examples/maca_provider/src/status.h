// status.h: C++ errors on our side of the boundary, statuses and messages on tefl's.
//
// Inside this library a function that cannot do its work throws Error. No exception may cross into tefl, so
// every function that tefl calls has its body wrapped in `guarded`, which is the only place that catches.
#pragma once

#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "tefl_provider.h"

namespace maca {

/// A failure that tefl shall see as `status`, with `what()` as its message.
struct Error : std::runtime_error {
  Error(tefl_status status, const std::string& message) : std::runtime_error(message), status(status) {}
  const tefl_status status;
};

/// Throws TEFL_ERR_INVALID unless `holds`: for what the caller got wrong.
inline void require(bool holds, const char* message) {
  if (!holds) throw Error(TEFL_ERR_INVALID, message);
}

/// The calling thread's message. One for each thread, because tefl calls from any thread without a lock.
inline std::string& message_of_this_thread() {
  thread_local std::string message;
  return message;
}

inline tefl_status report(tefl_status status, const char* message) noexcept {
  try {
    message_of_this_thread() = message;
  } catch (const std::bad_alloc&) {
    message_of_this_thread().clear();  // no memory for the words; the status still says what happened
  }
  return status;
}

/// Runs `body` and turns what it throws into a status. A body returns nothing (then TEFL_OK), or a
/// tefl_status.
template <class Body>
tefl_status guarded(Body body) noexcept {
  try {
    if constexpr (std::is_void_v<decltype(body())>) {
      body();
      return TEFL_OK;
    } else {
      return body();
    }
  } catch (const Error& error) {
    return report(error.status, error.what());
  } catch (const std::bad_alloc&) {
    return report(TEFL_ERR_OUT_OF_MEMORY, "the host has no memory left");
  } catch (const std::exception& error) {
    return report(TEFL_ERR_INTERNAL, error.what());
  } catch (...) {
    return report(TEFL_ERR_INTERNAL, "unknown failure inside the maca library");
  }
}

}  // namespace maca
