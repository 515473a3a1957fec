#include "ccl/alias_backend.h"

#include "ccl/let_go.h"
#include "ccl/work.h"
#include "device/alias_target.h"
#include "device/current_device.h"
#include "device/provider.h"
#include "device/streams.h"

namespace tefl::ccl {
namespace {

using c10d::OpType;

// Whose work gloo ends in wait(), and tells no future of.
bool is_waited_for(OpType type) {
  return c10d::isP2POp(type) || type == OpType::REDUCE_SCATTER || type == OpType::_REDUCE_SCATTER_BASE;
}

}  // namespace

AliasBackend::AliasBackend(c10::intrusive_ptr<c10d::Backend> inner, c10::intrusive_ptr<c10d::Store> store,
                           std::chrono::milliseconds timeout)
    : c10d::Backend(inner->getRank(), inner->getSize()),
      inner_(std::move(inner)),
      ledger_(std::make_shared<Ledger>(std::move(store), timeout)),
      on_host_(device::alias_target().type == c10::kCPU) {}

// --------------------------------------------------------------------------------- how a call is made --

Call AliasBackend::announce(OpType type, const char* name, const Tensors& measured,
                            const std::string& detail) {
  Call call{type, name, ++calls_, getRank(), getSize()};
  measure(call, measured);
  device::ensure_initialized();
  ledger_->compare(call, detail);
  return call;
}

Call AliasBackend::point_to_point(OpType type, const char* name, const Tensors& tensors) {
  Call call{type, name, ++messages_, getRank(), getSize()};
  measure(call, tensors);
  device::ensure_initialized();
  return call;
}

Reduction AliasBackend::reduction(const c10d::ReduceOp& op) const {
  return {op, getSize(), /*native=*/inner_->getBackendName() == "nccl"};
}

AliasBackend::Work AliasBackend::kept(Work work) {
  if (coalescing_) coalesced_.push_back(work);
  return work;
}

AliasBackend::Work AliasBackend::run(Call call, Tensors outputs, const Tensors& inputs, Start start,
                                     Finish finish) {
  const auto device = device_of(call, joined(outputs, inputs));
  if (!on_host_) {  // the inner group goes by the current stream, which is the same under both names
    auto inner = start();
    if (!inner)
      return inner;  // NCCL's answer to a call that is not asynchronous: it is in the current stream
    return kept(c10::make_intrusive<SharedWork>(call, std::move(outputs), std::move(inner)));
  }
  const auto after = device::current_stream(device.index());
  if (is_waited_for(call.type)) {
    return kept(run_waited(call, std::move(outputs), after, std::move(start), std::move(finish)));
  }
  return kept(run_by_host(call, std::move(outputs), after, std::move(start), std::move(finish)));
}

AliasBackend::Work AliasBackend::run_reduction(Call call, Tensors outputs, const Tensors& inputs,
                                               Tensors results, const Reduction& how, Start start) {
  if (!how.scales()) return run(std::move(call), std::move(outputs), inputs, std::move(start));
  auto finish = [results = std::move(results), how]() mutable { how.scale(results); };
  return run(std::move(call), std::move(outputs), inputs, std::move(start), std::move(finish));
}

AliasBackend::Work AliasBackend::run_by_host(Call call, Tensors outputs, c10::Stream after, Start start,
                                             Finish finish) {
  auto work = c10::make_intrusive<HostWork>(call, std::move(outputs));
  // Gloo's thread ends it, and lets go of it.
  struct Ending {
    c10::intrusive_ptr<HostWork> work;
    std::shared_ptr<Ledger> ledger;
    Finish finish;
    void fail(const std::exception_ptr& error) const {
      work->complete(failure_of(work->call(), error, ledger->known_difference()));
    }
    void operator()(c10::ivalue::Future& future) const {
      if (future.hasError()) return fail(future.exception_ptr());
      try {
        if (finish) finish();
      } catch (...) {
        return fail(std::current_exception());
      }
      work->complete();
    }
  };
  auto ending = std::make_shared<Ending>(Ending{work, ledger_, std::move(finish)});
  auto job = [ending, start = std::move(start)] {
    auto inner = start();
    inner->getFuture()->addCallback([ending, inner](c10::ivalue::Future& future) mutable {
      (*ending)(future);
      let_go(*ending);
      let_go(inner);
    });
  };
  queue_.submit(after, std::move(job), [ending](const std::exception_ptr& error) { ending->fail(error); });
  return work;
}

AliasBackend::Work AliasBackend::run_waited(Call call, Tensors outputs, c10::Stream after, Start start,
                                            Finish finish) {
  auto work = c10::make_intrusive<WaitedWork>(call, std::move(outputs), std::move(finish));
  auto job = [work, start = std::move(start)] { work->begun(start()); };
  auto failed = [work](const std::exception_ptr& error) {
    work->begun(nullptr, failure_of(work->call(), error));
  };
  queue_.submit(after, std::move(job), failed);
  return work;
}

void AliasBackend::startCoalescing() {
  coalescing_ = true;
  if (!on_host_) inner_->startCoalescing();
}

AliasBackend::Work AliasBackend::endCoalescing() {
  Call call{OpType::COALESCED, "coalesced calls", calls_, getRank(), getSize()};
  coalescing_ = false;
  auto works = std::exchange(coalesced_, {});
  auto group = c10::make_intrusive<WorkGroup>(call, std::move(works));
  if (on_host_) return group;
  auto inner = inner_->endCoalescing();
  if (!inner) return inner;
  return c10::make_intrusive<SharedWork>(call, group->result(), std::move(inner));
}

}  // namespace tefl::ccl
