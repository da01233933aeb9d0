// Holds back Ctrl-C until a critical section has finished.
#pragma once

#include <Python.h>

namespace opdump {

// Adds `hold_interrupts` and `release_interrupts` to a module; -1 with an exception set on failure.
int add_interrupts(PyObject* module);

}  // namespace opdump
