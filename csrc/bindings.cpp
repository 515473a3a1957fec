// The extension module tefl._C. Importing it registers nothing with PyTorch: a device is claimed by an
// explicit call, so that a process that only launches kernels leaves the PrivateUse1 slot to others.
#include <torch/extension.h>

#ifdef TEFL_WITH_C10D
#include "ccl/python.h"
#endif
#include "device/python.h"
#include "dispatch/python.h"
#include "launch/python.h"

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.doc() = "Native parts of tefl.";
  tefl::device::bind(m);
  tefl::launch::bind(m);
  tefl::dispatch::bind(m);
#ifdef TEFL_WITH_C10D
  tefl::ccl::bind(m);
#endif
}
