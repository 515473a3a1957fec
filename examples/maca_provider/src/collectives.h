// collectives.h: each collective as an operation, that is, as blocks that ranks send each other and sums of
// them.
#pragma once

#include <memory>

#include "communicator.h"
#include "tefl_provider.h"

namespace maca {

/// "all_reduce of 4096 bytes": for messages about ranks that disagree.
std::string text_of(const Label& label);

/// What a reduction works on.
struct Reduction {
  uint64_t count;
  tefl_dtype dtype;
  tefl_reduction reduction;
};

// The pointers are those of tefl_provider.h; the operations are for Communicator::enqueue.
std::shared_ptr<Operation> all_reduce(Communicator& comm, const void* input, void* output, Reduction how);
std::shared_ptr<Operation> reduce(Communicator& comm, const void* input, void* output, Reduction how,
                                  int32_t root);
std::shared_ptr<Operation> reduce_scatter(Communicator& comm, const void* input, void* output, Reduction how);
std::shared_ptr<Operation> broadcast(Communicator& comm, void* buffer, uint64_t bytes, int32_t root);
std::shared_ptr<Operation> all_gather(Communicator& comm, const void* input, void* output, uint64_t bytes);
std::shared_ptr<Operation> all_to_all(Communicator& comm, const void* input, const uint64_t* input_bytes,
                                      void* output, const uint64_t* output_bytes);
std::shared_ptr<Operation> message(Communicator& comm, void* buffer, uint64_t bytes, int32_t peer,
                                   bool sends);

}  // namespace maca
