#include "ccl/tensors.h"

#include <c10/util/Exception.h>

#include <optional>

#include "device/current_device.h"
#include "device/provider.h"

namespace tefl::ccl {
namespace {

void require_ours(const Call& call, c10::Device device) {
  TORCH_CHECK_VALUE(device.type() == device::kType, call.name, ": got a tensor on ", device,
                    ", this process group is for tensors on ", device::device_name(),
                    "; init_process_group(\"cpu:gloo,", device::device_name(), ":tefl\") makes one for both");
}

void require_dense(const Call& call, const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(tensor.has_storage(), call.name, ": got a tensor of layout ", tensor.layout(),
                    "; only strided ones are supported");
  TORCH_CHECK_VALUE(tensor.is_non_overlapping_and_dense(), call.name, ": got a tensor of sizes ",
                    tensor.sizes(), " and strides ", tensor.strides(),
                    ", which has gaps or overlaps; pass .contiguous()");
}

}  // namespace

c10::Device device_of(const Call& call, std::initializer_list<at::TensorList> lists) {
  std::optional<c10::Device> first;
  for (const auto& list : lists) {
    for (const auto& tensor : list) {
      const auto device = tensor.device();
      if (!first) {
        require_ours(call, device);
        first = device;
      }
      TORCH_CHECK_VALUE(device == *first, call.name, ": got tensors on ", *first, " and on ", device,
                        "; all must be on one device");
      require_dense(call, tensor);
    }
  }
  return first ? *first : device::device_at(device::current_device());
}

Tensors flat(const Lists& lists) {
  Tensors all;
  for (const auto& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

Tensors of_each_rank(const Lists& lists, size_t i) {
  Tensors found;
  for (const auto& of_rank : lists) found.push_back(of_rank.at(i));
  return found;
}

Tensors concatenated(at::TensorList tensors, at::TensorList more) {
  Tensors all = tensors.vec();
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

}  // namespace tefl::ccl
