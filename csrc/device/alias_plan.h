// What the alias kernel knows of an operator before it is called.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>

namespace tefl::device {

/// Read off an operator's schema once, when the kernel is registered. Arguments are numbered from 0; the 65th
/// and later ones (no such operator exists) count as neither written nor indices.
struct AliasPlan {
  explicit AliasPlan(const c10::FunctionSchema& schema);

  bool writes(size_t argument) const { return has(written, argument); }
  bool takes_host_indices(size_t argument) const { return has(indices, argument); }
  bool may_default_generator(size_t argument) const { return has(generators, argument); }
  bool mutates() const { return written != 0; }

  uint64_t written = 0;     // Tensor(a!) and lists of them: in-place and out= arguments
  uint64_t indices = 0;     // Tensor?[] indices, which may lie on the CPU, as on CUDA
  uint64_t generators = 0;  // Generator?, where None means the device's default
  size_t arguments = 0;
  size_t returns = 0;

 private:
  static bool has(uint64_t mask, size_t argument) { return argument < 64 && (mask >> argument & 1) != 0; }
};

}  // namespace tefl::device
