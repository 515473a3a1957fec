// One allocation of device memory, as it is seen from the host and as the simulator sees it.
#pragma once

#include <cstddef>

#include "config.h"

namespace tefl_sim {

/// Memory that, where it is guarded, has two addresses: the public one, which is what tensors show and which
/// faults unless opened, and the simulator's own. Not thread-safe. Throws std::bad_alloc where there is no
/// memory.
class Allocation {
 public:
  Allocation(size_t bytes, Guarding guarding);
  ~Allocation();
  Allocation(const Allocation&) = delete;
  Allocation& operator=(const Allocation&) = delete;

  char* begin() const { return public_; }
  size_t bytes() const { return bytes_; }
  /// The simulator's address of the byte that is `address` to others.
  char* own(const char* address) const { return own_ + (address - public_); }

  /// Lets loads and stores through, once more or once less. Openings are counted.
  void open();
  void close();
  bool is_open() const { return openings_ > 0; }

 private:
  void protect(int protection) const;

  const size_t bytes_;
  size_t mapped_ = 0;  // 0: not guarded
  char* public_ = nullptr;
  char* own_ = nullptr;
  int openings_ = 0;
};

}  // namespace tefl_sim
