/* tefl_provider.h: the whole contract between tefl and a vendor's device.
 *
 * A provider is one shared library that exports one C symbol, `tefl_provider_get`. tefl loads the library,
 * reads the table it returns, and makes a PyTorch device of it under the vendor's own name. This header is
 * plain C99 (and C++), needs nothing of PyTorch, and is all that a provider compiles against.
 *
 * Rules that hold for every function below, unless its comment says otherwise:
 *
 *   Errors      Return TEFL_OK or another tefl_status. With anything but TEFL_OK (and TEFL_NOT_READY),
 *               leave a message for the calling thread that `last_error` returns. Nothing may throw across
 *               the boundary.
 *   Threads     Every function may be called from any thread, several at once. There is no lock around
 *               the calls.
 *   Devices     Devices are 0 .. device_count-1. Every call names its device, or a handle that belongs to
 *               one.
 *   Streams     Work on one stream runs in the order of the calls. "Enqueues" means: returns without
 *               waiting.
 *   Ownership   Strings and tables that a provider returns belong to it and live as long as the process.
 *               Handles (stream, event, module) are opaque to tefl and live until their destroy function.
 *   Out values  Results go through the last pointer arguments, which are never NULL, and are written only
 *               with TEFL_OK.
 *   Process     The library is never unloaded. At process exit tefl frees nothing: no call arrives after
 *               the interpreter has begun to end.
 *
 * Versions: `abi_major` must equal TEFL_PROVIDER_ABI_MAJOR. Within a major version tables only grow at their
 * end, each table starts with its own size, and tefl reads no field past the size it is given: an older
 * provider runs under a newer tefl, and a newer one under an older tefl.
 */
#ifndef TEFL_PROVIDER_H_
#define TEFL_PROVIDER_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TEFL_PROVIDER_ABI_MAJOR 1
#define TEFL_PROVIDER_ABI_MINOR 1

#if defined(_WIN32)
#define TEFL_PROVIDER_EXPORT __declspec(dllexport)
#else
#define TEFL_PROVIDER_EXPORT __attribute__((visibility("default")))
#endif

/* ---------------------------------------------------------------------------------------------- values -- */

/* What a call came to. Out of memory and device errors are told apart, because tefl answers them apart: the
 * first is retried after cached memory is given back and then becomes torch.OutOfMemoryError, the second
 * means that work enqueued earlier failed and is never retried. */
typedef int32_t tefl_status;
enum {
  TEFL_OK = 0,
  TEFL_NOT_READY = 1,         /* stream_query, event_query: not done yet. Not an error, needs no message. */
  TEFL_ERR_INVALID = 2,       /* an argument is wrong: index out of range, NULL, unknown handle */
  TEFL_ERR_OUT_OF_MEMORY = 3, /* the device, or the host for host_malloc, has not that much free */
  TEFL_ERR_UNSUPPORTED = 4,   /* this device cannot do that */
  TEFL_ERR_DEVICE = 5,        /* earlier asynchronous work failed; the message names it */
  TEFL_ERR_INTERNAL = 6       /* anything else */
};

/* Where the device's memory can be computed on besides the device's own kernels. It decides how PyTorch's
 * operators run for which the vendor brings no kernel. */
typedef int32_t tefl_alias;
enum {
  TEFL_ALIAS_NONE = 0, /* nowhere else: operators run on copies of their operands in host memory */
  TEFL_ALIAS_CPU = 1,  /* on the host: an ordinary load or store through a device pointer works */
  TEFL_ALIAS_CUDA = 2  /* on an NVIDIA GPU, by the CUDA runtime PyTorch is linked to, same device indices */
};

/* The host, where a function takes "a device index or the host". */
#define TEFL_HOST (-1)

typedef struct tefl_stream_s* tefl_stream;
typedef struct tefl_event_s* tefl_event;
typedef struct tefl_module_s* tefl_module;
typedef struct tefl_function_s* tefl_function;
typedef struct tefl_comm_s* tefl_comm;

