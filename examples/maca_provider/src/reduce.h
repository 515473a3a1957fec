// reduce.h: one result element from the elements of all ranks, for every type and reduction of the CCL table.
#pragma once

#include <cstdint>
#include <vector>

#include "tefl_provider.h"

namespace maca {

/// How many bytes an element takes; throws Error, TEFL_ERR_UNSUPPORTED, for an unknown type.
uint64_t bytes_of(tefl_dtype dtype);

/// Throws Error, TEFL_ERR_UNSUPPORTED, for an unknown reduction.
void check_reduction(tefl_reduction reduction);

/// For messages: "float32", "MAX".
const char* type_name(tefl_dtype dtype);
const char* reduction_name(tefl_reduction reduction);

/// `output`[i] = the reduction of parts[0][i], parts[1][i], ..., always in this order: every rank that
/// reduces the same parts gets the same bits. `output` may be one of the parts.
void reduce_parts(const std::vector<const void*>& parts, void* output, uint64_t count, tefl_dtype dtype,
                  tefl_reduction reduction);

}  // namespace maca
