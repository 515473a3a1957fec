// bfloat16 for the host: the upper half of a float, rounded to nearest even.
#pragma once

#include "cuda_on_host.h"

struct __nv_bfloat16 {
  uint16_t bits;

  operator float() const {
    const uint32_t word = uint32_t(bits) << 16;
    float value;
    memcpy(&value, &word, sizeof(value));
    return value;
  }
};

inline __nv_bfloat16 __float2bfloat16_rn(float value) {
  uint32_t word;
  memcpy(&word, &value, sizeof(word));
  if (value != value) return {0x7fff};
  return {uint16_t((word + 0x7fff + ((word >> 16) & 1)) >> 16)};
}
