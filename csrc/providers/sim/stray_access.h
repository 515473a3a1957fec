// What is said when the host touches device memory that is closed to it.
#pragma once

namespace tefl_sim {

/// From now on such an access writes to stderr what was touched and what to do instead, before the signal
/// goes on to whoever handled it before, at the end the system, which ends the process.
void explain_stray_access();

}  // namespace tefl_sim