/* Filled in by `device_properties`. tefl sets `size` before the call; write no field past it. */
typedef struct tefl_device_properties {
  size_t size;
  char name[128];        /* shown by torch.<name>.get_device_name(), zero-terminated */
  uint64_t total_memory; /* bytes */
  int32_t arch_major;    /* architecture number, compared with an OpImpl's min_arch; 0, 0 if none */
  int32_t arch_minor;
  int32_t multiprocessor_count; /* independent compute units; 1 if the notion does not apply */
} tefl_device_properties;

/* --------------------------------------------------------------------------------------------- runtime -- */

/* Devices, memory, streams, events. Mandatory, but for the functions marked optional, which may be NULL. */
typedef struct tefl_runtime {
  size_t size; /* sizeof(tefl_runtime) as the provider was compiled */

  /* Start the runtime. Called once, before any other function of this table but `device_count`, on the first
   * use of the device; never on import and never in a process that only parses or prints a device. */
  tefl_status (*init)(void);

  /* How many devices this process sees. Must work before `init` and must not start the runtime, open the
   * device or otherwise spoil a later fork. */
  tefl_status (*device_count)(int32_t* count);

  tefl_status (*device_properties)(int32_t device, tefl_device_properties* properties);

  /* Optional. The calling thread's current device becomes `device`, for a vendor library that has the notion
   * and is called by the vendor's own implementations. tefl keeps the current device itself and names it in
   * every call; NULL means that the vendor's side has no such state. */
  tefl_status (*set_current_device)(int32_t device);

  /* Wait until everything enqueued on `device` is done, on all its streams. Reports an asynchronous error as
   * TEFL_ERR_DEVICE once. */
  tefl_status (*device_synchronize)(int32_t device);

  /* Allocate `bytes` > 0 of device memory, aligned to at least 64 bytes and uninitialised. `*pointer` is what
   * tensor.data_ptr() shows. Interior pointers, `*pointer` + n, are passed to the copy functions. */
  tefl_status (*malloc)(int32_t device, size_t bytes, void** pointer);

  /* Give memory back. The provider makes sure that work enqueued before this call may still use it: by
   * waiting, as cudaFree does, or by freeing in stream order. `pointer` is exactly what `malloc` returned. */
  tefl_status (*free)(int32_t device, void* pointer);

  /* Bytes free and in all on `device`, now. */
  tefl_status (*memory_info)(int32_t device, uint64_t* free_bytes, uint64_t* total_bytes);

  /* Optional, both or neither. Host memory from which copies to the device may be asynchronous ("pinned"),
   * aligned to at least 64 bytes. NULL: pageable host memory is as good, or no copy is asynchronous. */
  tefl_status (*host_malloc)(size_t bytes, void** pointer);
  tefl_status (*host_free)(void* pointer);

  /* Enqueue on `stream` a copy of `bytes` bytes from `source` on `source_device` to `destination` on
   * `destination_device`; either may be TEFL_HOST, both may be devices, the same one or two. The ranges do
   * not overlap. The stream belongs to one of the devices named. Host memory stays valid until the copy is
   * done: tefl synchronises the stream before it releases pageable host memory. */
  tefl_status (*memcpy_async)(void* destination, int32_t destination_device, const void* source,
                              int32_t source_device, size_t bytes, tefl_stream stream);

  /* Enqueue on `stream`: set `bytes` bytes on the stream's device to `value`. */
  tefl_status (*memset_async)(void* pointer, uint8_t value, size_t bytes, tefl_stream stream);

  /* The range of priorities `stream_create` takes: `*least` >= `*greatest`, smaller is more urgent, 0 lies in
   * it. A device without priorities says 0, 0. */
  tefl_status (*stream_priority_range)(int32_t device, int32_t* least, int32_t* greatest);

  /* A new stream on `device`. tefl creates a bounded pool for each device and keeps it. */
  tefl_status (*stream_create)(int32_t device, int32_t priority, tefl_stream* stream);
  tefl_status (*stream_destroy)(tefl_stream stream);

  /* The stream that work goes to where nobody chose one. It exists always; never destroyed by tefl. It gives
   * no ordering towards other streams: where two streams must meet, tefl records and waits for an event. */
  tefl_status (*stream_default)(int32_t device, tefl_stream* stream);

  /* TEFL_OK when all work enqueued so far is done, TEFL_NOT_READY when not. */
  tefl_status (*stream_query)(tefl_stream stream);

  /* Wait until all work enqueued so far is done. Reports an asynchronous error as TEFL_ERR_DEVICE once. */
  tefl_status (*stream_synchronize)(tefl_stream stream);

  /* Enqueue on `stream` a wait for `event`, which may belong to another device. An event never recorded
   * counts as done. What counts is the event's last `event_record` before this call. */
  tefl_status (*stream_wait_event)(tefl_stream stream, tefl_event event);

  /* A new event on `device`; `timing` != 0 if `event_elapsed_ms` will be asked. */
  tefl_status (*event_create)(int32_t device, int32_t timing, tefl_event* event);

  /* May be called while waits for the event are still enqueued; they keep what they need. */
  tefl_status (*event_destroy)(tefl_event event);

  /* Enqueue on `stream`: mark `event` done. Recording again moves the event. */
  tefl_status (*event_record)(tefl_event event, tefl_stream stream);

  /* TEFL_OK when done or never recorded, TEFL_NOT_READY when not. */
  tefl_status (*event_query)(tefl_event event);
  tefl_status (*event_synchronize)(tefl_event event);

  /* Milliseconds from `start` to `end`, both done and created with timing on one device. */
  tefl_status (*event_elapsed_ms)(tefl_event start, tefl_event end, double* milliseconds);

  /* Since 1.1. Optional, both or neither; asked of devices with TEFL_ALIAS_CPU only. "begin": the host is
   * about to load from and store to `bytes` bytes from `pointer` on, which lie in one allocation of `device`,
   * and the work that might still write them was waited for. "end": it has done so. tefl puts them around all
   * that the host does to device memory in place: PyTorch's CPU kernels, and tensors that as_alias() gives,
   * for as long as those live. Sections nest and overlap, in one thread and in several; each begin is
   * followed by one end with the same arguments, perhaps from another thread. A device that needs caches
   * flushed around host access does it here, and one that guards its memory against stray access opens it.
   * NULL: nothing of the kind. */
  tefl_status (*host_access_begin)(int32_t device, void* pointer, size_t bytes);
  tefl_status (*host_access_end)(int32_t device, void* pointer, size_t bytes);

  /* Since 1.1. Optional. Write into `text`, which has room for `bytes` > 0 bytes, what `stream` is doing now,
   * as a zero-terminated string cut to that room: "kernel 'scale'", "" where it is idle. For the error that
   * tells a user what a wait was given up on; must not wait itself. */
  tefl_status (*stream_describe)(tefl_stream stream, char* text, size_t bytes);
} tefl_runtime;

