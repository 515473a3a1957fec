// A call's whole work as data: the buffers to allocate, the kernels to launch on them, and what is handed
// back.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <c10/core/DispatchKeySet.h>

#include <memory>
#include <optional>
#include <vector>

#include "launch/kernel.h"

namespace tefl::launch {

/// Memory that each call allocates: dense, and left as it is unless `source` or `zero` says otherwise.
struct Buffer {
  std::vector<int64_t> sizes;
  at::ScalarType dtype;
  /// The argument whose values it is filled with, cast where the dtypes differ.
  std::optional<size_t> source;
  bool zero = false;
};

/// What a parameter of a kernel is: the address of an argument's or of a buffer's first element, or a value.
struct Operand {
  enum Kind : uint8_t { kInput, kBuffer, kValue } kind;
  /// Number of the argument or of the buffer, or the value's bytes.
  uint64_t word;
};

/// One launch; `operands` has one for each parameter of the kernel.
struct Step {
  std::shared_ptr<Kernel> kernel;
  Config config;
  std::vector<Operand> operands;
};

/// Serves calls of one form: what depends on sizes, strides, dtypes and numbers is settled when it is
/// written, addresses alone differ from call to call. Never changed, so any number of threads may run it at
/// once.
class Recipe {
 public:
  /// For calls of `arity` arguments with tensors on `device`. `results` are numbers of buffers.
  Recipe(c10::Device device, size_t arity, std::vector<Buffer> buffers, std::vector<Step> steps,
         std::vector<size_t> results);

  /// Replaces the arguments on top of the stack by the results. They are there still if it throws. The
  /// kernels are enqueued on the device's current stream.
  void run(torch::jit::Stack* stack) const;

 private:
  using Tensors = c10::SmallVector<at::Tensor, 8>;

  at::Tensor make(const Buffer& buffer, const c10::IValue* arguments) const;
  void launch(const c10::IValue* arguments, const Tensors& buffers) const;

  const c10::Device device_;
  const c10::DispatchKeySet keys_;
  const size_t arity_;
  const std::vector<Buffer> buffers_;
  const std::vector<Step> steps_;
  const std::vector<size_t> results_;
};

}  // namespace tefl::launch
