// RMSNorm: forward, forward with residual, backward. The formulas are in norm_forward.cuh and
// norm_backward.cuh.
#include "entries.cuh"
#include "norm_backward.cuh"
#include "norm_forward.cuh"

namespace tefl {

#define RMSNORM_FWD(NAME, T, W, V, KEPT)                                                          \
  extern "C" __global__ void __launch_bounds__(TEFL_FORWARD_THREADS(KEPT))                        \
      tefl_rmsnorm_fwd_##NAME(const T* input, const W* weight, T* out, float* rstd, int64_t rows, \
                              int64_t columns, int64_t input_stride, float eps, float offset) {   \
    const ForwardArgs<T, W> args{input, nullptr, weight,  nullptr,      out, nullptr, nullptr,    \
                                 rstd,  rows,    columns, input_stride, 0,   eps,     offset};    \
    NormForward<Norm::kRms, false, T, W, V, KEPT>(args).run();                                    \
  }

#define ADD_RMSNORM_FWD(NAME, T, W, V, KEPT)                                                                \
  extern "C" __global__ void __launch_bounds__(TEFL_FORWARD_THREADS(KEPT))                                  \
      tefl_add_rmsnorm_fwd_##NAME(const T* input, const T* residual, const W* weight, T* out,               \
                                  T* residual_out, float* rstd, int64_t rows, int64_t columns,              \
                                  int64_t input_stride, int64_t residual_stride, float eps, float offset) { \
    const ForwardArgs<T, W> args{input,        residual,        weight, nullptr, out,                       \
                                 residual_out, nullptr,         rstd,   rows,    columns,                   \
                                 input_stride, residual_stride, eps,    offset};                            \
    NormForward<Norm::kRms, true, T, W, V, KEPT>(args).run();                                               \
  }

#define RMSNORM_BWD(NAME, T, W, V, KEPT)                                                                     \
  extern "C" __global__ void __launch_bounds__(TEFL_RMSNORM_BACKWARD_THREADS(KEPT), 1)                       \
      tefl_rmsnorm_bwd_##NAME(const T* grad, const T* input, const T* add, const float* rstd,                \
                              const W* weight, T* dinput, float* dweight, int64_t rows, int64_t columns,     \
                              int64_t grad_stride, int64_t input_stride, int64_t add_stride, float offset) { \
    extern __shared__ float shared[];                                                                        \
    const BackwardArgs<T, W> args{grad,    input,       add,          nullptr,    rstd,                      \
                                  weight,  dinput,      dweight,      nullptr,    rows,                      \
                                  columns, grad_stride, input_stride, add_stride, offset};                   \
    NormBackward<Norm::kRms, T, W, V, KEPT>(args).run(shared);                                               \
  }

TEFL_FOR_TYPES(RMSNORM_FWD)
TEFL_FOR_TYPES(ADD_RMSNORM_FWD)
TEFL_FOR_TYPES(RMSNORM_BWD)

}  // namespace tefl
