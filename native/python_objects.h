// Short functions for Python objects. All throw nb::python_error on failure.
#pragma once

#include <nanobind/nanobind.h>
#include <structmember.h>

#include <cstring>
#include <string>

#include "prototype.h"

namespace opdump {

inline nb::object owned(PyObject* made) {
  if (made == nullptr) nb::raise_python_error();
  return nb::steal(made);
}

inline nb::object called(const nb::object& function) { return owned(PyObject_CallNoArgs(function.ptr())); }

inline int64_t number(const nb::object& value) {
  const long long found = PyLong_AsLongLong(value.ptr());
  if (found == -1 && PyErr_Occurred() != nullptr) nb::raise_python_error();
  return found;
}

// Null if the key is missing.
inline PyObject* item(const nb::object& dict, PyObject* key) {
  PyObject* found = PyDict_GetItemWithError(dict.ptr(), key);
  if (found == nullptr && PyErr_Occurred() != nullptr) nb::raise_python_error();
  return found;
}

inline void set_item(const nb::object& dict, PyObject* key, PyObject* value) {
  if (PyDict_SetItem(dict.ptr(), key, value) != 0) nb::raise_python_error();
}

inline bool are_equal(PyObject* one, PyObject* other) {
  if (one == other) return true;
  if (one == nullptr || other == nullptr || Py_TYPE(one) != Py_TYPE(other)) return false;
  const int found = PyObject_RichCompareBool(one, other, Py_EQ);
  if (found < 0) nb::raise_python_error();
  return found == 1;
}

// Compares arguments: 1, 1.0 and True are equal but not the same, nor are 0.0 and -0.0.
inline bool is_same_argument(PyObject* one, PyObject* other) {
  if (one == other) return true;
  if (Py_TYPE(one) != Py_TYPE(other)) return false;
  if (PyFloat_CheckExact(one)) {
    const double values[] = {PyFloat_AS_DOUBLE(one), PyFloat_AS_DOUBLE(other)};
    return std::memcmp(&values[0], &values[1], sizeof(double)) == 0;
  }
  if (!PyList_Check(one) && !PyTuple_Check(one)) return are_equal(one, other);
  const Py_ssize_t size = PySequence_Fast_GET_SIZE(one);
  if (size != PySequence_Fast_GET_SIZE(other)) return false;
  for (Py_ssize_t i = 0; i < size; ++i) {
    if (!is_same_argument(PySequence_Fast_GET_ITEM(one, i), PySequence_Fast_GET_ITEM(other, i))) return false;
  }
  return true;
}

// The offset of a slot in an object of a class with __slots__.
inline Py_ssize_t slot_of(PyObject* object, const char* name) {
  const nb::object found = nb::getattr(nb::handle(reinterpret_cast<PyObject*>(Py_TYPE(object))), name);
  if (!Py_IS_TYPE(found.ptr(), &PyMemberDescr_Type)) {
    throw nb::type_error((std::string(name) + " is not one of the __slots__").c_str());
  }
  return reinterpret_cast<PyMemberDescrObject*>(found.ptr())->d_member->offset;
}

// Defines a local variable with the interned string of its name.
#define OPDUMP_NAME(text) static PyObject* const text = interned(#text)

// Hides accesses to tensors from the program's function modes.
class Unseen {
 public:
  explicit Unseen(const nb::object& make) : guard_(called(make)) {
    OPDUMP_NAME(__enter__);
    owned(PyObject_CallMethodNoArgs(guard_.ptr(), __enter__));
  }
  ~Unseen() {
    OPDUMP_NAME(__exit__);
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyObject* done = PyObject_CallMethodObjArgs(guard_.ptr(), __exit__, Py_None, Py_None, Py_None, nullptr);
    if (done == nullptr) PyErr_WriteUnraisable(guard_.ptr());
    Py_XDECREF(done);
    PyErr_Restore(type, value, traceback);
  }
  Unseen(const Unseen&) = delete;
  Unseen& operator=(const Unseen&) = delete;

 private:
  nb::object guard_;
};

}  // namespace opdump
