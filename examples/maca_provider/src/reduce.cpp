// reduce.cpp: see reduce.h.
#include "reduce.h"

#include <string>
#include <type_traits>

#include "element.h"
#include "status.h"

namespace maca {
namespace {

// A type of C++ is its own form to compute in; the two short floats are computed as float32.
template <class Element>
struct Plain {
  using Stored = Element;
  using Computed = Element;
  static Element load(Element element) { return element; }
  static Element store(Element value) { return value; }
};

template <class Type>
struct Short {
  using Stored = Type;
  using Computed = float;
  static float load(Type element) { return Type::load(element); }
  static Type store(float value) { return Type::store(value); }
};

// Integers wrap around in C++'s unsigned arithmetic and nowhere else.
template <class Value>
Value sum(Value a, Value b) {
  if constexpr (std::is_integral_v<Value>) {
    return static_cast<Value>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  } else {
    return a + b;
  }
}

template <class Value>
Value product(Value a, Value b) {
  if constexpr (std::is_integral_v<Value>) {
    return static_cast<Value>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
  } else {
    return a * b;
  }
}

// Integers towards zero, as C++ does; in 64 bits, for the number of ranks may not fit in the type.
template <class Value>
Value divide(Value value, size_t ranks) {
  if constexpr (std::is_integral_v<Value>) {
    return static_cast<Value>(static_cast<int64_t>(value) / static_cast<int64_t>(ranks));
  } else {
    return value / static_cast<Value>(ranks);
  }
}

template <class Value>
Value combine(Value a, Value b, tefl_reduction reduction) {
  switch (reduction) {
    case TEFL_PRODUCT:
      return product(a, b);
    case TEFL_MIN:
      return b < a || b != b ? b : a;  // a NaN stays one
    case TEFL_MAX:
      return a < b || b != b ? b : a;
    default:
      return sum(a, b);
  }
}

template <class Type>
void reduce_as(const std::vector<const void*>& parts, void* output, uint64_t count,
               tefl_reduction reduction) {
  using Stored = typename Type::Stored;
  using Computed = typename Type::Computed;
  auto* results = static_cast<Stored*>(output);
  for (uint64_t i = 0; i < count; ++i) {
    Computed value = Type::load(static_cast<const Stored*>(parts[0])[i]);
    for (size_t part = 1; part < parts.size(); ++part) {
      value = combine(value, Computed(Type::load(static_cast<const Stored*>(parts[part])[i])), reduction);
    }
    if (reduction == TEFL_AVG) value = divide(value, parts.size());
    results[i] = Type::store(value);
  }
}

}  // namespace

uint64_t bytes_of(tefl_dtype dtype) {
  static constexpr uint64_t kBytes[] = {1, 1, 2, 4, 8, 2, 2, 4, 8};  // in the order of tefl_dtype
  if (dtype >= TEFL_UINT8 && dtype <= TEFL_FLOAT64) return kBytes[dtype];
  throw Error(TEFL_ERR_UNSUPPORTED, "maca's collectives do not know type " + std::to_string(dtype));
}

void check_reduction(tefl_reduction reduction) {
  if (reduction >= TEFL_SUM && reduction <= TEFL_AVG) return;
  throw Error(TEFL_ERR_UNSUPPORTED, "maca's collectives do not know reduction " + std::to_string(reduction));
}

const char* type_name(tefl_dtype dtype) {
  static constexpr const char* kNames[] = {"uint8",   "int8",     "int16",   "int32",  "int64",
                                           "float16", "bfloat16", "float32", "float64"};
  return dtype >= TEFL_UINT8 && dtype <= TEFL_FLOAT64 ? kNames[dtype] : "an unknown type";
}

const char* reduction_name(tefl_reduction reduction) {
  static constexpr const char* kNames[] = {"SUM", "PRODUCT", "MIN", "MAX", "AVG"};
  const bool known = reduction >= TEFL_SUM && reduction <= TEFL_AVG;
  return known ? kNames[reduction] : "an unknown reduction";
}

void reduce_parts(const std::vector<const void*>& parts, void* output, uint64_t count, tefl_dtype dtype,
                  tefl_reduction reduction) {
  switch (dtype) {
    case TEFL_UINT8:
      return reduce_as<Plain<uint8_t>>(parts, output, count, reduction);
    case TEFL_INT8:
      return reduce_as<Plain<int8_t>>(parts, output, count, reduction);
    case TEFL_INT16:
      return reduce_as<Plain<int16_t>>(parts, output, count, reduction);
    case TEFL_INT32:
      return reduce_as<Plain<int32_t>>(parts, output, count, reduction);
    case TEFL_INT64:
      return reduce_as<Plain<int64_t>>(parts, output, count, reduction);
    case TEFL_FLOAT16:
      return reduce_as<Short<Float16>>(parts, output, count, reduction);
    case TEFL_BFLOAT16:
      return reduce_as<Short<BFloat16>>(parts, output, count, reduction);
    case TEFL_FLOAT32:
      return reduce_as<Plain<float>>(parts, output, count, reduction);
    default:
      return reduce_as<Plain<double>>(parts, output, count, reduction);
  }
}

}  // namespace maca
