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

// Of the main thread, which alone runs handlers that are written in Python; there is one handler of SIGINT in a
// process, whoever wrote it.
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
    call_before(number, information, context);  // who presses it again does not want to wait
  }
  is_noted = 1;
}

bool is_ours(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) != 0 && action.sa_sigaction == note;
}

// Whether a signal has come meanwhile. Somebody else's handler that was installed meanwhile stays.
bool restore() {
  struct sigaction now;
  if (sigaction(SIGINT, nullptr, &now) == 0 && is_ours(now)) sigaction(SIGINT, &before, nullptr);
  depth = 0;
  const bool has_come = is_noted != 0;
  is_noted = 0;
  return has_come;
}

// A process that another thread forks meanwhile has no thread that would ever release them.
void after_fork() {
  if (depth != 0) restore();
}

PyObject* hold_interrupts(PyObject*, PyObject*) {
  if (depth != 0) {
    depth = depth + 1;
    Py_RETURN_TRUE;
  }
  // Of one that has come already, while compiled code ran, the program is told in the next instruction, unless it is
  // now.
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

PyMethodDef methods[] = {{"hold_interrupts", hold_interrupts, METH_NOARGS,
                          "hold_interrupts()\n--\n\nFrom now on SIGINT waits for `release_interrupts`, a second one "
                          "does not. False where nobody handles it: then "
                          "nothing is held. Raises what handlers of signals raise that have come already."},
                         {"release_interrupts", release_interrupts, METH_NOARGS,
                          "release_interrupts()\n--\n\nWhoever handles SIGINT is told of one that has come, once what "
                          "was held as often is released as often."},
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
