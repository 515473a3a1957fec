#include "device/register.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <algorithm>
#include <memory>

#include "device/alias_direct.h"
#include "device/alias_kernel.h"
#include "device/alias_target.h"
#include "device/allocator.h"
#include "device/attention.h"
#include "device/autocast.h"
#include "device/copy.h"
#include "device/current_device.h"
#include "device/dropout.h"
#include "device/factory.h"
#include "device/guard.h"
#include "device/histogram.h"
#include "device/hooks.h"
#include "device/host_access.h"
#include "device/host_redirect.h"
#include "device/implement.h"
#include "device/pinned.h"
#include "device/profiler.h"
#include "device/recurrent.h"
#include "device/refused.h"
#include "device/shared.h"
#include "device/sparse.h"
#include "device/views.h"

namespace tefl::device {
namespace {

using c10::DispatchKey;
using torch::CppFunction;

std::vector<std::unique_ptr<torch::Library>>& libraries() {
  static auto* open = new std::vector<std::unique_ptr<torch::Library>>;  // never destroyed, as PyTorch's own
  return *open;
}

torch::Library& open_library(const char* ns, DispatchKey key) {
  libraries().push_back(std::make_unique<torch::Library>(torch::Library::IMPL, ns, key, __FILE__,
                                                         static_cast<uint32_t>(__LINE__)));
  return *libraries().back();
}

// Composite operators that go by the device's name inside and would then miss a kernel: aliased whole.
constexpr const char* kAliasedComposites[] = {"aten::_convolution", "aten::convolution",
                                              "aten::convolution_backward"};

bool is_aliased(const c10::OperatorName& name, const c10::OperatorHandle& op) {
  if (op.hasKernelForDispatchKey(DispatchKey::PrivateUse1)) return false;
  if (op.hasKernelForDispatchKey(alias_target().key)) return true;
  return name.overload_name.empty() && std::find(std::begin(kAliasedComposites), std::end(kAliasedComposites),
                                                 name.name) != std::end(kAliasedComposites);
}

// Whether PyTorch's encoder may pack a padded batch into a nested tensor, of which the device has none: it
// goes on with the padded one then.
bool nested_tensor_from_mask_left_aligned(const at::Tensor&, const at::Tensor&) { return false; }

void register_own_kernels() {
  auto& aten = open_library("aten", DispatchKey::PrivateUse1);
  implement(aten, "empty.memory_format", empty);
  implement(aten, "empty_strided", empty_strided);
  implement(aten, "_efficientzerotensor", efficient_zero_tensor);
  implement(aten, "_copy_from", copy_from);
  implement(aten, "_copy_from_and_resize", copy_from_and_resize);
  implement(aten, "_nested_tensor_from_mask_left_aligned", nested_tensor_from_mask_left_aligned);
  register_views(aten);
  if (alias_target().type == c10::kCPU) {  // a GPU has its own kernels for these
    implement(aten, "native_dropout", native_dropout);
    register_recurrent_cells(aten);
    register_histogram(aten);
  } else {
    register_attention(aten);
  }
}

// Bits of a tensor that the copy kernel sees to, instead of PyTorch's materialising it by another copy.
void register_copy_of_lazy_tensors() {
  open_library("aten", DispatchKey::Conjugate).impl("_copy_from", CppFunction::makeFallthrough());
  open_library("aten", DispatchKey::Negative).impl("_copy_from", CppFunction::makeFallthrough());
  open_library("aten", DispatchKey::ZeroTensor).impl("_copy_from", copy_from_zero);
}

void register_autocast_kernels() {
  register_autocast(open_library("aten", DispatchKey::AutocastPrivateUse1));
  open_library("_", DispatchKey::AutocastPrivateUse1).fallback(CppFunction::makeFallthrough());
}

void register_refusals() {
  for (const DispatchKey key : kRefusedKeys) {
    const bool computed = key == DispatchKey::SparsePrivateUse1 && !alias_target().copies;
    if (!computed) open_library("_", key).fallback(refusal(key));
  }
  // Composite, so that it would make a tensor with which nothing can be done.
  open_library("aten", DispatchKey::SparseCsrPrivateUse1)
      .impl("_sparse_compressed_tensor_unsafe", refusal(DispatchKey::SparseCsrPrivateUse1));
}

void register_sparse_tensors() {
  if (alias_target().copies) return;
  constexpr auto kSparse = DispatchKey::SparsePrivateUse1;
  register_sparse(open_library("aten", kSparse), open_library("aten", DispatchKey::PrivateUse1),
                  open_library("_", kSparse));
}

bool has_composite_kernel(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd) ||
         op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutogradNonFunctional) ||
         op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd);
}

