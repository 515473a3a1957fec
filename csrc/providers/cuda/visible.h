// Which devices this process will see, found out without starting the CUDA driver.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tefl_cuda {

/// How many devices there are for this process: by the NVIDIA management library and CUDA_VISIBLE_DEVICES, so
/// that a later fork is not spoilt. Where those cannot tell (no management library, parts of a GPU), the
/// driver is started and asked, as torch.cuda.device_count() does then. 0 where there is no driver.
int32_t visible_devices();

/// What CUDA_VISIBLE_DEVICES=`setting` leaves of devices with the UUIDs `uuids`: how many, by CUDA's rules.
/// Numbers and beginnings of UUIDs, read up to the first that is no device; one named twice leaves none.
/// -1 where it names parts of a GPU.
int32_t count_visible(const std::string& setting, const std::vector<std::string>& uuids);

}  // namespace tefl_cuda
