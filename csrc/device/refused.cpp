#include "device/refused.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/util/Exception.h>

#include <memory>

#include "device/provider.h"

namespace tefl::device {
namespace {

const char* kind_of(c10::DispatchKey key) {
  switch (key) {
    case c10::DispatchKey::SparsePrivateUse1:
      return "sparse";
    case c10::DispatchKey::SparseCsrPrivateUse1:
      return "sparse compressed";
    case c10::DispatchKey::QuantizedPrivateUse1:
      return "quantized";
    default:
      return "nested (strided)";
  }
}

class Refusal final : public c10::OperatorKernel {
 public:
  explicit Refusal(c10::DispatchKey key) : kind_(kind_of(key)) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack*) {
    TORCH_CHECK_NOT_IMPLEMENTED(false, device_name(), ": ", op.operator_name(), " meets a ", kind_,
                                " tensor; only strided ones are supported. Compute with it on the CPU");
  }

 private:
  const char* kind_;
};

}  // namespace

torch::CppFunction refusal(c10::DispatchKey key) {
  return torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Refusal>(key));
}

std::string layout_of(const at::Tensor& tensor) {
  if (tensor.is_quantized()) return "a quantized one";
  return tensor.is_nested() ? "a nested one" : c10::str(tensor.layout());
}

void refuse(const c10::OperatorHandle& op, const at::Tensor& tensor, const char* verb) {
  TORCH_CHECK_NOT_IMPLEMENTED(!tensor.is_quantized(), device_name(), ": ", op.operator_name(), " ", verb,
                              " a quantized tensor; only strided ones of plain numbers are supported. "
                              "Compute with it on the CPU");
  TORCH_CHECK_NOT_IMPLEMENTED(!tensor.is_nested(), device_name(), ": ", op.operator_name(), " ", verb,
                              " a nested (strided) tensor; only strided ones are supported. "
                              "Compute with it on the CPU");
  C10_THROW_ERROR(NotImplementedError,
                  c10::str(device_name(), ": ", op.operator_name(), " ", verb, " a tensor of layout ",
                           tensor.layout(), "; only strided ones are supported"));
}

}  // namespace tefl::device
