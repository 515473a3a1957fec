// Which file fills in which functions of the provider's tables.
#pragma once

#include "tefl_provider.h"

namespace tefl_cuda {

void fill_devices(tefl_runtime& table);  // device.cpp: start, count, properties, synchronize
void fill_memory(tefl_runtime& table);   // memory.cpp: allocate, copy, set
void fill_streams(tefl_runtime& table);  // stream.cpp: streams and events

}  // namespace tefl_cuda
