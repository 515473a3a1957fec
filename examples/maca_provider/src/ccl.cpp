// ccl.cpp: the functions of the table. Each checks its arguments and enqueues an operation.
#include "ccl.h"

#include <cstring>
#include <random>

#include "collectives.h"
#include "status.h"

struct tefl_comm_s {
  // Commands in streams keep it as well: it outlives a handle that is destroyed under them.
  std::shared_ptr<maca::Communicator> communicator;
};

namespace maca {
namespace {

const std::shared_ptr<Communicator>& communicator_of(tefl_comm comm) {
  require(comm != nullptr, "the communicator is NULL");
  return comm->communicator;
}

void enqueue(tefl_comm comm, std::shared_ptr<Operation> operation, tefl_stream stream) {
  Communicator::enqueue(comm->communicator, std::move(operation), stream);
}

// The id is the name of the shared memory: 128 random bits as text.
tefl_status get_unique_id(tefl_ccl_id* id) {
  return guarded([&] {
    static constexpr char kDigits[] = "0123456789abcdef";
    std::random_device random;
    std::string name = "/maca-";
    for (int i = 0; i < 32; ++i) name += kDigits[random() % 16];
    std::memset(id->bytes, 0, sizeof id->bytes);
    std::memcpy(id->bytes, name.data(), name.size());
  });
}

tefl_status init_rank(const tefl_ccl_id* id, int32_t size, int32_t rank, int32_t card, int64_t timeout_ms,
                      tefl_comm* comm) {
  return guarded([&] {
    check_card(card);
    const auto* text = reinterpret_cast<const char*>(id->bytes);
    const std::string name(text, strnlen(text, sizeof id->bytes));
    require(name.rfind("/maca-", 0) == 0, "the id is not one of get_unique_id");
    const std::chrono::milliseconds timeout(timeout_ms);
    *comm = new tefl_comm_s{std::make_shared<Communicator>(name, size, rank, card, timeout)};
  });
}

tefl_status ccl_all_reduce(tefl_comm comm, const void* input, void* output, uint64_t count, tefl_dtype dtype,
                           tefl_reduction reduction, tefl_stream stream) {
  return guarded([&] {
    enqueue(comm, all_reduce(*communicator_of(comm), input, output, {count, dtype, reduction}), stream);
  });
}

tefl_status ccl_reduce(tefl_comm comm, const void* input, void* output, uint64_t count, tefl_dtype dtype,
                       tefl_reduction reduction, int32_t root, tefl_stream stream) {
  return guarded([&] {
    enqueue(comm, reduce(*communicator_of(comm), input, output, {count, dtype, reduction}, root), stream);
  });
}

tefl_status ccl_reduce_scatter(tefl_comm comm, const void* input, void* output, uint64_t count,
                               tefl_dtype dtype, tefl_reduction reduction, tefl_stream stream) {
  return guarded([&] {
    enqueue(comm, reduce_scatter(*communicator_of(comm), input, output, {count, dtype, reduction}), stream);
  });
}

tefl_status ccl_broadcast(tefl_comm comm, void* buffer, uint64_t bytes, int32_t root, tefl_stream stream) {
  return guarded([&] { enqueue(comm, broadcast(*communicator_of(comm), buffer, bytes, root), stream); });
}

tefl_status ccl_all_gather(tefl_comm comm, const void* input, void* output, uint64_t bytes,
                           tefl_stream stream) {
  return guarded([&] { enqueue(comm, all_gather(*communicator_of(comm), input, output, bytes), stream); });
}

tefl_status ccl_all_to_all(tefl_comm comm, const void* input, const uint64_t* input_bytes, void* output,
                           const uint64_t* output_bytes, tefl_stream stream) {
  return guarded([&] {
    enqueue(comm, all_to_all(*communicator_of(comm), input, input_bytes, output, output_bytes), stream);
  });
}

tefl_status ccl_send(tefl_comm comm, const void* buffer, uint64_t bytes, int32_t peer, tefl_stream stream) {
  return guarded([&] {
    enqueue(comm, message(*communicator_of(comm), const_cast<void*>(buffer), bytes, peer, true), stream);
  });
}

tefl_status ccl_recv(tefl_comm comm, void* buffer, uint64_t bytes, int32_t peer, tefl_stream stream) {
  return guarded([&] { enqueue(comm, message(*communicator_of(comm), buffer, bytes, peer, false), stream); });
}

// Nothing to collect: each direction of each pair has its own channel and queue, so no order of sends and
// receives can block another one.
tefl_status group() { return TEFL_OK; }

tefl_status async_error(tefl_comm comm) {
  return guarded([&] {
    const std::string failure = communicator_of(comm)->failure();
    if (!failure.empty()) throw Error(TEFL_ERR_DEVICE, failure);
  });
}

tefl_status ccl_abort(tefl_comm comm, const char* reason) {
  return guarded([&] { communicator_of(comm)->abort(reason); });
}

tefl_status destroy(tefl_comm comm) {
  return guarded([&] {
    communicator_of(comm)->destroy();
    delete comm;
  });
}

}  // namespace

tefl_ccl make_ccl() {
  tefl_ccl table{};
  table.size = sizeof table;
  table.get_unique_id = get_unique_id;
  table.init_rank = init_rank;
  table.all_reduce = ccl_all_reduce;
  table.reduce = ccl_reduce;
  table.broadcast = ccl_broadcast;
  table.all_gather = ccl_all_gather;
  table.reduce_scatter = ccl_reduce_scatter;
  table.all_to_all = ccl_all_to_all;
  table.send = ccl_send;
  table.recv = ccl_recv;
  table.group_start = group;
  table.group_end = group;
  table.async_error = async_error;
  table.abort = ccl_abort;
  table.destroy = destroy;
  return table;
}

}  // namespace maca
