// The follower's view of an operator and its arguments.
#include <algorithm>

#include "follower.h"
#include "python_objects.h"

namespace opdump {

std::vector<Follower::Argument> Follower::arguments_of(nb::handle places) {
  std::vector<Argument> found;
  for (nb::handle each : places) {
    const auto pair = nb::cast<nb::tuple>(each);
    found.push_back({number(nb::borrow(pair[0])), nb::borrow(pair[1])});
  }
  return found;
}

const Follower::Function* Follower::function_of(nb::handle func, nb::handle schema) {
  std::unique_ptr<Function>& known = functions_[func.ptr()];
  if (!known) {
    known = std::make_unique<Function>();
    known->func = nb::borrow(func);
    known->kind = nb::getattr(schema, "kind");
    known->tensors = arguments_of(nb::object(nb::getattr(schema, "tensors")));
    known->others = arguments_of(nb::object(nb::getattr(schema, "others")));
    known->written = arguments_of(nb::object(nb::getattr(schema, "written")));
    known->counted = arguments_of(nb::object(nb::getattr(schema, "counted")));
    const nb::object non_blocking = nb::getattr(schema, "non_blocking");
    if (!non_blocking.is_none()) known->non_blocking = number(non_blocking);
    const nb::object factor = nb::getattr(schema, "factor");
    if (!factor.is_none()) known->factor = number(factor);
    known->asynchronous = nb::cast<bool>(nb::getattr(schema, "asynchronous"));
    known->declares_writes = nb::cast<bool>(nb::getattr(schema, "declares_writes"));
    const nb::object changes = nb::getattr(schema, "changes");
    const nb::object unread = nb::getattr(schema, "unread");
    for (Argument& argument : known->tensors) {
      argument.is_written = PySequence_Contains(changes.ptr(), argument.name.ptr()) == 1;
      argument.is_unread = PySequence_Contains(unread.ptr(), argument.name.ptr()) == 1;
      known->writes |= argument.is_written;
    }
  }
  return known.get();
}

bool Follower::is_tensor(PyObject* value, bool* is_foreign) const {
  if (tensors_.is_plain(value)) return true;
  if (value == Py_None || PyLong_Check(value) || PyFloat_Check(value)) return false;
  const int found = PyObject_IsInstance(value, tensor_class_.ptr());
  if (found < 0) nb::raise_python_error();
  *is_foreign |= found == 1;
  return false;
}

// False if a tensor is of a foreign class, or nested deeper than in a list.
bool Follower::gather(const std::vector<Argument>& places, PyObject* args, PyObject* kwargs, std::vector<Found>& found,
                      std::vector<PyObject*>* numbers) const {
  const int64_t given = PyTuple_GET_SIZE(args);
  int64_t slot = 0;
  bool is_foreign = false;
  for (size_t place = 0; place < places.size(); ++place) {
    const Argument& argument = places[place];
    PyObject* value = argument.index < given ? PyTuple_GET_ITEM(args, argument.index)
                      : kwargs == nullptr    ? nullptr
                                             : PyDict_GetItemWithError(kwargs, argument.name.ptr());
    if (value == nullptr && PyErr_Occurred() != nullptr) nb::raise_python_error();
    if (value == nullptr || value == Py_None) {
      ++slot;
    } else if (is_tensor(value, &is_foreign)) {
      found.push_back({slot++, place, value});
    } else if (PyList_Check(value) || PyTuple_Check(value)) {
      const Py_ssize_t size = PySequence_Fast_GET_SIZE(value);
      for (Py_ssize_t i = 0; i < size; ++i, ++slot) {
        PyObject* element = PySequence_Fast_GET_ITEM(value, i);
        if (is_tensor(element, &is_foreign)) {
          found.push_back({slot, place, element});
        } else if (PyList_Check(element) || PyTuple_Check(element)) {
          return false;
        } else if (element != Py_None && numbers != nullptr) {
          numbers->push_back(element);
        }
      }
    } else {
      if (numbers != nullptr) numbers->push_back(value);
      ++slot;
    }
    if (is_foreign) return false;
  }
  return true;
}

// Like OperatorSchema.unread_among.
bool Follower::ignores_self(const Function& function, PyObject* args, PyObject* kwargs) {
  if (function.factor < 0) return false;
  OPDUMP_NAME(beta);
  PyObject* value = function.factor < PyTuple_GET_SIZE(args) ? PyTuple_GET_ITEM(args, function.factor)
                    : kwargs == nullptr                      ? nullptr
                                                             : PyDict_GetItemWithError(kwargs, beta);
  if (value == nullptr) {
    if (PyErr_Occurred() != nullptr) nb::raise_python_error();
    return false;
  }
  const int is_true = PyObject_IsTrue(value);
  if (is_true < 0) nb::raise_python_error();
  return is_true == 0;
}

bool Follower::look_at_arguments(const Function& function, PyObject* args, PyObject* kwargs) {
  arguments_.clear();
  found_.clear();
  if (!gather(function.tensors, args, kwargs, found_, &arguments_)) return false;
  const int64_t given = PyTuple_GET_SIZE(args);
  for (const Argument& argument : function.others) {
    if (argument.index < given) {
      arguments_.push_back(PyTuple_GET_ITEM(args, argument.index));
    } else if (kwargs != nullptr) {
      PyObject* value = PyDict_GetItemWithError(kwargs, argument.name.ptr());
      if (value == nullptr && PyErr_Occurred() != nullptr) nb::raise_python_error();
      if (value == nullptr) continue;
      arguments_.push_back(argument.name.ptr());
      arguments_.push_back(value);
    }
  }
  if (function.non_blocking >= 0) {
    OPDUMP_NAME(non_blocking);
    PyObject* value = function.non_blocking < given ? PyTuple_GET_ITEM(args, function.non_blocking)
                      : kwargs == nullptr           ? nullptr
                                                    : PyDict_GetItemWithError(kwargs, non_blocking);
    if (value != nullptr && value != Py_False && value != Py_None) return false;
  }
  return true;
}

bool Follower::outputs_of(const Function& function, PyObject* args, PyObject* kwargs, PyObject* result,
                          std::vector<Found>& found) const {
  found.clear();
  bool is_foreign = false;
  if (is_tensor(result, &is_foreign)) {
    found.push_back({0, 0, result});
  } else if (PyList_Check(result) || PyTuple_Check(result)) {
    const Py_ssize_t size = PySequence_Fast_GET_SIZE(result);
    int64_t slot = 0;
    for (Py_ssize_t i = 0; i < size; ++i) {
      PyObject* element = PySequence_Fast_GET_ITEM(result, i);
      if (is_tensor(element, &is_foreign)) {
        found.push_back({slot++, static_cast<size_t>(i), element});
      } else if (element == Py_None) {
        ++slot;
      } else if (PyList_Check(element) || PyTuple_Check(element) || PyDict_Check(element)) {
        return false;
      }
    }
  }
  if (is_foreign) return false;
  if (function.written.empty()) return true;
  int64_t first = 0;
  for (const Found& each : found) first = std::max(first, each.slot + 1);
  const size_t returned = found.size();
  if (!gather(function.written, args, kwargs, found, nullptr)) return false;
  for (size_t i = returned; i < found.size(); ++i) {
    found[i].slot += first;
    found[i].argument += size_t{1} << 32;  // distinguishes written arguments from returned tensors
  }
  return true;
}

bool Follower::is_comparable(PyObject* value) const {
  if (PyList_CheckExact(value) || PyTuple_CheckExact(value)) {
    const Py_ssize_t size = PySequence_Fast_GET_SIZE(value);
    for (Py_ssize_t i = 0; i < size; ++i) {
      if (!is_comparable(PySequence_Fast_GET_ITEM(value, i))) return false;
    }
    return true;
  }
  const int found = PySequence_Contains(comparable_.ptr(), reinterpret_cast<PyObject*>(Py_TYPE(value)));
  if (found < 0) nb::raise_python_error();
  return found == 1;
}

bool Follower::is_among(PyObject* tensor, const std::vector<Found>& found) {
  return std::any_of(found.begin(), found.end(), [&](const Found& each) { return each.tensor == tensor; });
}

PyObject* Follower::named(nb::handle kwargs) {
  return kwargs.is_none() || PyDict_GET_SIZE(kwargs.ptr()) == 0 ? nullptr : kwargs.ptr();
}

}  // namespace opdump
