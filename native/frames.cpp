#include "frames.h"

#include "call_stack.h"

namespace opdump {
namespace {

struct Frames {
  PyObject_HEAD Question* ours;
  Question* mine;
};

PyFrameObject* held(PyObject* frame) {
  if (frame == Py_None) return nullptr;
  Py_INCREF(frame);
  return reinterpret_cast<PyFrameObject*>(frame);
}

bool is_frame(PyObject* frame) {
  if (frame == Py_None || PyFrame_Check(frame)) return true;
  PyErr_SetString(PyExc_TypeError, "expected a frame or None");
  return false;
}

bool append(PyObject* list, const Place& place) {
  bool failed = false;
  PyObject* code = PyLong_FromVoidPtr(place.code());
  PyObject* instruction = PyLong_FromLong(place.instruction(&failed));
  const bool done = code != nullptr && instruction != nullptr && !failed && PyList_Append(list, code) == 0 &&
                    PyList_Append(list, instruction) == 0;
  Py_XDECREF(code);
  Py_XDECREF(instruction);
  return done;
}

PyObject* caller(PyObject* self, PyObject* frame) {
  if (!is_frame(frame)) return nullptr;
  Question& ours = *reinterpret_cast<Frames*>(self)->ours;
  Place place(held(frame));
  for (; place; place.up()) {
    Answer answer;
    if (!ours.answer(place.code(), &answer)) return nullptr;
    if (answer == Answer::no) break;
  }
  return place.give();
}

PyObject* place_of(PyObject*, PyObject* frame) {
  if (!PyFrame_Check(frame)) return PyErr_Format(PyExc_TypeError, "expected a frame");
  const Place place(held(frame));
  bool failed = false;
  const long instruction = place.instruction(&failed);
  if (failed) return nullptr;
  return Py_BuildValue("Nl", PyLong_FromVoidPtr(place.code()), instruction);
}

PyObject* walk(PyObject* self, PyObject* arguments) {
  PyObject* frame;
  PyObject* number;
  if (!PyArg_ParseTuple(arguments, "OO", &frame, &number) || !is_frame(frame)) return nullptr;
  const void* boundary = PyLong_AsVoidPtr(number);
  if (boundary == nullptr && PyErr_Occurred() != nullptr) return nullptr;
  Question& mine = *reinterpret_cast<Frames*>(self)->mine;
  PyObject* found = PyList_New(0);
  if (found == nullptr) return nullptr;
  Place place(held(frame));
  bool is_boundary = false;
  for (; place; place.up()) {
    Answer answer;
    if (!mine.answer(place.code(), &answer) || (answer == Answer::yes && !append(found, place))) {
      Py_DECREF(found);
      return nullptr;
    }
    is_boundary = answer == Answer::no && boundary != nullptr && place.frame() == boundary;
    if (answer == Answer::ends || is_boundary) break;
  }
  PyObject* end = is_boundary ? place.give() : Py_NewRef(Py_None);
  return Py_BuildValue("NN", found, end);
}

PyObject* below(PyObject* self, PyObject* arguments) {
  PyObject* frame;
  PyObject* name;
  if (!PyArg_ParseTuple(arguments, "OU", &frame, &name) || !is_frame(frame)) return nullptr;
  Question& mine = *reinterpret_cast<Frames*>(self)->mine;
  PyObject* found = PyList_New(0);
  if (found == nullptr) return nullptr;
  Place place(held(frame));
  for (; place; place.up()) {
    const int differs = PyUnicode_Compare(reinterpret_cast<PyCodeObject*>(place.code())->co_name, name);
    if (differs == 0) break;
    Answer answer;
    if (!mine.answer(place.code(), &answer) || (answer == Answer::yes && !append(found, place))) {
      Py_DECREF(found);
      return nullptr;
    }
  }
  return found;
}

PyObject* make(PyTypeObject* type, PyObject* arguments, PyObject*) {
  PyObject* ours;
  PyObject* mine;
  if (!PyArg_ParseTuple(arguments, "OO:Frames", &ours, &mine)) return nullptr;
  auto* self = reinterpret_cast<Frames*>(type->tp_alloc(type, 0));
  if (self == nullptr) return nullptr;
  self->ours = new Question(ours);
  self->mine = new Question(mine);
  return reinterpret_cast<PyObject*>(self);
}

void forget(PyObject* object) {
  auto* self = reinterpret_cast<Frames*>(object);
  delete self->ours;
  delete self->mine;
  PyTypeObject* type = Py_TYPE(object);
  type->tp_free(object);
  Py_DECREF(type);
}

PyMethodDef methods[] = {
    {"caller", caller, METH_O, "caller(frame)\n--\n\nThe innermost frame that is not ours."},
    {"place", place_of, METH_O, "place(frame)\n--\n\nThe identity of its code, and its instruction."},
    {"walk", walk, METH_VARARGS, "walk(frame, boundary)\n--\n\nThe frames that are mine."},
    {"below", below, METH_VARARGS, "below(frame, name)\n--\n\nThe same up to a function of that name."},
    {nullptr, nullptr, 0, nullptr}};
PyType_Slot slots[] = {{Py_tp_new, reinterpret_cast<void*>(make)},
                       {Py_tp_dealloc, reinterpret_cast<void*>(forget)},
                       {Py_tp_methods, methods},
                       {0, nullptr}};
PyType_Spec spec = {"opdump.interpreter._native.Frames", sizeof(Frames), 0, Py_TPFLAGS_DEFAULT, slots};

PyObject* calling_frame(PyObject*, PyObject* number) {
  long depth = PyLong_AsLong(number);
  if (depth == -1 && PyErr_Occurred() != nullptr) return nullptr;
  Place place(held(reinterpret_cast<PyObject*>(PyEval_GetFrame())));
  for (; depth > 0 && place; --depth) place.up();
  if (!place) {
    PyErr_SetString(PyExc_ValueError, "call stack is not deep enough");
    return nullptr;
  }
  return place.give();
}

PyMethodDef functions[] = {{"calling_frame", calling_frame, METH_O,
                            "calling_frame(depth)\n--\n\nLike sys._getframe, but without an event for audit hooks."},
                           {nullptr, nullptr, 0, nullptr}};

}  // namespace

int add_frames(PyObject* module) {
  PyObject* type = PyType_FromSpec(&spec);
  if (type == nullptr || PyModule_AddObject(module, "Frames", type) < 0) {
    Py_XDECREF(type);
    return -1;
  }
  return PyModule_AddFunctions(module, functions);
}

}  // namespace opdump