/* ---------------------------------------------------------------------------------------------- launch -- */

/* Optional: run compiled kernels. Without it, tefl's Triton and binary kernels are unavailable on the device,
 * and `tefl.explain` says so. All functions are mandatory in a table that is there. */
typedef struct tefl_launch {
  size_t size; /* sizeof(tefl_launch) as the provider was compiled */

  /* Load a binary of whatever format the device takes. The bytes may be freed after the call. */
  tefl_status (*module_load)(int32_t device, const void* image, size_t bytes, tefl_module* module);
  tefl_status (*module_unload)(tefl_module module);

  /* The function of that name; it lives as long as its module. TEFL_ERR_INVALID where there is none. */
  tefl_status (*module_function)(tefl_module module, const char* name, tefl_function* function);

  /* Enqueue `function` on `stream` over `grid` blocks of `block` threads each (x, y, z), with `shared_bytes`
   * of dynamic block memory. `parameters[i]` points to the value of the i-th of `parameter_count` parameters
   * and is read before the call returns. */
  tefl_status (*launch)(tefl_function function, const uint32_t grid[3], const uint32_t block[3],
                        uint32_t shared_bytes, tefl_stream stream, void* const* parameters,
                        uint32_t parameter_count);
} tefl_launch;

/* ----------------------------------------------------------------------------------------- collectives -- */

