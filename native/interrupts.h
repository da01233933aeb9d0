// Ctrl-C waits while something is done as a whole.
#pragma once

#include <Python.h>

namespace opdump {

// Adds `hold_interrupts` and `release_interrupts`; -1 where Python says no.
int add_interrupts(PyObject* module);

}  // namespace opdump
