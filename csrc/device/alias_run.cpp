#include "device/alias_run.h"

#include "device/provider.h"
#include "device/streams.h"

namespace tefl::device {

void wait_before(const c10::OperatorHandle& op, c10::DeviceIndex index) {
  try {
    wait_for_current_stream(index);
  } catch (c10::Error& error) {
    error.add_context("while " + c10::toString(op.operator_name()) + " waited for the work before it");
    throw;
  }
}

void name_device(c10::NotImplementedError& error, const c10::OperatorHandle& op, c10::DeviceIndex index) {
  error.add_context(c10::str("while ", op.operator_name(), " ran on ", device_at(index)));
}

}  // namespace tefl::device
