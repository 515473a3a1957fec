// C++ signatures of operators, and what their schemas look like.
#pragma once

#include <ATen/core/IListRef.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <c10/core/SymIntArrayRef.h>
#include <c10/util/OptionalArrayRef.h>

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

namespace tefl::device {

/// What a schema calls a type; a written tensor is "Tensor!".
template <typename Type>
inline const char* const kSchemaType = nullptr;

template <>
inline const char* const kSchemaType<const at::Tensor&> = "Tensor";
template <>
inline const char* const kSchemaType<at::Tensor> = "Tensor";
template <>
inline const char* const kSchemaType<at::Tensor&> = "Tensor!";
template <>
inline const char* const kSchemaType<const std::optional<at::Tensor>&> = "Tensor?";
template <>
inline const char* const kSchemaType<at::TensorList> = "Tensor[]";
template <>
inline const char* const kSchemaType<const at::ITensorListRef&> = "Tensor[]";
template <>
inline const char* const kSchemaType<std::vector<at::Tensor>> = "Tensor[]";
template <>
inline const char* const kSchemaType<const at::Scalar&> = "Scalar";
template <>
inline const char* const kSchemaType<at::Scalar> = "Scalar";
template <>
inline const char* const kSchemaType<const std::optional<at::Scalar>&> = "Scalar?";
template <>
inline const char* const kSchemaType<at::ArrayRef<at::Scalar>> = "Scalar[]";
template <>
inline const char* const kSchemaType<bool> = "bool";
template <>
inline const char* const kSchemaType<std::optional<bool>> = "bool?";
template <size_t count>
inline const char* const kSchemaType<std::array<bool, count>> = "bool[]";
template <>
inline const char* const kSchemaType<int64_t> = "int";
template <>
inline const char* const kSchemaType<at::IntArrayRef> = "int[]";
template <>
inline const char* const kSchemaType<at::OptionalIntArrayRef> = "int[]?";
template <>
inline const char* const kSchemaType<c10::SymInt> = "SymInt";
template <>
inline const char* const kSchemaType<c10::SymIntArrayRef> = "SymInt[]";
template <>
inline const char* const kSchemaType<at::OptionalSymIntArrayRef> = "SymInt[]?";
template <>
inline const char* const kSchemaType<double> = "float";
template <>
inline const char* const kSchemaType<std::optional<double>> = "float?";
template <>
inline const char* const kSchemaType<c10::string_view> = "str";
template <>
inline const char* const kSchemaType<at::ScalarType> = "ScalarType";
template <>
inline const char* const kSchemaType<std::optional<at::ScalarType>> = "ScalarType?";

/// "Tensor Tensor Scalar -> Tensor" for a C++ signature.
template <typename Signature>
struct SchemaText;

template <typename Result>
struct ResultText {
  static std::string text() { return kSchemaType<Result>; }
};
template <>
struct ResultText<void> {
  static std::string text() { return ""; }
};
template <typename... Results>
struct ResultText<std::tuple<Results...>> {
  static std::string text() {
    std::string all;
    ((all += (all.empty() ? "" : " ") + ResultText<Results>::text()), ...);
    return all;
  }
};

template <typename Result, typename... Arguments>
struct SchemaText<Result(Arguments...)> {
  static std::string text() {
    std::string all;
    ((all += std::string(kSchemaType<Arguments>) + " "), ...);
    return all + "-> " + ResultText<Result>::text();
  }
};

/// The same for a schema; empty for one that returns a view of an argument, or writes to a list that it may
/// resize.
std::string schema_text(const c10::FunctionSchema& schema);

}  // namespace tefl::device
