#include "error.h"

namespace tefl_cuda {
namespace {

thread_local std::string t_message;

}  // namespace

tefl_status fail(tefl_status status, const char* message) noexcept {
  try {
    t_message = message;
  } catch (const std::bad_alloc&) {
    t_message.clear();
  }
  return status;
}

const char* last_error() noexcept { return t_message.c_str(); }

}  // namespace tefl_cuda
