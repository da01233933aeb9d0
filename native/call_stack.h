// Frames of Python's call stack, and the answers of a Python function about their code objects.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#if PY_VERSION_HEX < 0x030B0000
#include <frameobject.h>
#endif

#include <unordered_map>

namespace opdump {

enum class Answer : signed char { no, yes, ends };

// Calls a Python function once per code object, and keeps its answers. Keeps the code objects alive, so that their
// identities are not reused.
class Question {
 public:
  explicit Question(PyObject* ask) : ask_(ask) { Py_INCREF(ask_); }
  ~Question() {
    for (const auto& each : known_) Py_DECREF(each.first);
    Py_DECREF(ask_);
  }
  Question(const Question&) = delete;
  Question& operator=(const Question&) = delete;

  // False with an exception set if the function raises.
  bool answer(PyObject* code, Answer* answer) {
    const auto found = known_.find(code);
    if (found != known_.end()) {
      *answer = found->second;
      return true;
    }
    PyObject* said = PyObject_CallFunctionObjArgs(ask_, code, nullptr);
    if (said == nullptr) return false;
    *answer = said == Py_None ? Answer::ends : PyObject_IsTrue(said) ? Answer::yes : Answer::no;
    Py_DECREF(said);
    if (known_.emplace(code, *answer).second) Py_INCREF(code);
    return true;
  }

 private:
  PyObject* ask_;
  std::unordered_map<PyObject*, Answer> known_;
};

// A frame with its code; holds references to both.
class Place {
 public:
  explicit Place(PyFrameObject* frame) { set(frame); }  // takes the reference over
  ~Place() { set(nullptr); }
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;

  explicit operator bool() const { return frame_ != nullptr; }
  PyFrameObject* frame() const { return frame_; }
  PyObject* code() const { return reinterpret_cast<PyObject*>(code_); }
  void up() { set(PyFrame_GetBack(frame_)); }
  PyObject* give() {  // None without a frame
    if (frame_ == nullptr) Py_RETURN_NONE;
    Py_INCREF(frame_);
    return reinterpret_cast<PyObject*>(frame_);
  }

  // The offset of the instruction in bytes; -1 with an exception set if unknown.
  long instruction(bool* failed) const {
#if PY_VERSION_HEX >= 0x030B0000
    *failed = false;
    return PyFrame_GetLasti(frame_);
#else
    PyObject* number = PyObject_GetAttrString(reinterpret_cast<PyObject*>(frame_), "f_lasti");
    const long found = number == nullptr ? -1 : PyLong_AsLong(number);
    Py_XDECREF(number);
    *failed = number == nullptr || (found == -1 && PyErr_Occurred() != nullptr);
    return found;
#endif
  }

 private:
  void set(PyFrameObject* frame) {
    Py_XDECREF(code_);
    Py_XDECREF(frame_);
    frame_ = frame;
    code_ = frame == nullptr ? nullptr : PyFrame_GetCode(frame);
  }
  PyFrameObject* frame_ = nullptr;
  PyCodeObject* code_ = nullptr;
};

}  // namespace opdump
