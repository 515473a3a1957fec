#include "device/provider.h"

#include <ATen/Context.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>
#include <pthread.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "device/shared.h"

namespace tefl::device {
namespace {

// ------------------------------------------------------------------------------------ judging a library --

// A function that a table must hold: where it lies, and what to call it.
struct Field {
  const char* name;
  size_t offset;
};

#define TEFL_FIELD(table, member) \
  Field { #member, offsetof(table, member) }

constexpr Field kRuntimeFields[] = {
    TEFL_FIELD(tefl_runtime, init),
    TEFL_FIELD(tefl_runtime, device_count),
    TEFL_FIELD(tefl_runtime, device_properties),
    TEFL_FIELD(tefl_runtime, device_synchronize),
    TEFL_FIELD(tefl_runtime, malloc),
    TEFL_FIELD(tefl_runtime, free),
    TEFL_FIELD(tefl_runtime, memory_info),
    TEFL_FIELD(tefl_runtime, memcpy_async),
    TEFL_FIELD(tefl_runtime, memset_async),
    TEFL_FIELD(tefl_runtime, stream_priority_range),
    TEFL_FIELD(tefl_runtime, stream_create),
    TEFL_FIELD(tefl_runtime, stream_destroy),
    TEFL_FIELD(tefl_runtime, stream_default),
    TEFL_FIELD(tefl_runtime, stream_query),
    TEFL_FIELD(tefl_runtime, stream_synchronize),
    TEFL_FIELD(tefl_runtime, stream_wait_event),
    TEFL_FIELD(tefl_runtime, event_create),
    TEFL_FIELD(tefl_runtime, event_destroy),
    TEFL_FIELD(tefl_runtime, event_record),
    TEFL_FIELD(tefl_runtime, event_query),
    TEFL_FIELD(tefl_runtime, event_synchronize),
    TEFL_FIELD(tefl_runtime, event_elapsed_ms),
};

constexpr Field kLaunchFields[] = {
    TEFL_FIELD(tefl_launch, module_load),
    TEFL_FIELD(tefl_launch, module_unload),
    TEFL_FIELD(tefl_launch, module_function),
    TEFL_FIELD(tefl_launch, launch),
};

constexpr Field kCclFields[] = {
    TEFL_FIELD(tefl_ccl, get_unique_id),  TEFL_FIELD(tefl_ccl, init_rank),   TEFL_FIELD(tefl_ccl, all_reduce),
    TEFL_FIELD(tefl_ccl, reduce),         TEFL_FIELD(tefl_ccl, broadcast),   TEFL_FIELD(tefl_ccl, all_gather),
    TEFL_FIELD(tefl_ccl, reduce_scatter), TEFL_FIELD(tefl_ccl, all_to_all),  TEFL_FIELD(tefl_ccl, send),
    TEFL_FIELD(tefl_ccl, recv),           TEFL_FIELD(tefl_ccl, group_start), TEFL_FIELD(tefl_ccl, group_end),
    TEFL_FIELD(tefl_ccl, async_error),    TEFL_FIELD(tefl_ccl, abort),       TEFL_FIELD(tefl_ccl, destroy),
};

// The part of `tefl_provider` without which nothing can be said about the rest.
constexpr size_t kSmallestProvider = offsetof(tefl_provider, launch);

// A copy of a vendor's table as long as ours, with NULL in every field that the vendor's does not have: past
// this file nobody need ask how long a table is. Lives as long as the process.
template <typename Table>
const Table* normalised(const Table* table) {
  auto* copy = new Table{};
  std::memcpy(copy, table, std::min(table->size, sizeof(Table)));
  copy->size = sizeof(Table);
  return copy;
}

class Judge {
 public:
  explicit Judge(std::string path) : path_(std::move(path)) {}

  LoadResult run() {
    if (const tefl_provider* raw = table()) {
      if (check_version(*raw)) check_contents(*raw);
      if (result_.defects.empty()) result_.table = complete(*raw);
    }
    return std::move(result_);
  }

 private:
  void defect(std::string what, std::string remedy) {
    result_.defects.push_back({std::move(what), std::move(remedy)});
  }

  const tefl_provider* table() {
    struct stat facts;
    if (path_.find('/') != std::string::npos && stat(path_.c_str(), &facts) != 0) {
      defect("no provider library at '" + path_ + "'", "check the path, or build the provider");
      return nullptr;
    }
    void* library = dlopen(path_.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      const char* reason = dlerror();
      defect(
          "the provider library cannot be loaded: " + std::string(reason ? reason : path_),
          "it must be a shared library for this machine whose own dependencies the loader finds (see ldd)");
      return nullptr;
    }
    auto get = reinterpret_cast<tefl_provider_get_fn>(dlsym(library, "tefl_provider_get"));
    if (get == nullptr) {
      defect("'" + path_ + "' has no symbol tefl_provider_get",
             "export it with TEFL_PROVIDER_EXPORT and C linkage, as tefl_provider.h declares it");
      return nullptr;
    }
    const tefl_provider* raw = get();
    if (raw == nullptr) {
      defect("tefl_provider_get of '" + path_ + "' returned NULL",
             "return a table that lives in static memory");
    }
    return raw;
  }

  // Whether the table is of our major version: if not, its fields mean something else and stay unread.
  bool check_version(const tefl_provider& raw) {
    constexpr size_t version_end = offsetof(tefl_provider, abi_minor) + sizeof(raw.abi_minor);
    if (raw.size >= version_end && raw.abi_major != TEFL_PROVIDER_ABI_MAJOR) {
      const bool older = raw.abi_major < TEFL_PROVIDER_ABI_MAJOR;
      defect("'" + path_ + "' was built for provider ABI " + std::to_string(raw.abi_major) + "." +
                 std::to_string(raw.abi_minor) + ", this tefl speaks " +
                 std::to_string(TEFL_PROVIDER_ABI_MAJOR) + "." + std::to_string(TEFL_PROVIDER_ABI_MINOR),
             older ? "rebuild the provider against the header in tefl.get_include()"
                   : "install a tefl that speaks the provider's ABI, or a provider for this one");
      return false;
    }
    if (raw.size < kSmallestProvider) {
      defect("tefl_provider.size is " + std::to_string(raw.size) + ", at least " +
                 std::to_string(kSmallestProvider) + " is needed",
             "set size to sizeof(tefl_provider)");
      return false;
    }
    return true;
  }

  void check_contents(const tefl_provider& raw) {
    const std::string name = raw.name ? raw.name : "";
    const bool good =
        !name.empty() && name.find_first_not_of("abcdefghijklmnopqrstuvwxyz_") == std::string::npos;
    if (good) {
      result_.name = name;
    } else {
      defect("tefl_provider.name is '" + name + "'", "use lower-case letters and underscores: [a-z_]+");
    }
    if (raw.version == nullptr) defect("tefl_provider.version is NULL", "set it to the provider's version");
    if (raw.last_error == nullptr) {
      defect("tefl_provider.last_error is NULL", "return the calling thread's message, \"\" for none");
    }
    if (raw.alias < TEFL_ALIAS_NONE || raw.alias > TEFL_ALIAS_CUDA) {
      defect("tefl_provider.alias is " + std::to_string(raw.alias) + ", which is no tefl_alias",
             "use TEFL_ALIAS_NONE, TEFL_ALIAS_CPU or TEFL_ALIAS_CUDA");
    }
    check_runtime(raw.runtime);
    if (has_field(raw, offsetof(tefl_provider, launch)) && raw.launch != nullptr) {
      check_fields("tefl_launch", raw.launch, raw.launch->size, kLaunchFields,
                   "implement it, or set tefl_provider.launch to NULL if the device runs no binaries");
    }
    if (has_field(raw, offsetof(tefl_provider, ccl)) && raw.ccl != nullptr) {
      check_fields("tefl_ccl", raw.ccl, raw.ccl->size, kCclFields,
                   "implement it, or set tefl_provider.ccl to NULL: collectives then go by the alias device");
    }
  }

  // Whether the provider was compiled against a header that had the pointer at `offset` already.
  static bool has_field(const tefl_provider& raw, size_t offset) {
    return raw.size >= offset + sizeof(void*);
  }

  void check_runtime(const tefl_runtime* runtime) {
    if (runtime == nullptr) {
      defect("tefl_provider.runtime is NULL", "fill in a tefl_runtime: it is mandatory");
      return;
    }
    check_fields("tefl_runtime", runtime, runtime->size, kRuntimeFields, "implement it: it is mandatory");
    check_pair(*runtime, TEFL_FIELD(tefl_runtime, host_malloc), TEFL_FIELD(tefl_runtime, host_free));
    check_pair(*runtime, TEFL_FIELD(tefl_runtime, host_access_begin),
               TEFL_FIELD(tefl_runtime, host_access_end));
  }

  // Functions that are of no use without each other; `second` comes later in the table.
  void check_pair(const tefl_runtime& runtime, const Field& first, const Field& second) {
    if (is_there(runtime, first) == is_there(runtime, second)) return;
    defect(std::string("tefl_runtime has only one of ") + first.name + " and " + second.name,
           "implement both or neither");
  }

  static bool is_there(const tefl_runtime& runtime, const Field& field) {
    void* value = nullptr;
    if (field.offset + sizeof(value) > runtime.size) return false;
    std::memcpy(&value, reinterpret_cast<const char*>(&runtime) + field.offset, sizeof(value));
    return value != nullptr;
  }

  template <size_t N>
  void check_fields(const char* table, const void* base, size_t size, const Field (&fields)[N],
                    const std::string& remedy) {
    for (const Field& field : fields) {
      const std::string what = std::string(table) + "." + field.name;
      if (field.offset + sizeof(void*) > size) {
        defect(what + " is missing: the table's size is " + std::to_string(size),
               "set size to sizeof(" + std::string(table) + ") and " + remedy);
        continue;
      }
      void* value = nullptr;
      std::memcpy(&value, static_cast<const char*>(base) + field.offset, sizeof(value));
      if (value == nullptr) defect(what + " is NULL", remedy);
    }
  }

  static const tefl_provider* complete(const tefl_provider& raw) {
    auto* table = const_cast<tefl_provider*>(normalised(&raw));
    table->runtime = normalised(table->runtime);
    if (table->launch != nullptr) table->launch = normalised(table->launch);
    if (table->ccl != nullptr) table->ccl = normalised(table->ccl);
    return table;
  }

  std::string path_;
  LoadResult result_;
};

// ---------------------------------------------------------------------------------- the claimed provider --

// Never destroyed: streams and freed storages still ask for it while the process ends.
struct Active {
  const tefl_provider* table = nullptr;
  std::string device_name;
};
Active& active_slot() {
  static auto* slot = new Active;
  return *slot;
}

// A child forked from `kStarting` or `kStarted` cannot use the device: the runtime's threads and handles did
// not come along.
enum class State : int { kFresh, kStarting, kStarted, kForked };
std::atomic<State> g_state{State::kFresh};

void after_fork_in_child() {
  if (g_state.load() != State::kFresh) g_state.store(State::kForked);
}

}  // namespace

LoadResult load_provider(const std::string& path) { return Judge(path).run(); }

void set_active(const tefl_provider* table, std::string device_name) {
  TORCH_CHECK(!is_active(), "tefl: the device '", active_slot().device_name, "' is already claimed");
  active_slot() = {table, std::move(device_name)};
  pthread_atfork(nullptr, nullptr, after_fork_in_child);
}

const tefl_provider& active() {
  TORCH_CHECK(is_active(), "tefl: no device provider is claimed; set TEFL_PROVIDER or call ",
              "tefl.privateuse1.register_backend");
  return *active_slot().table;
}

const tefl_runtime& runtime() { return *active().runtime; }

const std::string& device_name() { return active_slot().device_name; }

bool is_active() { return active_slot().table != nullptr; }

void check(tefl_status status, const char* function) {
  if (C10_UNLIKELY(status != TEFL_OK)) throw_status(status, function, provider_reason(status));
}

std::string provider_reason(tefl_status status) {
  const char* reason = active().last_error();
  return reason != nullptr && *reason != '\0' ? reason : "status " + std::to_string(status);
}

void throw_status(tefl_status status, const char* function, const std::string& detail) {
  const std::string message = device_name() + ": " + function + " failed: " + detail;
  const c10::SourceLocation here = {__func__, __FILE__, static_cast<uint32_t>(__LINE__)};
  if (status == TEFL_ERR_OUT_OF_MEMORY) throw c10::OutOfMemoryError(here, message);
  // Python sees torch.AcceleratorError, which says that the device and not the caller is at fault.
  if (status == TEFL_ERR_DEVICE) throw c10::AcceleratorError(here, status, message);
  throw c10::Error(here, message);
}

void ensure_initialized() {
  if (C10_LIKELY(is_initialized())) return;
  TORCH_CHECK(!in_bad_fork(), "Cannot re-initialize ", device_name(), " in forked subprocess. To use ",
              device_name(), " with multiprocessing, you must use the 'spawn' start method");
  at::globalContext().lazyInitDevice(c10::kPrivateUse1);
}

void start_runtime() {
  g_state.store(State::kStarting);
  try {
    check(runtime().init(), "init");
    start_shared_runtime();
  } catch (...) {
    g_state.store(State::kFresh);
    throw;
  }
  g_state.store(State::kStarted);
}

bool is_initialized() { return g_state.load(std::memory_order_acquire) == State::kStarted; }

bool in_bad_fork() { return g_state.load(std::memory_order_acquire) == State::kForked; }

}  // namespace tefl::device
