#include "device/generator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <c10/util/Exception.h>

#include <array>
#include <mutex>

#include "device/alias_target.h"
#include "device/current_device.h"
#include "device/provider.h"
#include "device/shared.h"

namespace tefl::device {
namespace {

// All state lives in the inner generator, so that numbers and states are those of the alias device.
class DeviceGenerator final : public c10::GeneratorImpl {
 public:
  DeviceGenerator(c10::DeviceIndex index, at::Generator inner)
      : c10::GeneratorImpl(device_at(index), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        inner_(std::move(inner)) {}

  const at::Generator& inner() const { return inner_; }
  static c10::DeviceType device_type() { return kType; }

  void set_current_seed(uint64_t seed) override { impl().set_current_seed(seed); }
  // PyTorch pickles the offset of every generator but the CPU's, which has none: it stays 0 there.
  void set_offset(uint64_t offset) override {
    if (has_offset()) return impl().set_offset(offset);
    TORCH_CHECK(offset == 0, device_name(), ": a generator of this device has no offset, got ", offset,
                "; use manual_seed or set_state");
  }
  uint64_t get_offset() const override { return has_offset() ? impl().get_offset() : 0; }
  uint64_t current_seed() const override { return impl().current_seed(); }
  uint64_t seed() override { return impl().seed(); }
  void set_state(const c10::TensorImpl& state) override {
    try {
      impl().set_state(state);
    } catch (const c10::TypeError&) {
      throw;
    } catch (const c10::Error&) {  // it speaks of the alias device
      TORCH_CHECK(false, device_name(), ": these ", state.numel(), " bytes are no state of a generator; ",
                  "want what its get_state() returned, ", get_state()->numel(), " bytes");
    }
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return impl().get_state(); }

 private:
  DeviceGenerator* clone_impl() const override {
    return new DeviceGenerator(device_.index(), inner_.clone());
  }
  bool has_offset() const { return inner_.device().type() != c10::kCPU; }
  c10::GeneratorImpl& impl() const { return *inner_.unsafeGetGeneratorImpl(); }

  at::Generator inner_;
};

at::Generator new_inner(c10::DeviceIndex index) {
  if (alias_target().type == c10::kCPU) return at::detail::createCPUGenerator(c10::default_rng_seed_val);
  return at::globalContext().getAcceleratorHooksInterface(alias_target().type).getNewGenerator(index);
}

// On CUDA the default generator is CUDA's own, so that both names of the device draw from one sequence.
at::Generator default_inner(c10::DeviceIndex index) {
  if (alias_target().type == c10::kCPU) return new_inner(index);
  return at::globalContext().defaultGenerator(alias_target().device(index));
}

}  // namespace

const at::Generator& default_generator(c10::DeviceIndex index) {
  static auto* generators = new std::array<at::Generator, 128>;  // never destroyed
  static std::mutex mutex;
  if (shared_guard()) ensure_initialized();
  index = resolve_index(index);
  std::lock_guard<std::mutex> lock(mutex);
  at::Generator& generator = (*generators)[index];
  if (!generator.defined()) generator = at::make_generator<DeviceGenerator>(index, default_inner(index));
  return generator;
}

at::Generator new_generator(c10::DeviceIndex index) {
  if (shared_guard()) ensure_initialized();
  index = resolve_index(index);
  return at::make_generator<DeviceGenerator>(index, new_inner(index));
}

at::Generator inner_generator(const at::Generator& generator) {
  return at::check_generator<DeviceGenerator>(generator)->inner();
}

}  // namespace tefl::device
