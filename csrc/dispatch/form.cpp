#include "dispatch/form.h"

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>

namespace tefl::dispatch {
namespace {

enum Kind : uint8_t { kNone, kTensor, kBool, kInt, kDouble, kString, kDevice, kInts, kTensors, kOptionals };

int64_t word(Kind kind, int64_t rest = 0) { return static_cast<int64_t>(kind) | rest << 8; }

int64_t bits(double value) {
  int64_t result;
  std::memcpy(&result, &value, sizeof result);
  return result;
}

// What machine code that reads 16 bytes at a time must know of a tensor.
bool is_aligned(const c10::TensorImpl& impl) {
  const auto start = reinterpret_cast<uintptr_t>(impl.unsafe_storage().data());
  const int64_t offset = impl.storage_offset();
  return (offset == 0 ? start : start + offset * impl.itemsize()) % 16 == 0;
}

int64_t packed(c10::Device device) {
  return static_cast<int64_t>(device.type()) | static_cast<int64_t>(static_cast<uint8_t>(device.index()))
                                                   << 8;
}

}  // namespace

bool Form::describe(int64_t token, const c10::IValue* arguments, size_t count) {
  words_.clear();
  push(token);
  for (size_t i = 0; i < count; ++i)
    if (!add(arguments[i])) return false;
  uint64_t mixed = words_.size();
  for (const int64_t value : words_) {
    mixed = (mixed ^ static_cast<uint64_t>(value)) * 0x9e3779b97f4a7c15ULL;
    mixed ^= mixed >> 32;
  }
  hash_ = mixed;
  return true;
}

bool Form::add(const c10::IValue& value) {
  if (value.isTensor()) return add(value.toTensor());
  if (value.isNone()) {
    push(word(kNone));
  } else if (value.isBool()) {
    push(word(kBool, value.toBool()));
  } else if (value.isInt()) {
    push(word(kInt));
    push(value.toInt());
  } else if (value.isDouble()) {
    push(word(kDouble));
    push(bits(value.toDouble()));
  } else if (value.isDevice()) {
    push(word(kDevice, packed(value.toDevice())));
  } else if (value.isString()) {
    const c10::string_view text = value.toStringView();
    push(word(kString, static_cast<int64_t>(text.size())));
    for (const char letter : text) push(letter);
  } else if (value.isIntList()) {
    const auto list = value.toIntList();
    push(word(kInts, static_cast<int64_t>(list.size())));
    for (const int64_t element : list) push(element);
  } else if (value.isTensorList()) {
    const auto list = value.toTensorList();
    push(word(kTensors, static_cast<int64_t>(list.size())));
    for (size_t i = 0; i < list.size(); ++i)
      if (!add(list.get(i))) return false;
  } else if (value.isOptionalTensorList()) {
    const auto list = value.toOptionalTensorList();
    push(word(kOptionals, static_cast<int64_t>(list.size())));
    for (size_t i = 0; i < list.size(); ++i)
      if (!add(list.get(i).value_or(at::Tensor()))) return false;
  } else {
    return false;
  }
  return true;
}

bool Form::add(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    push(word(kNone));
    return true;
  }
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  if (tensor.layout() != at::kStrided || impl.has_symbolic_sizes_strides() || !impl.has_storage())
    return false;
  const auto sizes = impl.sizes(), strides = impl.strides();
  push(word(kTensor, static_cast<int64_t>(tensor.scalar_type()) | packed(tensor.device()) << 8 |
                         static_cast<int64_t>(sizes.size()) << 24 |
                         static_cast<int64_t>(is_aligned(impl)) << 40));
  words_.append(sizes.begin(), sizes.end());
  words_.append(strides.begin(), strides.end());
  return true;
}

}  // namespace tefl::dispatch
