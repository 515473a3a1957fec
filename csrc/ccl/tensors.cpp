#include "ccl/tensors.h"

#include <c10/util/Exception.h>

#include <optional>

#include "device/current_device.h"
#include "device/provider.h"
#include "device/refused.h"

namespace tefl::ccl {
namespace {

void require_ours(const Call& call, c10::Device device) {
  TORCH_CHECK_VALUE(device.type() == device::kType, call.name, ": got a tensor on ", device,
                    ", this process group is for tensors on ", device::device_name(),
                    "; init_process_group(\"cpu:gloo,", device::device_name(), ":tefl\") makes one for both");
}

// Of an element of lists of lists PyTorch's dispatcher has not asked what kind it is.
void require_memory(const Call& call, const at::Tensor& tensor) {
  const auto keys = tensor.key_set();
  TORCH_CHECK_VALUE(
      !keys.has(c10::DispatchKey::Python), call.name,
      ": got a tensor of a subclass that computes in Python; pass the tensors that it is made of");
  TORCH_CHECK_VALUE(!keys.has(c10::DispatchKey::ZeroTensor), call.name,
                    ": got zeros that have no memory; pass .clone()");
  TORCH_CHECK_VALUE(device::is_strided(tensor), call.name, ": got a tensor that is not strided but ",
                    device::layout_of(tensor), "; pass .to_dense(), or the tensors that it is made of");
  TORCH_CHECK_VALUE(tensor.storage().data() != nullptr || tensor.numel() == 0, call.name,
                    ": got a tensor of sizes ", tensor.sizes(), " whose memory was given back");
}

void require_dense(const Call& call, const at::Tensor& tensor) {
  if (C10_LIKELY(is_usual(tensor))) return;
  require_memory(call, tensor);
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
