#include "ccl/alias_backend.h"

#include "ccl/host_form.h"
#include "ccl/without_interpreter.h"
#include "ccl/work.h"
#include "device/alias_target.h"
#include "device/streams.h"

namespace tefl::ccl {
namespace {

using c10d::OpType;

// Whose work gloo ends in wait(), and tells no future of.
bool is_waited_for(const Call& call) {
  return call.is_message() || call.type == OpType::REDUCE_SCATTER ||
         call.type == OpType::_REDUCE_SCATTER_BASE;
}

}  // namespace

AliasBackend::AliasBackend(c10::intrusive_ptr<c10d::Backend> inner,
                           const c10::intrusive_ptr<c10d::Store>& store, Timeout timeout)
    : DeviceBackend(inner->getRank(), inner->getSize(), store, timeout),
      inner_(std::move(inner)),
      on_host_(device::alias_target().type == c10::kCPU) {}

// Gloo, too, waits for its threads.
AliasBackend::~AliasBackend() {
  const WithoutInterpreter no_lock;
  stop_comparing();
  collectives_.end();
  messages_.end();
  inner_.reset();
}

void AliasBackend::shutdown() {
  leave_group();
  inner_->shutdown();
}

// ----------------------------------------------------------------------------- rank 0 calls the same, or --

// On the host a call can be held up without its caller, by the queue's thread.
void AliasBackend::compare(Call& call) {
  if (!on_host_) return DeviceBackend::compare(call);
  call.is_open = true;
  or_give_up([&] { call.is_open = !ledger_->agrees(call); });
}

// Only what cannot end without rank 0 may wait for it for long.
void AliasBackend::proceed(const Call& call) {
  require_sound(call);
  if (!call.is_open) return;
  if (call.root.value_or(0) > 0) return compare_within_grace(call);
  or_give_up([&] { ledger_->require_agreement(call); });
}

// --------------------------------------------------------------------------------- how a call is made --

void AliasBackend::require_movable(const Call& call, std::initializer_list<at::TensorList> all) const {
  if (!on_host_) return;
  for (const auto& tensors : all) {
    for (const auto& tensor : tensors) require_movable_on_host(call, tensor);
  }
}

Aliases AliasBackend::aliases_for(bool asynchronous) const {
  const bool lends = !on_host_ && !asynchronous && !is_in_group();
  return Aliases(lends ? AliasKind::kLent : AliasKind::kHeld);
}

// The inner group goes by the current stream, which is the same under both names. For a call that is not
// asynchronous NCCL returns no work: it is in the current stream already.
AliasBackend::Work AliasBackend::shared(const Call& call, at::TensorList outputs, Work inner) {
  if (!inner) return inner;
  return kept(c10::make_intrusive<SharedWork>(call, outputs.vec(), ledger_, std::move(inner)));
}

AliasBackend::Work AliasBackend::run_on_host(const Call& call, Tensors outputs, Start start, Finish finish) {
  c10::intrusive_ptr<BegunWork> work;
  if (is_waited_for(call)) {
    work = c10::make_intrusive<WaitedWork>(call, std::move(outputs), ledger_, std::move(finish));
  } else if (finish) {
    work = c10::make_intrusive<FinishingWork>(call, std::move(outputs), ledger_, std::move(finish));
  } else {
    work = c10::make_intrusive<ForwardedWork>(call, std::move(outputs), ledger_);
  }
  return kept(start_in_order(std::move(work), std::move(start)));
}

AliasBackend::Work AliasBackend::start_in_order(c10::intrusive_ptr<BegunWork> work, Start start) {
  const auto& call = work->call();
  const auto stream = device::current_stream(call.device.index());
  auto& queue = call.is_message() ? messages_ : collectives_;
  if (!call.is_open && queue.run_now(stream, [&] { work->begun(start(*inner_)); })) return work;
  queue.submit(
      stream,
      [this, inner = inner_, work, start = std::move(start)] {
        proceed(work->call());
        work->begun(start(*inner));
      },
      [work](const std::exception_ptr& error) { work->begun(nullptr, error); });
  return work;
}

// ------------------------------------------------------------------------------------- several as one --

void AliasBackend::begin_group() {
  if (!on_host_) inner_->startCoalescing();
}

AliasBackend::Work AliasBackend::end_group(const Call& call, std::vector<Work> works) {
  if (on_host_) return c10::make_intrusive<WorkGroup>(call, ledger_, std::move(works));
  auto inner = inner_->endCoalescing();
  if (!inner) return inner;
  return c10::make_intrusive<SharedWork>(call, results_of(works), ledger_, std::move(inner));
}

}  // namespace tefl::ccl
