#include "device/shell.h"

#include "device/alias_target.h"

namespace tefl::device {

std::pair<at::Tensor, c10::Storage> new_shell(c10::Device device) {
  const OutsideInferenceMode scope;
  c10::Storage storage(c10::Storage::use_byte_size_t(), 0, c10::DataPtr(nullptr, device),
                       c10::GetAllocator(device.type()), /*resizable=*/true);
  auto tensor = at::detail::make_tensor<Shell>(c10::Storage(storage), c10::DispatchKeySet(alias_target().key),
                                               caffe2::TypeMeta::Make<float>());
  return {std::move(tensor), std::move(storage)};
}

// A subclass in Python may have a shape of its own.
C10_NOINLINE void Shell::cover_unusual(const c10::TensorImpl* like) {
  set_sizes_and_strides(like->sizes(), like->strides(), like->storage_offset());
  data_type_ = like->dtype();
  is_wrapped_number_ = like->is_wrapped_number();
  if (like->is_conj()) _set_conj(true);
  if (like->is_neg()) _set_neg(true);
}

}  // namespace tefl::device
