// A form on its way through Python, which does not look into it.
#pragma once

#include "dispatch/form.h"
#include "dispatch/python_ref.h"

namespace tefl::dispatch {

// A Python object that owns a copy of the form. The GIL must be held.
PyRef form_object(const Form& form);

}  // namespace tefl::dispatch
