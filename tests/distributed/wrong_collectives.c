/* The example provider, LIBRARY, one of whose collectives computes wrongly: a test says which. */
#include "example.h"

enum { ALL_REDUCE, REDUCE, REDUCE_SCATTER, BROADCAST, ALL_GATHER, ALL_TO_ALL, SEND, RECV };

volatile int32_t wrong_function = ALL_REDUCE;
volatile int32_t wrong_reduction = TEFL_AVG;
volatile int32_t wrong_dtype = -1;   /* -1: every one */
volatile int32_t refused_dtype = -1; /* that no reduction takes */

static char elsewhere[1 << 16]; /* zeros, and what is received by mistake */

static tefl_reduction does(int32_t function, tefl_dtype dtype, tefl_reduction reduction) {
  const int here = function == wrong_function && reduction == wrong_reduction;
  if (!here || (wrong_dtype != -1 && wrong_dtype != dtype)) return reduction;
  return reduction == TEFL_SUM ? TEFL_MAX : TEFL_SUM;
}

static tefl_status all_reduce(tefl_comm comm, const void* input, void* output, uint64_t count,
                              tefl_dtype dtype, tefl_reduction reduction, tefl_stream stream) {
  if (dtype == refused_dtype) return TEFL_ERR_UNSUPPORTED;
  return real->ccl->all_reduce(comm, input, output, count, dtype, does(ALL_REDUCE, dtype, reduction), stream);
}

static tefl_status reduce(tefl_comm comm, const void* input, void* output, uint64_t count, tefl_dtype dtype,
                          tefl_reduction reduction, int32_t root, tefl_stream stream) {
  if (dtype == refused_dtype) return TEFL_ERR_UNSUPPORTED;
  return real->ccl->reduce(comm, input, output, count, dtype, does(REDUCE, dtype, reduction), root, stream);
}

static tefl_status reduce_scatter(tefl_comm comm, const void* input, void* output, uint64_t count,
                                  tefl_dtype dtype, tefl_reduction reduction, tefl_stream stream) {
  if (dtype == refused_dtype) return TEFL_ERR_UNSUPPORTED;
  const tefl_reduction how = does(REDUCE_SCATTER, dtype, reduction);
  return real->ccl->reduce_scatter(comm, input, output, count, dtype, how, stream);
}

static tefl_status broadcast(tefl_comm comm, void* buffer, uint64_t bytes, int32_t root, tefl_stream stream) {
  return real->ccl->broadcast(comm, wrong_function == BROADCAST ? elsewhere : buffer, bytes, root, stream);
}

static tefl_status all_gather(tefl_comm comm, const void* input, void* output, uint64_t bytes,
                              tefl_stream stream) {
  return real->ccl->all_gather(comm, wrong_function == ALL_GATHER ? elsewhere : input, output, bytes, stream);
}

static tefl_status all_to_all(tefl_comm comm, const void* input, const uint64_t* input_bytes, void* output,
                              const uint64_t* output_bytes, tefl_stream stream) {
  const void* given = wrong_function == ALL_TO_ALL ? elsewhere : input;
  return real->ccl->all_to_all(comm, given, input_bytes, output, output_bytes, stream);
}

static tefl_status send(tefl_comm comm, const void* buffer, uint64_t bytes, int32_t peer,
                        tefl_stream stream) {
  return real->ccl->send(comm, wrong_function == SEND ? elsewhere : buffer, bytes, peer, stream);
}

static tefl_status recv(tefl_comm comm, void* buffer, uint64_t bytes, int32_t peer, tefl_stream stream) {
  return real->ccl->recv(comm, wrong_function == RECV ? elsewhere : buffer, bytes, peer, stream);
}

const tefl_provider* tefl_provider_get(void) {
  if (real == NULL) {
    copy_example();
    ccl.all_reduce = all_reduce;
    ccl.reduce = reduce;
    ccl.reduce_scatter = reduce_scatter;
    ccl.broadcast = broadcast;
    ccl.all_gather = all_gather;
    ccl.all_to_all = all_to_all;
    ccl.send = send;
    ccl.recv = recv;
  }
  return &provider;
}
