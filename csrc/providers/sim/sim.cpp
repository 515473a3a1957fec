#include "tefl_provider.h"
