/* The example provider, LIBRARY, and a copy of it whose functions the includer replaces. */
#include <dlfcn.h>

#include "tefl_provider.h"

static const tefl_provider* real;
static tefl_provider provider; /* the copy; its collectives are `ccl` */
static tefl_ccl ccl;

static void copy_example(void) {
  real = ((tefl_provider_get_fn)dlsym(dlopen(LIBRARY, RTLD_NOW), "tefl_provider_get"))();
  provider = *real;
  ccl = *real->ccl;
  provider.ccl = &ccl;
}
