// float16 for the host: the compiler's own, which rounds to nearest even.
#pragma once

#include "cuda_on_host.h"

struct __half {
  _Float16 value;

  operator float() const { return float(value); }
};

inline __half __float2half_rn(float value) { return {_Float16(value)}; }