/* Since 1.1. Element types of reductions. */
typedef int32_t tefl_dtype;
enum {
  TEFL_UINT8 = 0,
  TEFL_INT8 = 1,
  TEFL_INT16 = 2,
  TEFL_INT32 = 3,
  TEFL_INT64 = 4,
  TEFL_FLOAT16 = 5,
  TEFL_BFLOAT16 = 6,
  TEFL_FLOAT32 = 7,
  TEFL_FLOAT64 = 8
};

/* Since 1.1. What a reduction does with the elements of all ranks. */
typedef int32_t tefl_reduction;
enum {
  TEFL_SUM = 0,
  TEFL_PRODUCT = 1,
  TEFL_MIN = 2,
  TEFL_MAX = 3,
  TEFL_AVG = 4 /* the sum divided by the number of ranks; integers towards zero */
};

/* Since 1.1. What the ranks of a communicator have in common: made by one of them, given to all. */
typedef struct tefl_ccl_id {
  uint8_t bytes[128];
} tefl_ccl_id;

/* Since 1.1. Optional: collectives among processes, over the vendor's own links. Without it, the device's
 * process groups work over those of the alias device (gloo on the CPU, NCCL on a GPU). All functions are
 * mandatory in a table that is there.
 *
 *   Order       Every function with a stream enqueues on it and returns. All ranks of a communicator make the
 *               same calls in the same order; send and recv are apart from that, and come in one order for
 *               each pair of ranks and direction. Calls may come on several streams: tefl gives collectives
 *               one, and each direction of each pair another, so that a recv that waits holds up nobody.
 *   Memory      All pointers are to memory of the communicator's device. It stays valid until the work is
 *               done. `input` and `output` may be the same address where the comment says in place.
 *   Unsupported A reduction or type that the library has not is TEFL_ERR_UNSUPPORTED, on all ranks alike and
 *               with nothing enqueued. tefl then makes TEFL_AVG of TEFL_SUM; anything else is the user's
 *               error.
 *   Failure     A rank that dies, disagrees on what is called, or is not heard of makes the others' work
 *               fail. Failed work ends: a stream does not hang on it, the error comes as TEFL_ERR_DEVICE of
 *               the next synchronisation, and `async_error` tells it. A communicator that failed is good for
 *               abort and destroy only. */
