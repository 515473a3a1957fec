#include "device/alias_direct.h"

#include <ATen/core/Tensor.h>
#include <c10/core/AutogradState.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "device/alias_kernel.h"
#include "device/alias_storage.h"
#include "device/alias_target.h"
#include "device/current_device.h"
#include "device/provider.h"
#include "device/refused.h"

namespace tefl::device {
namespace {

using at::Scalar;
using at::Tensor;

// Tensors made while it lives are inference tensors, which have no version counter to allocate. That is all
// an alias needs: no kernel writes it, and autograd does not see it.
class WithoutVersions {
 public:
  WithoutVersions() : before_(c10::AutogradState::get_tls_state()) {
    c10::AutogradState inside = before_;
    inside.set_inference_mode(true);
    c10::AutogradState::set_tls_state(inside);
  }
  ~WithoutVersions() { c10::AutogradState::set_tls_state(before_); }
  WithoutVersions(const WithoutVersions&) = delete;
  WithoutVersions& operator=(const WithoutVersions&) = delete;

 private:
  const c10::AutogradState before_;
};

// The tensors of one call and their aliases.
class DirectCall {
 public:
  /// Whether the short way can take the argument: a tensor of the device whose memory no other argument
  /// shares, or a number on the host.
  bool accepts(const Tensor& tensor) {
    if (!tensor.defined()) return false;
    const c10::Device device = tensor.device();
    if (device.is_cpu()) return tensor.dim() == 0;
    if (device.type() != kType || !tensor.has_storage() || count_ == kMost) return false;
    for (size_t i = 0; i < count_; ++i) {
      if (originals_[i]->device() != device || originals_[i]->is_alias_of(tensor)) return false;
    }
    originals_[count_++] = &tensor;
    return true;
  }
  bool accepts(const Scalar&) { return true; }
  bool has_operand() const { return count_ != 0; }

  void make_aliases() {
    const WithoutVersions scope;
    const c10::Device device = alias_target().device(originals_[0]->device().index());
    for (size_t i = 0; i < count_; ++i) {
      const Tensor& tensor = *originals_[i];
      aliases_[i] = tensor_over(alias_storage(tensor.storage(), device), tensor, alias_target().key);
    }
  }

  const Tensor& alias(const Tensor& tensor) const {
    for (size_t i = 0; i < count_; ++i) {
      if (originals_[i] == &tensor) return aliases_[i];
    }
    return tensor;
  }
  const Scalar& alias(const Scalar& number) const { return number; }

  /// The device's tensor for the kernel's result.
  Tensor result(Tensor made, const c10::OperatorHandle& op) {
    if (!made.defined() || made.device().type() != alias_target().type) return made;
    require_strided(op, made, "returns");
    for (size_t i = 0; i < count_; ++i) {
      if (made.is_same(aliases_[i])) return *originals_[i];
      if (made.is_alias_of(aliases_[i])) {
        return tensor_over(originals_[i]->storage(), made, c10::DispatchKey::PrivateUse1);
      }
    }
    const c10::Device device = originals_[0]->device();
    const bool unseen = made.use_count() == 1 && made.storage().use_count() == 1;
    if (unseen) return relabelled(std::move(made), device);
    return tensor_over(alias_storage(made.storage(), device), made, c10::DispatchKey::PrivateUse1);
  }

 private:
  static constexpr size_t kMost = 3;

  std::array<const Tensor*, kMost> originals_{};
  std::array<Tensor, kMost> aliases_;
  size_t count_ = 0;
};

template <typename... Arguments>
class DirectKernel final : public c10::OperatorKernel {
 public:
  explicit DirectKernel(const c10::OperatorHandle& op)
      : op_(op), on_alias_(op.typed<Tensor(Arguments...)>()), general_(op.schema()) {}

  Tensor operator()(Arguments... arguments) {
    DirectCall call;
    const bool direct = (call.accepts(arguments) && ...) && call.has_operand();
    if (C10_UNLIKELY(!direct)) return generally(arguments...);
    ensure_initialized();
    call.make_aliases();
    const c10::impl::ExcludeDispatchKeyGuard exclude(kOuterKeys);
    return call.result(on_alias_.call(call.alias(arguments)...), op_);
  }

 private:
  Tensor generally(Arguments... arguments) {
    torch::jit::Stack stack;
    (stack.emplace_back(arguments), ...);
    general_(op_, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), &stack);
    return std::move(stack.back()).toTensor();
  }

  c10::OperatorHandle op_;
  c10::TypedOperatorHandle<Tensor(Arguments...)> on_alias_;
  AliasKernel general_;
};

template <typename... Arguments>
c10::KernelFunction direct_kernel(const c10::OperatorHandle& op) {
  using Kernel = DirectKernel<Arguments...>;
  return c10::KernelFunction::makeFromUnboxedFunctor<false, Kernel>(std::make_unique<Kernel>(op));
}

struct Kind {
  std::string arguments;  // T: a tensor, S: a number
  c10::KernelFunction (*kernel)(const c10::OperatorHandle&);
};

const std::array<Kind, 5>& kinds() {
  static const std::array<Kind, 5> all = {{
      {"T", &direct_kernel<const Tensor&>},
      {"TT", &direct_kernel<const Tensor&, const Tensor&>},
      {"TTT", &direct_kernel<const Tensor&, const Tensor&, const Tensor&>},
      {"TS", &direct_kernel<const Tensor&, const Scalar&>},
      {"TTS", &direct_kernel<const Tensor&, const Tensor&, const Scalar&>},
  }};
  return all;
}

// "TTS" for add.Tensor; empty for an operator that writes its arguments, returns a view of one, or takes or
// gives anything else.
std::string arguments_of(const c10::FunctionSchema& schema) {
  const auto& returns = schema.returns();
  if (returns.size() != 1 || returns[0].type()->kind() != c10::TypeKind::TensorType) return "";
  std::string kinds;
  for (const c10::Argument& argument : schema.arguments()) {
    if (argument.alias_info() != nullptr) return "";
    const auto kind = argument.type()->kind();
    const bool number = kind == c10::TypeKind::NumberType;
    if (!number && kind != c10::TypeKind::TensorType) return "";
    kinds += number ? 'S' : 'T';
  }
  return kinds;
}

}  // namespace

bool register_direct(const c10::OperatorHandle& op) {
  // Never destroyed: an operator without its kernel would fall back to something else while the process ends.
  static auto* registered = new std::vector<c10::RegistrationHandleRAII>;
  const std::string arguments = arguments_of(op.schema());
  for (const Kind& kind : kinds()) {
    if (kind.arguments != arguments) continue;
    registered->push_back(
        c10::Dispatcher::singleton().registerImpl(op.operator_name(), c10::DispatchKey::PrivateUse1,
                                                  kind.kernel(op), std::nullopt, nullptr, "tefl, direct"));
    return true;
  }
  return false;
}

}  // namespace tefl::device
