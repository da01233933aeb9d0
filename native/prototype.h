// Python objects of which thousands are made in a step.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <structmember.h>

#include <string>
#include <vector>

namespace opdump {

namespace nb = nanobind;

// Never freed, like the strings of a module.
inline PyObject* interned(const char* text) {
  PyObject* name = PyUnicode_InternFromString(text);
  if (name == nullptr) nb::raise_python_error();
  return name;
}

// Makes copies of one object of a class with __slots__ and fills them in place: a Python __init__ of sixteen attributes
// takes twenty times as long.
class Prototype {
 public:
  explicit Prototype(nb::handle object) : object_(nb::borrow(object)), type_(Py_TYPE(object.ptr())) {}

  // The offsets of the slots with these names; the other slots are copied.
  template <size_t kCount>
  void find(const char* const (&names)[kCount], Py_ssize_t (&offsets)[kCount]) {
    const nb::object slots = nb::getattr(nb::handle(reinterpret_cast<PyObject*>(type_)), "__slots__");
    for (nb::handle name : slots) copied_.push_back(offset_of(nb::cast<std::string>(name).c_str()));
    for (size_t i = 0; i < kCount; ++i) {
      offsets[i] = offset_of(names[i]);
      for (size_t k = 0; k < copied_.size(); ++k) {
        if (copied_[k] == offsets[i]) copied_.erase(copied_.begin() + k--);
      }
    }
  }

  nb::object copy() const {
    PyObject* made = type_->tp_alloc(type_, 0);
    if (made == nullptr) nb::raise_python_error();
    for (Py_ssize_t offset : copied_) {
      PyObject* value = slot(object_.ptr(), offset);
      Py_XINCREF(value);
      slot(made, offset) = value;
    }
    return nb::steal(made);
  }

  // Whether an object has the slots of the prototype at the same offsets.
  bool is_alike(nb::handle object) const { return Py_TYPE(object.ptr()) == type_; }

  static PyObject*& slot(PyObject* object, Py_ssize_t offset) {
    return *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(object) + offset);
  }

 private:
  Py_ssize_t offset_of(const char* name) const {
    const nb::object found = nb::getattr(nb::handle(reinterpret_cast<PyObject*>(type_)), name);
    if (!Py_IS_TYPE(found.ptr(), &PyMemberDescr_Type)) {
      throw nb::type_error((std::string(name) + " is not one of the __slots__").c_str());
    }
    return reinterpret_cast<PyMemberDescrObject*>(found.ptr())->d_member->offset;
  }

  nb::object object_;
  PyTypeObject* type_;
  std::vector<Py_ssize_t> copied_;
};

}  // namespace opdump
