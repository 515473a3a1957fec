/* maca.h: what the maca library offers besides the provider table: its own kernels.
 *
 * tefl knows nothing of these. The Python package beside this library calls them from the implementations
 * that it registers with tefl (maca_provider/plugin.py).
 */
#ifndef MACA_H_
#define MACA_H_

#include <stdint.h>

#include "tefl_provider.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Element types of a tensor's memory. maca_provider/library.py has the same numbers. */
typedef int32_t maca_type;
enum { MACA_FLOAT32 = 0, MACA_BFLOAT16 = 1, MACA_FLOAT16 = 2 };

/* Enqueue on `stream` a root mean square normalisation of `rows` rows of `columns` elements:
 *
 *     rsigma[r] = 1 / sqrt(mean(input[r, :]^2) + eps)
 *     out[r, c] = input[r, c] * rsigma[r] * weight[c]             (1 + weight[c] with zero_centered_gamma)
 *
 * All four are dense and row-major on the stream's card; `rsigma` is float32, the others have the types
 * named. Computed in float32. Returns at once: the memory must stay valid until the stream has got there,
 * which tefl's allocator sees to for tensors allocated on `stream`, freed or not. On error, maca_last_error()
 * says why. */
TEFL_PROVIDER_EXPORT tefl_status maca_rmsnorm_fwd(void* out, float* rsigma, const void* input,
                                                  const void* weight, maca_type out_type,
                                                  maca_type input_type, maca_type weight_type, int64_t rows,
                                                  int64_t columns, float eps, int32_t zero_centered_gamma,
                                                  tefl_stream stream);

/* The calling thread's message for its last call into this library that failed. */
TEFL_PROVIDER_EXPORT const char* maca_last_error(void);

#ifdef __cplusplus
}
#endif

#endif /* MACA_H_ */
