// Element types and 16-byte memory access shared by the kernels of this folder. No torch header.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>
#include <string.h>

namespace tefl {

using bf16 = __nv_bfloat16;
using f16 = __half;
using f32 = float;

/// How many elements of T fill the widest load a thread can issue.
template <typename T>
constexpr int kVector = 16 / sizeof(T);

template <typename T>
__device__ __forceinline__ float to_float(T value) {
  return static_cast<float>(value);
}

template <typename T>
__device__ __forceinline__ T from_float(float value) {
  return static_cast<T>(value);
}
template <>
__device__ __forceinline__ bf16 from_float<bf16>(float value) {
  return __float2bfloat16_rn(value);
}
template <>
__device__ __forceinline__ f16 from_float<f16>(float value) {
  return __float2half_rn(value);
}

/// V neighbouring elements, aligned so that they move in one access of up to 16 bytes (two for 8 floats).
template <typename T, int V>
struct alignas(sizeof(T) * V < 16 ? sizeof(T) * V : 16) Pack {
  T at[V];

  __device__ static Pack load(const T* pointer) { return *reinterpret_cast<const Pack*>(pointer); }
  __device__ void store(T* pointer) const { *reinterpret_cast<Pack*>(pointer) = *this; }

  /// Makes the compiler forget what it knows of the elements. Without it, values that were converted to float
  /// before a sum over the row stay in registers as floats until after it, twice the size of what was loaded.
  __device__ void stay_packed() {
#pragma unroll
    for (int k = 0; k < int(sizeof(T)) * V / 4; ++k) {
      uint32_t word;
      memcpy(&word, reinterpret_cast<char*>(at) + 4 * k, 4);
      asm volatile("" : "+r"(word));
      memcpy(reinterpret_cast<char*>(at) + 4 * k, &word, 4);
    }
  }
};

}  // namespace tefl
