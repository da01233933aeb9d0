// An audit hook that runs Python code only for selected events: even `id()` and each access to a frame are events.
//
// It is a separate module, without numpy and nanobind, because it is loaded when a Python process starts.
#include <cstring>
#include <string>
#include <vector>

#include "frames.h"
#include "interrupts.h"

namespace {

struct Hook {
  std::vector<std::string> events;
  PyObject* call;
};

int is_finalizing() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing();
#else
  return _Py_IsFinalizing();
#endif
}

bool is_wanted(const Hook& hook, const char* event) {
  for (const std::string& each : hook.events) {
    if (std::strcmp(each.c_str(), event) == 0) return true;
  }
  return false;
}

// Called for all interpreters: a hook in C, unlike one in Python, does not belong to the interpreter that added it.
int on_event(const char* event, PyObject* arguments, void* data) {
  const Hook& hook = *static_cast<Hook*>(data);
  if (!is_wanted(hook, event) || is_finalizing() || PyInterpreterState_Get() != PyInterpreterState_Main()) return 0;
  PyObject* name = PyUnicode_FromString(event);
  if (name == nullptr) return -1;
  PyObject* result = PyObject_CallFunctionObjArgs(hook.call, name, arguments, nullptr);
  Py_DECREF(name);
  if (result == nullptr) return -1;
  Py_DECREF(result);
  return 0;
}

PyObject* add_audit_hook(PyObject*, PyObject* arguments) {
  PyObject* call;
  PyObject* names;
  if (!PyArg_ParseTuple(arguments, "OO!:add_audit_hook", &call, &PyTuple_Type, &names)) return nullptr;
  Hook* hook = new Hook{{}, call};  // never freed: audit hooks cannot be removed
  for (Py_ssize_t place = 0; place < PyTuple_GET_SIZE(names); ++place) {
    const char* name = PyUnicode_AsUTF8(PyTuple_GET_ITEM(names, place));
    if (name == nullptr) {
      delete hook;
      return nullptr;
    }
    hook->events.emplace_back(name);
  }
  Py_INCREF(call);
  if (PySys_AddAuditHook(on_event, hook) < 0) return nullptr;
  Py_RETURN_NONE;
}

PyMethodDef methods[] = {{"add_audit_hook", add_audit_hook, METH_VARARGS,
                          "add_audit_hook(hook, events)\n--\n\nCalls `hook(event, arguments)` for these events, as "
                          "sys.addaudithook does for all."},
                         {nullptr, nullptr, 0, nullptr}};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_native", nullptr, 0, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__native() {
  PyObject* module = PyModule_Create(&definition);
  if (module != nullptr && (opdump::add_frames(module) < 0 || opdump::add_interrupts(module) < 0)) Py_CLEAR(module);
  return module;
}
