#include "device/alias_direct.h"

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "device/alias_kernel.h"
#include "device/alias_run.h"
#include "device/alias_target.h"
#include "device/direct_call.h"
#include "device/direct_signatures.h"
#include "device/provider.h"

namespace tefl::device {
namespace {

// The device's values for what the alias device's kernel returned.
template <typename Result>
struct Returned {
  static Result of(DirectCall&, const c10::OperatorHandle&, Result result) { return result; }
};
template <>
struct Returned<at::Tensor> {
  static at::Tensor of(DirectCall& call, const c10::OperatorHandle& op, at::Tensor result) {
    return call.result(std::move(result), op);
  }
};
template <>
struct Returned<std::vector<at::Tensor>> {
  static std::vector<at::Tensor> of(DirectCall& call, const c10::OperatorHandle& op,
                                    std::vector<at::Tensor> results) {
    for (at::Tensor& result : results) result = call.result(std::move(result), op);
    return results;
  }
};
template <typename... Results>
struct Returned<std::tuple<Results...>> {
  static std::tuple<Results...> of(DirectCall& call, const c10::OperatorHandle& op,
                                   std::tuple<Results...> results) {
    const auto bring = [&](auto& each) {
      each = Returned<std::decay_t<decltype(each)>>::of(call, op, std::move(each));
    };
    std::apply([&](auto&... each) { (bring(each), ...); }, results);
    return results;
  }
};

// An operator that writes a tensor returns that one.
template <typename... Arguments>
at::Tensor& written_one(Arguments&... arguments) {
  at::Tensor* written = nullptr;
  const auto look = [&](auto& argument) {
    if constexpr (std::is_same_v<decltype(argument), at::Tensor&>) written = &argument;
  };
  (look(arguments), ...);
  return *written;
}

template <typename Signature>
class DirectKernel;

template <typename Result, typename... Arguments>
class DirectKernel<Result(Arguments...)> final : public c10::OperatorKernel {
 public:
  explicit DirectKernel(const c10::OperatorHandle& op)
      : op_(op),
        on_alias_(op.typed<Result(Arguments...)>()),
        general_(c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<AliasKernel>(op.schema()))) {}

  Result operator()(Arguments... arguments) {
    return call(std::index_sequence_for<Arguments...>{}, arguments...);
  }

 private:
  template <size_t... i>
  Result call(std::index_sequence<i...>, std::remove_reference_t<Arguments>&... arguments) {
    DirectCall call;
    std::tuple<Passed<Arguments>...> passed;
    const bool direct = (std::get<i>(passed).enter(call, arguments) && ...) && call.has_operand();
    if (C10_UNLIKELY(!direct)) {
      return general_.template call<Result, Arguments...>(op_, kOurs, static_cast<Arguments>(arguments)...);
    }
    ensure_initialized();
    const auto run = [&]() -> Result {
      // Whatever comes before a device's kernel has had its turn when the call came to ours.
      return on_alias_.redispatch(alias_target().keys, std::get<i>(passed).alias(call, arguments)...);
    };
    const auto leave = [&] { (std::get<i>(passed).leave(call), ...); };
    const auto index = call.device().index();
    if constexpr (std::is_void_v<Result>) {
      run_on_alias(op_, index, run);
      leave();
    } else if constexpr (std::is_reference_v<Result>) {
      run_on_alias(op_, index, run);
      leave();
      return written_one(arguments...);
    } else {
      Result made = run_on_alias(op_, index, run);
      leave();
      return Returned<Result>::of(call, op_, std::move(made));
    }
  }

