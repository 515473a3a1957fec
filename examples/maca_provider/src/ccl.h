// ccl.h: the table of collectives that tefl reads.
#pragma once

#include "tefl_provider.h"

namespace maca {

tefl_ccl make_ccl();

}  // namespace maca
