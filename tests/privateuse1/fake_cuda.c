/* A driver for tests without a GPU: libcuda.so.1 and libnvidia-ml.so.1 in one file, over host memory.
 *
 * It does all work at once and keeps to the rules that the provider must know: nothing without cuInit, most
 * calls need a current context, a default stream is NULL, a forked child cannot start. FAKE_GPUS says how
 * many devices there are; FAKE_LOG, if set, is a file that gets a line for each cuInit. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int result;
typedef unsigned long long address;
typedef struct context {
  int device;
} context;
typedef struct stream {
  context* owner;
  int priority;
} stream;
typedef struct event {
  int timing, recorded;
  double when;
} event;
enum {
  OK = 0,
  INVALID = 1,
  OUT_OF_MEMORY = 2,
  NOT_INITIALIZED = 3,
  NO_DEVICE = 100,
  NO_CONTEXT = 201,
  BAD_HANDLE = 400,
  NOT_FOUND = 500,
  NOT_READY = 600
};

#define CAPACITY ((size_t)1 << 20)
#define MAX_GPUS 8
static context contexts[MAX_GPUS] = {{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}};
static size_t used[MAX_GPUS];
static int starter;     /* the process that called cuInit */
static double clock_ms; /* a tick a call */
static __thread context* stack[16];
static __thread int depth;

static int gpus(void) {
  const char* text = getenv("FAKE_GPUS");
  return text ? atoi(text) : 2;
}
static context* current(void) { return depth ? stack[depth - 1] : NULL; }
#define NEEDS_CONTEXT \
  if (current() == NULL) return NO_CONTEXT

result cuInit(unsigned flags) {
  const char* log = getenv("FAKE_LOG");
  FILE* file = log ? fopen(log, "a") : NULL;
  if (file) fprintf(file, "cuInit %u\n", flags), fclose(file);
  if (starter != 0 && starter != getpid()) return NOT_INITIALIZED;
  starter = getpid();
  return gpus() ? OK : NO_DEVICE;
}
result cuGetErrorName(result code, const char** name) {
  *name = code == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY"
          : code == NOT_FOUND   ? "CUDA_ERROR_NOT_FOUND"
          : code == NOT_READY   ? "CUDA_ERROR_NOT_READY"
          : code == NO_DEVICE   ? "CUDA_ERROR_NO_DEVICE"
          : code == 700         ? "CUDA_ERROR_ILLEGAL_ADDRESS"
                                : "CUDA_ERROR_OTHER";
  return OK;
}
result cuGetErrorString(result code, const char** text) {
  *text = code == OUT_OF_MEMORY ? "out of memory" : "something else";
  return OK;
}
result cuDeviceGetCount(int* count) { return *count = gpus(), OK; }
result cuDeviceGet(int* device, int index) { return *device = index, index < gpus() ? OK : INVALID; }
result cuDeviceGetName(char* name, int bytes, int device) {
  return snprintf(name, (size_t)bytes, "fake GPU %d", device), OK;
}
result cuDeviceTotalMem_v2(size_t* bytes, int device) { return (void)device, *bytes = CAPACITY, OK; }
result cuDeviceGetAttribute(int* value, int which, int device) {
  (void)device;
  return *value = which == 75 ? 9 : which == 76 ? 1 : which == 16 ? 132 : 0, OK;
}
result cuDevicePrimaryCtxRetain(context** out, int device) { return *out = &contexts[device], OK; }
result cuCtxGetCurrent(context** out) { return *out = current(), OK; }
result cuCtxPushCurrent_v2(context* pushed) { return stack[depth++] = pushed, OK; }
result cuCtxPopCurrent_v2(context** out) { return *out = stack[--depth], OK; }
result cuCtxSynchronize(void) {
  NEEDS_CONTEXT;
  return OK;
}
result cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  NEEDS_CONTEXT;
  return *least = 0, *greatest = -5, OK;
}

result cuMemAlloc_v2(address* out, size_t bytes) {
  NEEDS_CONTEXT;
  int device = current()->device;
  if (bytes > CAPACITY - used[device]) return OUT_OF_MEMORY;
  size_t* block = aligned_alloc(256, (bytes + 511) / 256 * 256);
  block[0] = bytes;
  used[device] += bytes;
  *out = (address)block + 256;
  return OK;
}
result cuMemFree_v2(address memory) {
  NEEDS_CONTEXT;
  size_t* block = (size_t*)(memory - 256);
  used[current()->device] -= block[0];
  free(block);
  return OK;
}
result cuMemGetInfo_v2(size_t* free_bytes, size_t* total) {
  NEEDS_CONTEXT;
  return *free_bytes = CAPACITY - used[current()->device], *total = CAPACITY, OK;
}
result cuMemHostAlloc(void** out, size_t bytes, unsigned flags) {
  NEEDS_CONTEXT;
  if (flags != 1) return INVALID;
  return *out = aligned_alloc(64, (bytes + 63) / 64 * 64), OK;
}
result cuMemFreeHost(void* memory) {
  NEEDS_CONTEXT;
  return free(memory), OK;
}

/* A stream's work needs its own context to be current. */
static result in_stream(stream* where) {
  NEEDS_CONTEXT;
  clock_ms += 1;
  return where == NULL || where->owner == current() ? OK : BAD_HANDLE;
}
result cuMemcpyAsync(address to, address from, size_t bytes, stream* where) {
  if (in_stream(where) != OK) return in_stream(where);
  return memcpy((void*)to, (void*)from, bytes), OK;
}
result cuMemsetD8Async(address to, unsigned char value, size_t bytes, stream* where) {
  if (in_stream(where) != OK) return in_stream(where);
  return memset((void*)to, value, bytes), OK;
}
result cuStreamCreateWithPriority(stream** out, unsigned flags, int priority) {
  NEEDS_CONTEXT;
  if (flags != 1) return INVALID;
  *out = malloc(sizeof(stream));
  return (*out)->owner = current(), (*out)->priority = priority, OK;
}
result cuStreamDestroy_v2(stream* gone) { return free(gone), OK; }
result cuStreamGetCtx(stream* where, context** out) { return *out = where->owner, OK; }
result cuStreamQuery(stream* where) { return in_stream(where); }
result cuStreamSynchronize(stream* where) { return in_stream(where); }
result cuStreamWaitEvent(stream* where, event* what, unsigned flags) {
  return (void)what, flags == 0 ? in_stream(where) : INVALID;
}

result cuEventCreate(event** out, unsigned flags) {
  NEEDS_CONTEXT;
  *out = calloc(1, sizeof(event));
  return (*out)->timing = !(flags & 2), OK;
}
result cuEventDestroy_v2(event* gone) { return free(gone), OK; }
result cuEventRecord(event* what, stream* where) {
  if (in_stream(where) != OK) return in_stream(where);
  return what->recorded = 1, what->when = clock_ms, OK;
}
result cuEventQuery(event* what) { return (void)what, OK; }
result cuEventSynchronize(event* what) { return (void)what, OK; }
result cuEventElapsedTime(float* out, event* start, event* end) {
  if (!start->timing || !end->timing) return BAD_HANDLE;
  if (!start->recorded || !end->recorded) return NOT_READY;
  return *out = (float)(end->when - start->when), OK;
}

/* The management library. */
static char handles[MAX_GPUS];
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned* count) { return *count = (unsigned)gpus(), 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** out) { return *out = &handles[index], 0; }
int nvmlDeviceGetUUID(void* device, char* text, unsigned bytes) {
  long index = (char*)device - handles;
  return snprintf(text, bytes, "GPU-%c%ld-of-the-tests", "ab"[index % 2], index), 0;
}
