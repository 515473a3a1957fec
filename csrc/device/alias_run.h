// Running an operator on the alias device once its arguments are that device's.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>

#include <optional>

#include "device/alias_target.h"
#include "device/current_device.h"
#include "device/host_redirect.h"

namespace tefl::device {

/// Out while an operator runs on the alias device: gradients are the outer call's business, and so is
/// autocast. With these in, the alias device's would apply.
constexpr c10::DispatchKeySet kOuterKeys =
    c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset;

/// Waits until device `index` has done what is in the current stream: a kernel on the host runs now, on this
/// thread, not in stream order. Errors name `op`.
void wait_before(const c10::OperatorHandle& op, c10::DeviceIndex index);

/// Adds to an error of `op` on the alias device which device was meant.
void name_device(c10::NotImplementedError& error, const c10::OperatorHandle& op, c10::DeviceIndex index);

/// Calls `run`, which runs `op` for device `index`. What it allocates on the host in doing so is memory of
/// the device.
template <typename Run>
decltype(auto) run_on_alias(const c10::OperatorHandle& op, c10::DeviceIndex index, const Run& run) {
  std::optional<c10::impl::ExcludeDispatchKeyGuard> exclude;
  if (!c10::impl::tls_local_dispatch_key_set().excluded_.has_all(kOuterKeys)) exclude.emplace(kOuterKeys);
  try {
    if (alias_target().type != c10::kCPU || alias_target().copies) return run();
    wait_before(op, index);
    const RedirectHostMemory redirect(index);
    return run();
  } catch (c10::NotImplementedError& error) {
    // What the alias device lacks, a dtype for the most part, is said in its terms: the device is named here.
    name_device(error, op, index);
    throw;
  }
}

}  // namespace tefl::device
