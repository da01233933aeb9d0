// Walks the frames of Python's call stack: the compiled twin of interpreter/frames.py.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>

namespace opdump {

// Adds the class `Frames` to a module; -1 with an exception set on failure.
int add_frames(PyObject* module);

}  // namespace opdump
