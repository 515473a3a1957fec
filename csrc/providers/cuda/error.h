// How the provider fails: functions inside it throw `Failure`, and the boundary turns that into a status and
// the calling thread's message.
#pragma once

#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "tefl_provider.h"

namespace tefl_cuda {

/// An error on its way to the boundary.
class Failure : public std::runtime_error {
 public:
  Failure(tefl_status status, const std::string& message) : std::runtime_error(message), status(status) {}
  const tefl_status status;
};

[[noreturn]] inline void invalid(const std::string& message) { throw Failure(TEFL_ERR_INVALID, message); }

/// Leaves `message` for the calling thread's `last_error` and returns `status`.
tefl_status fail(tefl_status status, const char* message) noexcept;
const char* last_error() noexcept;

/// Runs `body` (returning tefl_status or void) as the whole of a function of the ABI: nothing escapes it.
template <typename Body>
tefl_status guarded(Body&& body) noexcept {
  try {
    if constexpr (std::is_void_v<decltype(body())>) {
      body();
      return TEFL_OK;
    } else {
      return body();
    }
  } catch (const Failure& failure) {
    return fail(failure.status, failure.what());
  } catch (const std::bad_alloc&) {
    return fail(TEFL_ERR_OUT_OF_MEMORY, "the host has no memory left");
  } catch (const std::exception& error) {
    return fail(TEFL_ERR_INTERNAL, error.what());
  }
}

}  // namespace tefl_cuda
