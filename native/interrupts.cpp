#include "interrupts.h"

#ifndef _WIN32
#include <pthread.h>
#include <signal.h>
#endif

namespace opdump {
namespace {

#ifdef _WIN32

PyObject* hold_interrupts(PyObject*, PyObject*) { Py_RETURN_FALSE; }

PyObject* release_interrupts(PyObject*, PyObject*) { Py_RETURN_NONE; }

#else

// State of the main thread, the only one that runs Python signal handlers. A process has only one handler of SIGINT.
struct sigaction before;
volatile sig_atomic_t depth = 0;
volatile sig_atomic_t is_noted = 0;

void call_before(int number, siginfo_t* information, void* context) {
  if ((before.sa_flags & SA_SIGINFO) != 0) {
    before.sa_sigaction(number, information, context);
  } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
    before.sa_handler(number);
  }
}

void note(int number, siginfo_t* information, void* context) {
  if (is_noted != 0) {
    call_before(number, information, context);  // a user who presses Ctrl-C again does not want to wait
  }
  is_noted = 1;
}

bool is_ours(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) != 0 && action.sa_sigaction == note;
}

// Restores the handler, unless another one was installed meanwhile. Returns whether a signal has arrived.
bool restore() {
  struct sigaction now;
  if (sigaction(SIGINT, nullptr, &now) == 0 && is_ours(now)) sigaction(SIGINT, &before, nullptr);
  depth = 0;
  const bool has_come = is_noted != 0;
  is_noted = 0;
  return has_come;
}

// A process that another thread forks while interrupts are held has no thread that would release them.
void after_fork() {
  if (depth != 0) restore();
}

PyObject* hold_interrupts(PyObject*, PyObject*) {
  if (depth != 0) {
    depth = depth + 1;
    Py_RETURN_TRUE;
  }
  // A signal that arrived earlier, during compiled code, would reach the program at its next instruction, while
  // interrupts are held; handle it now.
  if (PyErr_CheckSignals() < 0) return nullptr;
  struct sigaction held;
  if (sigaction(SIGINT, nullptr, &before) != 0) Py_RETURN_FALSE;
  const bool is_called =
      (before.sa_flags & SA_SIGINFO) != 0 || (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN);
  if (!is_called) Py_RETURN_FALSE;
  held = before;
  held.sa_flags |= SA_SIGINFO;
  held.sa_flags &= ~SA_RESETHAND;
  held.sa_sigaction = note;
  is_noted = 0;
  if (sigaction(SIGINT, &held, nullptr) != 0) Py_RETURN_FALSE;
  depth = 1;
  Py_RETURN_TRUE;
}

PyObject* release_interrupts(PyObject*, PyObject*) {
  if (depth > 1) {
    depth = depth - 1;
  } else if (depth == 1 && restore()) {
    raise(SIGINT);
  }
  Py_RETURN_NONE;
}

#endif

PyMethodDef methods[] = {
    {"hold_interrupts", hold_interrupts, METH_NOARGS,
     "hold_interrupts()\n--\n\nHold back SIGINT until `release_interrupts`; a second one is not held back. Returns "
     "False, and holds nothing, if SIGINT has no handler. Raises what handlers of pending signals raise."},
    {"release_interrupts", release_interrupts, METH_NOARGS,
     "release_interrupts()\n--\n\nAfter as many calls as of `hold_interrupts`, deliver a SIGINT that was held back."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

int add_interrupts(PyObject* module) {
#ifndef _WIN32
  if (pthread_atfork(nullptr, nullptr, after_fork) != 0) {
    PyErr_NoMemory();
    return -1;
  }
#endif
  return PyModule_AddFunctions(module, methods);
}

}  // namespace opdump
