// The loaded provider: opening a library, judging its table, and turning its statuses into PyTorch's errors.
#pragma once

#include <string>
#include <vector>

#include "tefl_provider.h"

namespace tefl::device {

/// What is wrong with a provider's library, and what its vendor or user can do about it.
struct Defect {
  std::string what;
  std::string remedy;
};

/// The outcome of opening a library: a usable table, or every defect found. Touches nothing of torch.
struct LoadResult {
  const tefl_provider* table = nullptr;  // set only where `defects` is empty
  std::vector<Defect> defects;
  std::string name;  // the provider's own where it could be read and is a good one, whatever else is wrong
};

/// Opens `path` and checks entry symbol, ABI version, sizes, names and mandatory functions. Never throws.
LoadResult load_provider(const std::string& path);

/// Makes `table` the process's provider, shown to users as `device_name`. Called once, by claim().
void set_active(const tefl_provider* table, std::string device_name);

/// The claimed provider and the device's public name. Only after claim().
const tefl_provider& active();
const tefl_runtime& runtime();
const std::string& device_name();
bool is_active();

/// Throws where `status` is an error: torch.OutOfMemoryError's C++ type for TEFL_ERR_OUT_OF_MEMORY, else a
/// c10::Error. The message reads "<device name>: <function> failed: <the provider's message>".
void check(tefl_status status, const char* function);

/// What the provider says of the calling thread's last failure, of `status`; "status 5" where it says
/// nothing.
std::string provider_reason(tefl_status status);

/// Throws that error, `detail` in the place of the provider's message.
[[noreturn]] void throw_status(tefl_status status, const char* function, const std::string& detail);

/// Starts the provider's runtime on first use, once for the process, from any thread. Throws in a child that
/// was forked after the runtime had started, with the advice CUDA gives.
void ensure_initialized();
bool is_initialized();
/// What PyTorch calls to start the runtime, on one thread at a time and until it succeeds. Everybody else
/// calls ensure_initialized(), which goes through PyTorch: it takes no host memory for pinned before it has
/// started the device itself.
void start_runtime();
/// Whether this process was forked from one whose runtime had started.
bool in_bad_fork();

}  // namespace tefl::device
