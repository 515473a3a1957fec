// LayerNorm: forward and backward. The formulas are in norm_forward.cuh and norm_backward.cuh.
#include "entries.cuh"
#include "norm_backward.cuh"
#include "norm_forward.cuh"

namespace tefl {

#define LAYERNORM_FWD(NAME, T, W, V, KEPT)                                                            \
  extern "C" __global__ void __launch_bounds__(TEFL_FORWARD_THREADS(KEPT)) tefl_layernorm_fwd_##NAME( \
      const T* input, const W* weight, const W* bias, T* out, float* mean, float* rstd, int64_t rows, \
      int64_t columns, int64_t input_stride, float eps, float offset) {                               \
    const ForwardArgs<T, W> args{input, nullptr, weight,  bias,         out, nullptr, mean,           \
                                 rstd,  rows,    columns, input_stride, 0,   eps,     offset};        \
    NormForward<Norm::kLayer, false, T, W, V, KEPT>(args).run();                                      \
  }

#define LAYERNORM_BWD(NAME, T, W, V, KEPT)                                                                   \
  extern "C" __global__ void __launch_bounds__(TEFL_LAYERNORM_BACKWARD_THREADS(KEPT), 1)                     \
      tefl_layernorm_bwd_##NAME(const T* grad, const T* input, const float* mean, const float* rstd,         \
                                const W* weight, T* dinput, float* dweight, float* dbias, int64_t rows,      \
                                int64_t columns, int64_t grad_stride, int64_t input_stride, float offset) {  \
    extern __shared__ float shared[];                                                                        \
    const BackwardArgs<T, W> args{grad,  input, nullptr, mean,        rstd,         weight, dinput, dweight, \
                                  dbias, rows,  columns, grad_stride, input_stride, 0,      offset};         \
    NormBackward<Norm::kLayer, T, W, V, KEPT>(args).run(shared);                                             \
  }

TEFL_FOR_TYPES(LAYERNORM_FWD)
TEFL_FOR_TYPES(LAYERNORM_BWD)

}  // namespace tefl
