// collectives.cpp: see collectives.h.
#include "collectives.h"

#include <cstring>

#include "reduce.h"
#include "status.h"

namespace maca {
namespace {

// The numbers that labels carry. Every rank runs the same library, so they need no agreement.
enum : uint32_t { kAllReduce, kReduce, kReduceScatter, kBroadcast, kAllGather, kAllToAll, kMessage };
constexpr const char* kNames[] = {"all_reduce", "reduce",     "reduce_scatter", "broadcast",
                                  "all_gather", "all_to_all", "send or recv"};

unsigned char* at(void* data, uint64_t offset = 0) { return static_cast<unsigned char*>(data) + offset; }
// A transfer that sends only reads what it points to.
unsigned char* at(const void* data, uint64_t offset = 0) { return at(const_cast<void*>(data), offset); }

// In one number: which type and reduction.
constexpr int32_t kReductions = 16;
int32_t detail_of(const Reduction& how) { return how.dtype * kReductions + how.reduction; }

std::string detail_text(const Label& label) {
  if (label.collective == kBroadcast) return ", root " + std::to_string(label.detail);
  if (label.collective > kReduceScatter || label.detail < 0) return "";
  return std::string(", ") + reduction_name(label.detail % kReductions) + " of " +
         type_name(label.detail / kReductions);
}

std::shared_ptr<Operation> collective(Communicator& comm, uint32_t kind, uint64_t bytes) {
  auto operation = std::make_shared<Operation>();
  operation->name = std::string(kNames[kind]) + " #" + std::to_string(comm.next_number()) + " of " +
                    std::to_string(bytes) + " bytes";
  operation->traffic = Traffic::collectives;
  operation->queue = 0;
  return operation;
}

void check_root(const Communicator& comm, int32_t root) {
  require(root >= 0 && root < comm.size(), "the root is not a rank of the communicator");
}

// Element `part` of the boundaries between `size` nearly equal parts of `count` elements.
uint64_t boundary(uint64_t count, int32_t part, int32_t size) {
  return count * static_cast<uint64_t>(part) / static_cast<uint64_t>(size);
}

// Copies a rank's part to itself, which takes no link. The two may be the same.
void copy_own(void* to, const void* from, uint64_t bytes) {
  if (bytes != 0 && to != from) std::memmove(to, from, bytes);
}

// Of `count` elements on every rank, brings all ranks' elements [begin, end) here and the others' parts to
// them, then reduces those here to `output`. `part_of(r)` is where rank r's part begins, `part_of(r + 1)` its
// end.
template <class PartOf>
Stage scatter_and_reduce(const Communicator& comm, Operation& operation, uint32_t kind, const void* input,
                         void* output, Reduction how, PartOf part_of) {
  const uint64_t element = bytes_of(how.dtype);
  const int32_t me = comm.rank(), size = comm.size();
  const uint64_t own = part_of(me + 1) - part_of(me);
  operation.scratch.resize(own * element * static_cast<uint64_t>(size));
  Stage stage;
  std::vector<const void*> parts;
  for (int32_t rank = 0; rank < size; ++rank) {
    if (rank == me) {
      parts.push_back(at(input, part_of(me) * element));
      continue;
    }
    unsigned char* landing = operation.scratch.data() + own * element * static_cast<uint64_t>(rank);
    const uint64_t theirs = part_of(rank + 1) - part_of(rank);
    stage.transfers.push_back(
        {rank, true, at(input, part_of(rank) * element), {kind, detail_of(how), theirs * element}});
    stage.transfers.push_back({rank, false, landing, {kind, detail_of(how), own * element}});
    parts.push_back(landing);
  }
  how.count = own;
  stage.then = [parts, output, how] { reduce_parts(parts, output, how.count, how.dtype, how.reduction); };
  return stage;
}

}  // namespace

std::string text_of(const Label& label) {
  const char* name = label.collective < std::size(kNames) ? kNames[label.collective] : "something unknown";
  return std::string(name) + " of a part of " + std::to_string(label.bytes) + " bytes" + detail_text(label);
}

// Every rank reduces its part of the elements, and gives the others the result.
std::shared_ptr<Operation> all_reduce(Communicator& comm, const void* input, void* output, Reduction how) {
  check_reduction(how.reduction);
  const uint64_t element = bytes_of(how.dtype);
  const int32_t me = comm.rank(), size = comm.size();
  const auto part_of = [=](int32_t rank) { return boundary(how.count, rank, size); };
  auto operation = collective(comm, kAllReduce, how.count * element);
  void* own = at(output, part_of(me) * element);
  operation->stages.push_back(scatter_and_reduce(comm, *operation, kAllReduce, input, own, how, part_of));
  Stage gather;
  for (int32_t rank = 0; rank < size; ++rank) {
    if (rank == me) continue;
    const uint64_t sent = (part_of(me + 1) - part_of(me)) * element;
    const uint64_t received = (part_of(rank + 1) - part_of(rank)) * element;
    gather.transfers.push_back({rank, true, at(own), {kAllReduce, -1, sent}});
    gather.transfers.push_back(
        {rank, false, at(output, part_of(rank) * element), {kAllReduce, -1, received}});
  }
  operation->stages.push_back(std::move(gather));
  return operation;
}

std::shared_ptr<Operation> reduce_scatter(Communicator& comm, const void* input, void* output,
                                          Reduction how) {
  check_reduction(how.reduction);
  auto operation = collective(comm, kReduceScatter, how.count * bytes_of(how.dtype));
  const auto part_of = [=](int32_t rank) { return how.count * static_cast<uint64_t>(rank); };
  operation->stages.push_back(
      scatter_and_reduce(comm, *operation, kReduceScatter, input, output, how, part_of));
  return operation;
}

// All elements are the root's part.
std::shared_ptr<Operation> reduce(Communicator& comm, const void* input, void* output, Reduction how,
                                  int32_t root) {
  check_root(comm, root);
  check_reduction(how.reduction);
  auto operation = collective(comm, kReduce, how.count * bytes_of(how.dtype));
  const auto part_of = [=](int32_t rank) { return rank > root ? how.count : 0; };
  auto stage = scatter_and_reduce(comm, *operation, kReduce, input, output, how, part_of);
  if (comm.rank() != root) stage.then = nullptr;
  operation->stages.push_back(std::move(stage));
  return operation;
}

std::shared_ptr<Operation> broadcast(Communicator& comm, void* buffer, uint64_t bytes, int32_t root) {
  check_root(comm, root);
  auto operation = collective(comm, kBroadcast, bytes);
  Stage stage;
  const Label label{kBroadcast, root, bytes};
  for (int32_t rank = 0; rank < comm.size(); ++rank) {
    if (rank == comm.rank()) continue;
    if (comm.rank() == root) stage.transfers.push_back({rank, true, at(buffer), label});
    if (rank == root) stage.transfers.push_back({rank, false, at(buffer), label});
  }
  operation->stages.push_back(std::move(stage));
  return operation;
}

std::shared_ptr<Operation> all_gather(Communicator& comm, const void* input, void* output, uint64_t bytes) {
  auto operation = collective(comm, kAllGather, bytes);
  Stage stage;
  const Label label{kAllGather, 0, bytes};
  for (int32_t rank = 0; rank < comm.size(); ++rank) {
    if (rank == comm.rank()) continue;
    stage.transfers.push_back({rank, true, at(input), label});
    stage.transfers.push_back({rank, false, at(output, bytes * static_cast<uint64_t>(rank)), label});
  }
  void* own = at(output, bytes * static_cast<uint64_t>(comm.rank()));
  stage.then = [own, input, bytes] { copy_own(own, input, bytes); };
  operation->stages.push_back(std::move(stage));
  return operation;
}

std::shared_ptr<Operation> all_to_all(Communicator& comm, const void* input, const uint64_t* input_bytes,
                                      void* output, const uint64_t* output_bytes) {
  uint64_t sent = 0, received = 0;
  const void* from = nullptr;
  void* to = nullptr;
  Stage stage;
  for (int32_t rank = 0; rank < comm.size(); ++rank) {
    if (rank == comm.rank()) {
      from = at(input, sent);
      to = at(output, received);
    } else {
      stage.transfers.push_back({rank, true, at(input, sent), {kAllToAll, 0, input_bytes[rank]}});
      stage.transfers.push_back({rank, false, at(output, received), {kAllToAll, 0, output_bytes[rank]}});
    }
    sent += input_bytes[rank];
    received += output_bytes[rank];
  }
  const uint64_t own = input_bytes[comm.rank()];
  require(own == output_bytes[comm.rank()], "a rank sends itself another number of bytes than it receives");
  stage.then = [to, from, own] { copy_own(to, from, own); };
  auto operation = collective(comm, kAllToAll, sent);
  operation->stages.push_back(std::move(stage));
  return operation;
}

// Each peer and direction has a queue of its own.
std::shared_ptr<Operation> message(Communicator& comm, void* buffer, uint64_t bytes, int32_t peer,
                                   bool sends) {
  require(peer >= 0 && peer < comm.size() && peer != comm.rank(), "the peer is not another rank");
  auto operation = std::make_shared<Operation>();
  operation->name = std::string(sends ? "send to" : "recv from") + " rank " + std::to_string(peer) + " of " +
                    std::to_string(bytes) + " bytes";
  operation->traffic = Traffic::messages;
  operation->queue = 1 + 2 * peer + (sends ? 1 : 0);
  Stage stage;
  stage.transfers.push_back({peer, sends, at(buffer), {kMessage, 0, bytes}});
  operation->stages.push_back(std::move(stage));
  return operation;
}

}  // namespace maca