typedef struct tefl_ccl {
  size_t size; /* sizeof(tefl_ccl) as the provider was compiled */

  /* A new id, which no other communicator on any machine has. tefl calls it on rank 0. */
  tefl_status (*get_unique_id)(tefl_ccl_id* id);

  /* Join, as `rank` of `size` on `device`, the communicator of `id`. Waits until all ranks have joined, at
   * most `timeout_ms` milliseconds: then TEFL_ERR_INTERNAL, with the missing ranks in the message. */
  tefl_status (*init_rank)(const tefl_ccl_id* id, int32_t size, int32_t rank, int32_t device,
                           int64_t timeout_ms, tefl_comm* comm);

  /* `output`[i] of every rank = the reduction of all ranks' `input`[i], `count` elements. In place allowed.
   */
  tefl_status (*all_reduce)(tefl_comm comm, const void* input, void* output, uint64_t count, tefl_dtype dtype,
                            tefl_reduction reduction, tefl_stream stream);

  /* The same for the root's `output` alone; the other ranks' is NULL. In place allowed on the root. */
  tefl_status (*reduce)(tefl_comm comm, const void* input, void* output, uint64_t count, tefl_dtype dtype,
                        tefl_reduction reduction, int32_t root, tefl_stream stream);

  /* `buffer` of every rank becomes the root's. */
  tefl_status (*broadcast)(tefl_comm comm, void* buffer, uint64_t bytes, int32_t root, tefl_stream stream);

  /* `output` = all ranks' `input`s of `bytes` bytes each, in the order of ranks. */
  tefl_status (*all_gather)(tefl_comm comm, const void* input, void* output, uint64_t bytes,
                            tefl_stream stream);

  /* `output`, `count` elements = the rank's own part of the reduction of all ranks' `input`s, which have
   * `count` elements for each rank. */
  tefl_status (*reduce_scatter)(tefl_comm comm, const void* input, void* output, uint64_t count,
                                tefl_dtype dtype, tefl_reduction reduction, tefl_stream stream);

  /* To each rank r its part of `input`, `input_bytes`[r] long, from each its part for this rank into
   * `output`, `output_bytes`[r] long; parts lie one after another in the order of ranks. The two arrays have
   * an element for each rank and are read before the call returns. */
  tefl_status (*all_to_all)(tefl_comm comm, const void* input, const uint64_t* input_bytes, void* output,
                            const uint64_t* output_bytes, tefl_stream stream);

  /* `bytes` bytes to rank `peer`, which receives as many. The work may wait for the peer's recv. */
  tefl_status (*send)(tefl_comm comm, const void* buffer, uint64_t bytes, int32_t peer, tefl_stream stream);
  tefl_status (*recv)(tefl_comm comm, void* buffer, uint64_t bytes, int32_t peer, tefl_stream stream);

  /* Between the two, the calling thread's send and recv are only collected, and may be in any order;
   * group_end enqueues them as one piece of work, each on its own stream. Groups do not nest. */
  tefl_status (*group_start)(void);
  tefl_status (*group_end)(void);

  /* TEFL_OK, or TEFL_ERR_DEVICE with what made the communicator fail. Waits for nothing. */
  tefl_status (*async_error)(tefl_comm comm);

  /* Make all work of the communicator that is not done fail now, with `reason` in its message, and later
   * calls with it. Waits for nothing; from any thread. */
  tefl_status (*abort)(tefl_comm comm, const char* reason);

  /* The rank's part of the communicator ends. Work not done is aborted. */
  tefl_status (*destroy)(tefl_comm comm);
} tefl_ccl;

/* -------------------------------------------------------------------------------------------- provider -- */

/* What `tefl_provider_get` returns: const, and there for the whole process. */
typedef struct tefl_provider {
  size_t size; /* sizeof(tefl_provider) as the provider was compiled */

  uint32_t abi_major; /* TEFL_PROVIDER_ABI_MAJOR and _MINOR as the provider was compiled */
  uint32_t abi_minor;

  const char* name;    /* the provider's own, [a-z_]+; the device's too unless the user chose another */
  const char* version; /* the provider's version, shown by `python -m tefl info` */

  tefl_alias alias;

  /* The calling thread's message for the last call that returned an error; never NULL, "" where there is
   * none. Valid until the thread's next call into the provider. */
  const char* (*last_error)(void);

  const tefl_runtime* runtime; /* mandatory */
  const tefl_launch* launch;   /* optional: NULL, or a complete table */
  const tefl_ccl* ccl;         /* since 1.1; optional: NULL, or a complete table */
} tefl_provider;

/* The one symbol of a provider. Must not start the runtime. Never returns NULL. */
typedef const tefl_provider* (*tefl_provider_get_fn)(void);
TEFL_PROVIDER_EXPORT const tefl_provider* tefl_provider_get(void);

#ifdef __cplusplus
}
#endif

#endif /* TEFL_PROVIDER_H_ */
