#include "ccl/sparse_sum.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include <algorithm>
#include <functional>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <tuple>
#include <utility>
#include <vector>

namespace tefl::ccl {
namespace {

using Counts = std::vector<int64_t>;  // of elements, by rank

class Gatherer {
 public:
  Gatherer(c10d::Backend& group, std::chrono::milliseconds timeout) : group_(group) {
    opts_.timeout = timeout;
  }

  // With the counts comes what the calls are. It is compared each time: what the gathers bring together of
  // tensors that do not fit would be out of range.
  Counts counts(const Call& call, int64_t own, c10::Device device) {
    const auto form = static_cast<int64_t>(std::hash<std::string>()(call.form()));
    const auto told = at::tensor({own, form}).to(device);
    auto all = at::empty({group_.getSize(), 2}, told.options());
    gather(all, told);
    const auto known = all.cpu();
    const auto* value = known.const_data_ptr<int64_t>();
    Counts counts;
    for (int rank = 0; rank < group_.getSize(); ++rank, value += 2) {
      if (value[1] != form) fail_of(call, rank);
      counts.push_back(value[0]);
    }
    return counts;
  }

  // The rows of all ranks, one after the other. They are padded on their way, since they have to be as many.
  at::Tensor rows(const at::Tensor& own, const Counts& counts) {
    const int64_t most = *std::max_element(counts.begin(), counts.end());
    auto sizes = own.sizes().vec();
    sizes[0] = most;
    auto padded = at::zeros(sizes, own.options());
    padded.narrow(0, 0, own.size(0)).copy_(own);
    sizes[0] = most * group_.getSize();
    auto all = at::empty(sizes, own.options());
    gather(all, padded);
    std::vector<at::Tensor> found;
    for (size_t rank = 0; rank < counts.size(); ++rank)
      found.push_back(all.narrow(0, static_cast<int64_t>(rank) * most, counts[rank]));
    return at::cat(found);
  }

 private:
  void gather(at::Tensor all, at::Tensor own) { group_._allgather_base(all, own, opts_)->wait(); }

  [[noreturn]] static void fail_of(const Call& call, int rank) {
    fail(call,
         "this rank calls " + call.form() + ", rank " + std::to_string(rank) +
             " something else; all must pass tensors of the same sizes, sparse dimensions and dtype, and "
             "the same reduction");
  }

  c10d::Backend& group_;
  c10d::AllgatherOptions opts_;
};

// PyTorch's process groups find the backend of a sparse tensor's device for CPU and CUDA alone.
std::tuple<std::vector<at::Tensor>, c10::intrusive_ptr<c10d::Work>> all_reduce(
    at::TensorList tensors, const c10::intrusive_ptr<c10d::ProcessGroup>& group,
    const c10::intrusive_ptr<c10d::ReduceOp>& op, const std::optional<at::Tensor>&, bool asynchronous,
    int64_t timeout) {
  c10d::AllreduceOptions opts;
  opts.reduceOp = *op;
  opts.timeout = std::chrono::milliseconds(timeout);
  opts.asyncOp = asynchronous;
  auto reduced = tensors.vec();
  auto work = group->getBackend(c10::kPrivateUse1)->allreduce(reduced, opts);
  return {std::move(reduced), std::move(work)};
}

TORCH_LIBRARY_IMPL(c10d, SparsePrivateUse1, library) { library.impl("allreduce_", &all_reduce); }

}  // namespace

at::Tensor sum_of_all_ranks(c10d::Backend& group, const Call& call, const at::Tensor& own,
                            std::chrono::milliseconds timeout) {
  Gatherer gatherer(group, timeout);
  const auto counts = gatherer.counts(call, own._nnz(), own.device());
  if (std::all_of(counts.begin(), counts.end(), [](int64_t count) { return count == 0; })) return own;
  const auto indices = gatherer.rows(own.indices().t().contiguous(), counts);
  const auto values = gatherer.rows(own.values().contiguous(), counts);
  return at::sparse_coo_tensor(indices.t(), values, own.sizes()).coalesce();
}

}  // namespace tefl::ccl
