// Copies between the device and the host, and between devices.
#pragma once

#include <ATen/core/Tensor.h>

namespace tefl::device {

/// aten::_copy_from: writes `source` into `destination`, of which at least one is on the device. Converts
/// dtype and strides, broadcasts, honours conjugate and negative bits. Where both are on the device the copy
/// is in stream order; where one is on the host it is done on return, unless `non_blocking` and the host's is
/// pinned.
at::Tensor copy_from(const at::Tensor& source, const at::Tensor& destination, bool non_blocking);

/// aten::_copy_from_and_resize: the same into a destination that takes the source's shape.
at::Tensor copy_from_and_resize(const at::Tensor& source, const at::Tensor& destination);

/// aten::_copy_from under the ZeroTensor key: a source that has no memory and stands for zeros.
at::Tensor copy_from_zero(const at::Tensor& source, const at::Tensor& destination, bool non_blocking);

/// Gives `storage` `bytes` bytes on its own device, the first of which are those it had.
void resize_storage(const c10::Storage& storage, size_t bytes);

}  // namespace tefl::device
