// element.h: rows of elements as floats and back, for the three element types of the library.
#pragma once

#include <cstdint>
#include <cstring>

namespace maca {

inline uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline float float_of(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// bfloat16 is the upper half of a float32. Rounded to nearest, ties to even; a NaN stays one.
struct BFloat16 {
  uint16_t bits;

  static float load(BFloat16 element) { return float_of(uint32_t{element.bits} << 16); }

  static BFloat16 store(float value) {
    const uint32_t bits = bits_of(value);
    if (value != value) return {0x7FC0};
    return {static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16)};
  }
};

// IEEE binary16. Both directions let float32 arithmetic do the work: moving the exponent by a multiplication
// with a power of two is exact, subnormal numbers included, and adding a power of two rounds to nearest even
// at just the bit that binary16 ends with.
struct Float16 {
  uint16_t bits;

  static float load(Float16 element) {
    const uint32_t sign = uint32_t{element.bits & 0x8000u} << 16;
    const uint32_t magnitude = uint32_t{element.bits & 0x7FFFu} << 13;
    const bool special = (element.bits & 0x7C00) == 0x7C00;  // infinity or NaN keep an all-ones exponent
    const uint32_t bits = special ? magnitude | 0x7F800000 : bits_of(float_of(magnitude) * 0x1p112f);
    return float_of(sign | bits);
  }

  static Float16 store(float value) {
    const auto sign = static_cast<uint16_t>((bits_of(value) >> 16) & 0x8000);
    const float magnitude = float_of(bits_of(value) & 0x7FFFFFFF);
    return {static_cast<uint16_t>(sign | store_magnitude(magnitude))};
  }

 private:
  static uint16_t store_magnitude(float value) {
    if (value != value) return 0x7E00;
    if (value >= 65520.0f) return 0x7C00;  // halfway between the largest finite number and the next: infinity
    if (value < 0x1p-14f) return static_cast<uint16_t>(bits_of(value + 0.5f) - bits_of(0.5f));  // subnormal
    const uint32_t bits = bits_of(value);
    const uint32_t rounded = bits + 0x0FFF + ((bits >> 13) & 1);
    return static_cast<uint16_t>((rounded >> 13) - (112u << 10));
  }
};

struct Float32 {
  static float load(float element) { return element; }
  static float store(float value) { return value; }
};

/// Copies `count` elements at `source` to floats.
template <class Type, class Element>
void load_as(const void* source, int64_t count, float* values) {
  const auto* elements = static_cast<const Element*>(source);
  for (int64_t i = 0; i < count; ++i) values[i] = Type::load(elements[i]);
}

template <class Type, class Element>
void store_as(const float* values, int64_t count, void* destination) {
  auto* elements = static_cast<Element*>(destination);
  for (int64_t i = 0; i < count; ++i) elements[i] = Type::store(values[i]);
}

}  // namespace maca
