#include "device/autograd_threads.h"

#include <ATen/ThreadLocalPythonObjects.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

#include "device/current_device.h"
#include "device/provider.h"

namespace tefl::device {
namespace {

/// The calling thread has no stashed Python objects while one of these lives.
class NothingOfPython {
 public:
  NothingOfPython() { Objects::set_state({}); }
  ~NothingOfPython() { Objects::set_state(before_); }
  NothingOfPython(const NothingOfPython&) = delete;
  NothingOfPython& operator=(const NothingOfPython&) = delete;

 private:
  using Objects = at::impl::ThreadLocalPythonObjects;
  const Objects before_ = Objects::get_state();
};

// A thread takes its work in turn: once it has done this backward, of no elements and without a Python object
// anywhere, it has let go of all before.
void run_empty_backward(c10::DeviceIndex index) {
  using torch::autograd::impl::gradient_edge;
  const auto options = at::TensorOptions().device(device_at(index));
  const at::Tensor leaf = at::empty({0}, options).set_requires_grad(true);
  const at::Tensor result = leaf.view({0});
  torch::autograd::Engine::get_default_engine().execute({gradient_edge(result)}, {at::empty({0}, options)},
                                                        /*keep_graph=*/false, /*create_graph=*/false,
                                                        /*accumulate_grad=*/false, {gradient_edge(leaf)});
}

}  // namespace

void settle_autograd_threads() {
  if (!is_initialized() || in_bad_fork()) return;
  const NothingOfPython scope;
  for (c10::DeviceIndex index = 0; index < device_count(); ++index) run_empty_backward(index);
}

}  // namespace tefl::device