  c10::OperatorHandle op_;
  c10::TypedOperatorHandle<Result(Arguments...)> on_alias_;
  c10::KernelFunction general_;
};

using MakeKernel = c10::KernelFunction (*)(const c10::OperatorHandle&);

template <typename Signature>
c10::KernelFunction make_kernel(const c10::OperatorHandle& op) {
  using Kernel = DirectKernel<Signature>;
  return c10::KernelFunction::makeFromUnboxedFunctor<false, Kernel>(std::make_unique<Kernel>(op));
}

// Short names for the table.
using R = at::Tensor;
using R2 = std::tuple<R, R>;
using R3 = std::tuple<R, R, R>;
using R4 = std::tuple<R, R, R, R>;
using R9 = std::tuple<R, R, R, R, c10::SymInt, c10::SymInt, R, R, R>;
using Rs = std::vector<R>;
using T = const at::Tensor&;
using W = at::Tensor&;
using To = const std::optional<at::Tensor>&;
using Ts = at::TensorList;
using S = const at::Scalar&;
using So = const std::optional<at::Scalar>&;
using Ss = at::ArrayRef<at::Scalar>;
using I = int64_t;
using Is = at::IntArrayRef;
using Iso = at::OptionalIntArrayRef;
using Y = c10::SymInt;
using Ys = c10::SymIntArrayRef;
using Yso = at::OptionalSymIntArrayRef;
using F = double;
using Fo = std::optional<double>;
using D = at::ScalarType;
using Do = std::optional<at::ScalarType>;
using Text = c10::string_view;

using Kernels = std::unordered_map<std::string, MakeKernel>;

template <typename... Signatures>
Kernels kernels_of() {
  return {{SchemaText<Signatures>::text(), &make_kernel<Signatures>}...};
}

// By what a schema looks like.
Kernels all_kernels() {
  Kernels all;
  // Elementwise, matrix products, reductions.
  all.merge(kernels_of<R(T), R(T, T), R(T, T, T), R(T, S), R(T, S, S), R(T, So, So), R(T, T, S),
                       R(T, T, T, S), R(T, T, T, S, S), R(T, Do), R(T, Iso, bool, Do), R(T, S, Iso, bool, Do),
                       R(T, I), R(T, I, bool), R(T, I, Do), R(T, T, I, D), R(T, Text), R(T, T, Text),
                       R(T, T, F), R2(T, I, bool), at::Scalar(T), bool(T, T)>());
  // The same, writing.
  all.merge(
      kernels_of<W(W), W(W, T), W(W, T, T), W(W, S), W(W, S, S), W(W, So, So), W(W, T, S), W(W, T, T, S),
                 W(W, T, T, S, S), W(T, W), W(T, T, W), W(T, S, W), W(T, T, S, W), W(S, S, S, W)>());
  // Indexing, losses, layers of a network.
  all.merge(kernels_of<R(T, I, T), R(T, I, T, bool), R(T, I, T, T), R(T, I, T, T, S), W(W, I, T, T),
                       W(W, I, T, T, S), R(T, T, Y, Y, bool), R2(T, T, To, I, Y), R(T, T, T, To, I, Y, T),
                       R2(T, F, std::optional<bool>), R3(T, Ys, To, To, F),
                       R3(T, T, Ys, T, T, To, To, std::array<bool, 3>), R3(T, To, To, To, To, bool, F, F),
                       R3(T, T, To, To, To, To, To, bool, F, std::array<bool, 3>),
                       R(T, T, To, Ys, Ys, Ys, bool, Ys, Y),
                       R3(T, T, T, Yso, Ys, Ys, Ys, bool, Ys, Y, std::array<bool, 3>)>());
  // Pooling, attention.
  all.merge(kernels_of<R(T, Ys), R(T, T, Ys), R2(T, Is, Is, Is, Is, bool), R(T, T, Is, Is, Is, Is, bool, T),
                       R9(T, T, T, F, bool, bool, Fo), R3(T, T, T, T, T, T, T, T, Y, Y, F, bool, T, T, Fo),
                       R4(T, T, T, To, bool, F, bool, Fo),
                       R4(T, T, T, T, T, T, T, T, T, F, std::array<bool, 4>, bool, Fo),
                       R2(T, T, T, F, bool, To, Fo), R3(T, T, T, T, T, T, F, bool, To, Fo)>());
  // Lists, as optimizers have them.
  all.merge(kernels_of<void(Ts), void(Ts, S), void(Ts, Ss), void(Ts, T), void(Ts, T, S), void(Ts, Ts),
                       void(Ts, Ts, S), void(Ts, Ts, bool), void(Ts, Ts, Ts), void(Ts, Ts, Ts, S),
                       void(Ts, Ts, Ts, Ss), void(Ts, Ts, Ts, T), void(Ts, W, T)>());
  all.merge(kernels_of<void(Ts, Ts, Ts, Ts, Ts, Ts, F, F, F, F, F, bool, bool, To, To),
                       void(Ts, Ts, Ts, Ts, Ts, Ts, T, F, F, F, F, bool, bool, To, To)>());
  all.merge(kernels_of<Rs(Ts), Rs(Ts, S), Rs(Ts, Ss), Rs(Ts, T), Rs(Ts, Ts), Rs(Ts, Ts, S), Rs(Ts, Ts, Ts),
                       Rs(Ts, Ts, Ts, S), Rs(Ts, Ts, Ts, Ss), Rs(Ts, S, Do)>());
  return all;
}

// Null where there is none.
MakeKernel kernel_for(const c10::OperatorHandle& op) {
  if (op.operator_name() == c10::OperatorName("aten::cat", "")) {
    return &make_kernel<R(const at::ITensorListRef&, I)>;
  }
  static const auto* all = new Kernels(all_kernels());
  const std::string text = schema_text(op.schema());
  const auto found = all->find(text);
  return found == all->end() ? nullptr : found->second;
}

}  // namespace

bool register_direct(const c10::OperatorHandle& op) {
  // Never destroyed: an operator without its kernel would fall back to something else while the process ends.
  static auto* registered = new std::vector<c10::RegistrationHandleRAII>;
  const MakeKernel make = kernel_for(op);
  if (make == nullptr) return false;
  registered->push_back(c10::Dispatcher::singleton().registerImpl(
      op.operator_name(), c10::DispatchKey::PrivateUse1, make(op), std::nullopt, nullptr, "tefl, direct"));
  return true;
}

}  // namespace tefl::device
