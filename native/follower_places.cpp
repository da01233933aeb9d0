// The follower's view of the place in the program where an operator runs.
#include <cstring>

#include "follower.h"
#include "python_objects.h"

namespace opdump {

bool Follower::Site::is_same(const Site& other) const {
  if (frames != other.frames || callers.ptr() != other.callers.ptr() || code != other.code ||
      instruction != other.instruction || call != other.call || in_backward != other.in_backward ||
      found.ptr() != other.found.ptr()) {
    return false;
  }
  if (found && !found.is_none()) return true;  // the rest is inherited from that operator
  return are_equal(phase.ptr(), other.phase.ptr()) && are_equal(graph_id.ptr(), other.graph_id.ptr()) &&
         (in_backward ? are_equal(parameter_scope.ptr(), other.parameter_scope.ptr())
                      : are_equal(scope.ptr(), other.scope.ptr()));
}

int Follower::call_number(int64_t call) {
  for (size_t i = calls_.size(); i > 0; --i) {
    if (calls_[i - 1] == call) return static_cast<int>(i - 1);
  }
  calls_.push_back(call);
  return static_cast<int>(calls_.size() - 1);
}

// Like StackReader.read: the frames up to the innermost running call of a module, and the interned lines of its
// callers.
void Follower::walk(PyFrameObject* frame, PyObject* running, Site& site) {
  const void* boundary = nullptr;
  if (running != Py_None) {
    OPDUMP_NAME(frame);
    const nb::object identity = owned(PyObject_GetAttr(running, frame));
    boundary = PyLong_AsVoidPtr(identity.ptr());
    if (boundary == nullptr && PyErr_Occurred() != nullptr) nb::raise_python_error();
  }
  for (Place place(frame); place; place.up()) {
    Answer answer;
    if (!mine_.answer(place.code(), &answer)) nb::raise_python_error();
    bool failed = false;
    if (answer == Answer::yes) site.frames.emplace_back(place.code(), place.instruction(&failed));
    if (failed) nb::raise_python_error();
    if (answer == Answer::ends) break;
    if (answer == Answer::no && boundary != nullptr && place.frame() == boundary) {
      OPDUMP_NAME(callers);
      site.callers = owned(PyObject_GetAttr(running, callers));
      if (site.callers.is_none()) {
        const nb::object end = nb::steal(place.give());
        site.callers = callers_of_(nb::handle(running), end);
      }
      break;
    }
  }
}

// Like StackReader.inside_engine.
void Follower::below(PyFrameObject* frame, Site& site) {
  for (Place place(frame); place; place.up()) {
    const auto* code = reinterpret_cast<PyCodeObject*>(place.code());
    if (PyUnicode_Compare(code->co_name, engine_.ptr()) == 0) break;
    Answer answer;
    if (!mine_.answer(place.code(), &answer)) nb::raise_python_error();
    bool failed = false;
    if (answer == Answer::yes) site.frames.emplace_back(place.code(), place.instruction(&failed));
    if (failed) nb::raise_python_error();
  }
}

bool Follower::look_at_site(Site& site, EventKind kind) {
  PyObject* const position = position_.ptr();
  const auto slot = [position](Py_ssize_t offset) { return Prototype::slot(position, offset); };
  site.frames.clear();
  site.callers = nb::object();
  site.code = nullptr;
  site.instruction = 0;
  site.found = nb::object();
  site.parameter_scope = nb::object();
  const int64_t task = number(called(task_));
  site.in_backward = task >= 0;
  if (slot(recomputing_slot_) != Py_False) return false;
  site.phase = nb::borrow(slot(phase_slot_));
  site.graph_id = nb::borrow(slot(graph_slot_));
  if (site.in_backward) {
    if (called(grad_enabled_).ptr() != Py_False) return false;
    const nb::object node = called(node_);
    site.found = nb::none();
    if (!node.is_none()) {
      OPDUMP_NAME(_sequence_nr);
      if (std::strcmp(Py_TYPE(node.ptr())->tp_name, "CopySlices") == 0) return false;
      const nb::object sequence = owned(PyObject_CallMethodNoArgs(node.ptr(), _sequence_nr));
      PyObject* pair = item(recent_, sequence.ptr());
      if (pair == nullptr) pair = item(earlier_, sequence.ptr());
      if (pair != nullptr) site.found = nb::borrow(PyTuple_GET_ITEM(pair, 1));
    }
    if (site.found.is_none()) {
      OPDUMP_NAME(variable);
      PyObject* parameter = PyObject_GetAttr(node.ptr(), variable);
      if (parameter == nullptr) PyErr_Clear();
      const nb::object identity = owned(PyLong_FromVoidPtr(parameter));
      Py_XDECREF(parameter);
      PyObject* scope = item(parameter_scopes_, identity.ptr());
      site.parameter_scope = scope == nullptr ? nb::none() : nb::borrow(scope);
    }
    site.call = call_number(~task);
  } else {
    site.scope = nb::borrow(slot(scope_slot_));
    site.call = call_number(number(nb::borrow(slot(call_slot_))));
  }
  if (kind == EventKind::kQuick) return !site.found.is_none();
  Place caller(reinterpret_cast<PyFrameObject*>(Py_XNewRef(reinterpret_cast<PyObject*>(PyEval_GetFrame()))));
  for (; caller; caller.up()) {
    Answer answer;
    if (!ours_.answer(caller.code(), &answer)) nb::raise_python_error();
    if (answer == Answer::no) break;
  }
  if (!caller) return true;
  bool has_stack = false;
  if (site.in_backward && !site.found.is_none()) {
    OPDUMP_NAME(stack);
    has_stack = PyObject_IsTrue(owned(PyObject_GetAttr(site.found.ptr(), stack)).ptr()) == 1;
  }
  auto* frame = reinterpret_cast<PyFrameObject*>(Py_NewRef(reinterpret_cast<PyObject*>(caller.frame())));
  if (has_stack) {
    below(frame, site);
    return true;
  }
  bool failed = false;
  site.code = caller.code();
  site.instruction = caller.instruction(&failed);
  if (failed) nb::raise_python_error();
  walk(frame, slot(running_slot_), site);
  return true;
}

}  // namespace opdump