// What an operator of aten does with sparse tensors. Of compressed ones it is refused here too, where its
// composite kernel would go on with them instead of the fallback.
void register_layouts(const c10::OperatorHandle& op, torch::Library& sparse, torch::Library& compressed) {
  if (!alias_target().copies) register_sparse_operator(sparse, op);
  if (op.hasKernelForDispatchKey(DispatchKey::SparseCsrCPU) && has_composite_kernel(op)) {
    compressed.impl(c10::toString(op.operator_name()).c_str(), refusal(DispatchKey::SparseCsrPrivateUse1));
  }
}

void register_alias_kernel(const c10::OperatorHandle& op, torch::Library& aten) {
  const bool may_be_direct = !alias_target().copies && !host_access_is_told();
  if (may_be_direct && register_direct(op)) return;
  aten.impl(c10::toString(op.operator_name()).c_str(),
            CppFunction::makeFromBoxedFunctor(std::make_unique<AliasKernel>(op.schema())));
}

int register_alias_kernels() {
  auto& dispatcher = c10::Dispatcher::singleton();
  auto& aten = open_library("aten", DispatchKey::PrivateUse1);
  auto& sparse = open_library("aten", DispatchKey::SparsePrivateUse1);
  auto& compressed = open_library("aten", DispatchKey::SparseCsrPrivateUse1);
  int count = 0;
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findOp(name);
    if (name.getNamespace() != "aten" || !op || !op->hasSchema()) continue;
    register_layouts(*op, sparse, compressed);
    if (!is_aliased(name, *op)) continue;
    register_alias_kernel(*op, aten);
    ++count;
  }
  open_library("_", DispatchKey::PrivateUse1).fallback(CppFunction::makeFromBoxedFunction<&alias_fallback>());
  return count;
}

// The device's operators: its own, then the alias kernel for all that are left.
int register_operators() {
  register_own_kernels();
  register_copy_of_lazy_tensors();
  register_autocast_kernels();
  register_refusals();
  register_sparse_tensors();
  install_attention_choice();
  return register_alias_kernels();
}

}  // namespace

std::vector<Defect> claim_defects(const tefl_provider& provider) {
  std::vector<Defect> defects;
  if (is_active()) {
    defects.push_back({"the device '" + device_name() + "' is claimed already in this process",
                       "use one device a process"});
  } else if (at::isPrivateUse1HooksRegistered() || c10::impl::hasDeviceGuardImpl(kType)) {
    defects.push_back({"another library has registered a PrivateUse1 device in this process",
                       "do not import it; TORCH_DEVICE_BACKEND_AUTOLOAD=0 keeps it from loading itself"});
  }
  if (provider.alias == TEFL_ALIAS_CUDA && !c10::impl::hasDeviceGuardImpl(c10::kCUDA)) {
    defects.push_back({"tefl_provider.alias is TEFL_ALIAS_CUDA, and this PyTorch is built without CUDA",
                       "install a CUDA build of PyTorch"});
  }
  return defects;
}

int claim(const tefl_provider* provider, const std::string& name) {
  for (const Defect& defect : claim_defects(*provider)) {
    TORCH_CHECK(false, name, " cannot be claimed: ", defect.what, "; ", defect.remedy);
  }
  set_active(provider, name);
  set_alias_target(provider->alias);
  learn_host_access();
  if (provider->alias == TEFL_ALIAS_CUDA) share_guard(alias_target().type);
  install_guard();
  install_allocator();
  install_pinned_allocator();
  install_hooks();
  install_profiler();
  if (provider->alias == TEFL_ALIAS_CPU) install_host_redirect();
  return register_operators();
}

bool has_kernel(const std::string& name, const std::string& key) {
  const auto dot = name.find('.');
  const std::string overload = dot == std::string::npos ? "" : name.substr(dot + 1);
  const auto op = c10::Dispatcher::singleton().findOp({name.substr(0, dot), overload});
  return op && op->hasKernelForDispatchKey(c10::parseDispatchKey(key));
}

}  // namespace tefl::device
