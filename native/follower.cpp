#include "follower.h"

#include <nanobind/stl/string.h>
#include <time.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "prototype.h"

namespace opdump {
namespace {

constexpr int64_t kMostNodes = 16;  // ForwardLinks: nodes that one operator makes at the most

int64_t nanoseconds(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

nb::object owned(PyObject* made) {
  if (made == nullptr) nb::raise_python_error();
  return nb::steal(made);
}

nb::object called(const nb::object& function) { return owned(PyObject_CallNoArgs(function.ptr())); }

int64_t number(const nb::object& value) {
  const long long found = PyLong_AsLongLong(value.ptr());
  if (found == -1 && PyErr_Occurred() != nullptr) nb::raise_python_error();
  return found;
}

// Null where it is not there.
PyObject* item(const nb::object& dict, PyObject* key) {
  PyObject* found = PyDict_GetItemWithError(dict.ptr(), key);
  if (found == nullptr && PyErr_Occurred() != nullptr) nb::raise_python_error();
  return found;
}

void set_item(const nb::object& dict, PyObject* key, PyObject* value) {
  if (PyDict_SetItem(dict.ptr(), key, value) != 0) nb::raise_python_error();
}

bool are_equal(PyObject* one, PyObject* other) {
  if (one == other) return true;
  if (one == nullptr || other == nullptr || Py_TYPE(one) != Py_TYPE(other)) return false;
  const int found = PyObject_RichCompareBool(one, other, Py_EQ);
  if (found < 0) nb::raise_python_error();
  return found == 1;
}

// Of arguments: 1, 1.0 and True are equal but not the same.
bool is_same_argument(PyObject* one, PyObject* other) {
  if (one == other) return true;
  if (Py_TYPE(one) != Py_TYPE(other)) return false;
  if (!PyList_Check(one) && !PyTuple_Check(one)) return are_equal(one, other);
  const Py_ssize_t size = PySequence_Fast_GET_SIZE(one);
  if (size != PySequence_Fast_GET_SIZE(other)) return false;
  for (Py_ssize_t i = 0; i < size; ++i) {
    if (!is_same_argument(PySequence_Fast_GET_ITEM(one, i), PySequence_Fast_GET_ITEM(other, i))) return false;
  }
  return true;
}

// Where the slot of a class with __slots__ lies in an object.
Py_ssize_t slot_of(PyObject* object, const char* name) {
  const nb::object found = nb::getattr(nb::handle(reinterpret_cast<PyObject*>(Py_TYPE(object))), name);
  if (!Py_IS_TYPE(found.ptr(), &PyMemberDescr_Type)) {
    throw nb::type_error((std::string(name) + " is not one of the __slots__").c_str());
  }
  return reinterpret_cast<PyMemberDescrObject*>(found.ptr())->d_member->offset;
}

// Calls of Python that the thread has left below its recursion limit.
int calls_left() {
  const PyThreadState* thread = PyThreadState_Get();
#if PY_VERSION_HEX >= 0x030C0000
  return thread->py_recursion_remaining;
#elif PY_VERSION_HEX >= 0x030B0000
  return thread->recursion_remaining;
#else
  return Py_GetRecursionLimit() - thread->recursion_depth;
#endif
}

// With fewer left an operator is recorded by those who raise the limit.
constexpr int kCallsLeft = 64;

class Busy {
 public:
  explicit Busy(bool& flag) : flag_(flag) { flag_ = true; }
  ~Busy() { flag_ = false; }
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;

 private:
  bool& flag_;
};

#define OPDUMP_NAME(text) static PyObject* const text = interned(#text)

// Hides from the program's function modes what is asked of its tensors.
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

}  // namespace

bool Follower::Slot::is_same(const Slot& other) const {
  return slot == other.slot && argument == other.argument && code == other.code && storage == other.storage &&
         offset == other.offset && version == other.version && is_unwritten == other.is_unwritten &&
         dimensions == other.dimensions && are_equal(source.ptr(), other.source.ptr());
}

bool Follower::Site::is_same(const Site& other) const {
  if (frames != other.frames || callers.ptr() != other.callers.ptr() || code != other.code ||
      instruction != other.instruction || call != other.call || in_backward != other.in_backward ||
      found.ptr() != other.found.ptr()) {
    return false;
  }
  if (found && !found.is_none()) return true;  // the rest is that operator's
  return are_equal(phase.ptr(), other.phase.ptr()) && are_equal(graph_id.ptr(), other.graph_id.ptr()) &&
         (in_backward ? are_equal(parameter_scope.ptr(), other.parameter_scope.ptr())
                      : are_equal(scope.ptr(), other.scope.ptr()));
}

Follower::Follower(nb::handle table, const nb::tuple& classes, nb::handle seen, nb::handle place, nb::handle host)
    : tensors_(table, classes, nb::none(), seen, place),
      host_(nb::borrow(host)),
      missed_(owned(PyObject_CallNoArgs(reinterpret_cast<PyObject*>(&PyBaseObject_Type)))),
      tensor_class_(nb::borrow(classes[0])),
      ours_(nb::object(nb::getattr(host, "is_ours")).ptr()),
      mine_(nb::object(nb::getattr(host, "is_mine")).ptr()) {
  const std::pair<nb::object*, const char*> asked[] = {{&depth_, "dispatch_depth"},
                                                       {&task_, "graph_task"},
                                                       {&node_, "autograd_node"},
                                                       {&sequence_, "sequence_number"},
                                                       {&grad_enabled_, "is_grad_enabled"},
                                                       {&unseen_, "unseen"},
                                                       {&callers_of_, "callers_of"},
                                                       {&source_, "source_of"},
                                                       {&note_, "note"},
                                                       {&hold_, "hold_weakly"},
                                                       {&observer_, "observer"},
                                                       {&recorder_, "recorder"},
                                                       {&release_, "release"},
                                                       {&cut_off_, "cut_off"},
                                                       {&failed_, "failed"},
                                                       {&broke_, "broke"},
                                                       {&skipped_, "skipped"},
                                                       {&collectives_, "collectives"},
                                                       {&sources_, "sources"},
                                                       {&parts_, "parts"},
                                                       {&first_, "first"},
                                                       {&held_, "held"},
                                                       {&unwritten_, "unwritten"},
                                                       {&parameter_scopes_, "parameter_scopes"},
                                                       {&comparable_, "comparable"},
                                                       {&engine_, "engine"},
                                                       {&clock_, "clock"}};
  for (const auto& [member, name] : asked) *member = nb::getattr(host, name);
  spent_slot_ = slot_of(clock_.ptr(), "spent");
}

Follower::~Follower() = default;

void Follower::start(int lesson, nb::handle position, nb::handle nodes, int64_t order, int64_t timestamp) {
  if (position_.ptr() != position.ptr()) {
    const std::pair<Py_ssize_t*, const char*> slots[] = {
        {&scope_slot_, "scope"},    {&graph_slot_, "graph_id"}, {&phase_slot_, "phase"},
        {&call_slot_, "call_id"},   {&root_slot_, "root"},      {&recomputing_slot_, "recomputing"},
        {&running_slot_, "running"}};
    for (const auto& [slot, name] : slots) *slot = slot_of(position.ptr(), name);
    position_ = nb::borrow(position);
  }
  owner_ = PyThread_get_thread_ident();
  calls_.clear();
  missed_place_ = false;
  std::shared_ptr<std::vector<Event>>& events = lessons_[lesson];
  if (events == nullptr) events = std::make_shared<std::vector<Event>>();
  events_ = events;
  timestamps_.clear();
  rows_.clear();
  counted_ = nb::dict();
  resume(0, nodes, order, timestamp);
}

void Follower::resume(size_t place, nb::handle nodes, int64_t order, int64_t timestamp) {
  OPDUMP_NAME(recent);
  OPDUMP_NAME(earlier);
  OPDUMP_NAME(last);
  OPDUMP_NAME(link);
  nodes_ = nb::borrow(nodes);
  recent_ = owned(PyObject_GetAttr(nodes_.ptr(), recent));
  earlier_ = owned(PyObject_GetAttr(nodes_.ptr(), earlier));
  last_node_ = number(owned(PyObject_GetAttr(nodes_.ptr(), last)));
  last_link_ = owned(PyObject_GetAttr(nodes_.ptr(), link));
  cursor_ = first_event_ = place;
  order_ = order;
  timestamp_ = timestamp;
  following_ = true;
}

nb::tuple Follower::suspend() {
  if (following_) {
    nb::setattr(nodes_, "last", nb::int_(last_node_));
    nb::setattr(nodes_, "link", last_link_);
    nb::setattr(nodes_, "found_for", nb::none());
    following_ = false;
  }
  in_operator_ = false;
  ++generation_;
  return nb::make_tuple(order_, timestamp_);
}

nb::tuple Follower::take() {
  nb::list timestamps;
  for (int64_t each : timestamps_) timestamps.append(each);
  const nb::bytes rows(rows_.data(), rows_.size() * sizeof(int64_t));
  nb::tuple taken = nb::make_tuple(first_event_, cursor_, step_ ? step_ : nb::none(), timestamps, rows, counted_);
  first_event_ = cursor_;
  timestamps_.clear();
  rows_.clear();
  counted_ = nb::dict();
  step_ = nb::object();
  return taken;
}

void Follower::forget(int lesson) { lessons_.erase(lesson); }

void Follower::close() {
  suspend();
  lessons_.clear();
  for (nb::object* each : {&host_, &cut_off_, &failed_, &skipped_, &broke_, &release_}) *each = nb::object();
}

// Operators and their arguments

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
    known->asynchronous = nb::cast<bool>(nb::getattr(schema, "asynchronous"));
    known->declares_writes = nb::cast<bool>(nb::getattr(schema, "declares_writes"));
    const nb::object changes = nb::getattr(schema, "changes");
    for (Argument& argument : known->tensors) {
      argument.is_written = PySequence_Contains(changes.ptr(), argument.name.ptr()) == 1;
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

// False where one is of a class of its own, or lies deeper than in a list.
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
    found[i].argument += size_t{1} << 32;  // none that was returned
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

// Places

int Follower::call_number(int64_t call) {
  for (size_t i = calls_.size(); i > 0; --i) {
    if (calls_[i - 1] == call) return static_cast<int>(i - 1);
  }
  calls_.push_back(call);
  return static_cast<int>(calls_.size() - 1);
}

// As StackReader.read: the frames up to the innermost running call of a module, and the interned lines that lead there.
bool Follower::walk(PyFrameObject* frame, PyObject* running, Site& site) {
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
  return true;
}

// As StackReader.inside_engine.
bool Follower::below(PyFrameObject* frame, Site& site) {
  for (Place place(frame); place; place.up()) {
    const auto* code = reinterpret_cast<PyCodeObject*>(place.code());
    if (PyUnicode_Compare(code->co_name, engine_.ptr()) == 0) break;
    Answer answer;
    if (!mine_.answer(place.code(), &answer)) nb::raise_python_error();
    bool failed = false;
    if (answer == Answer::yes) site.frames.emplace_back(place.code(), place.instruction(&failed));
    if (failed) nb::raise_python_error();
  }
  return true;
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
    has_stack = PyTuple_GET_SIZE(owned(PyObject_GetAttr(site.found.ptr(), stack)).ptr()) > 0;
  }
  auto* frame = reinterpret_cast<PyFrameObject*>(Py_NewRef(reinterpret_cast<PyObject*>(caller.frame())));
  if (has_stack) return below(frame, site);
  bool failed = false;
  site.code = caller.code();
  site.instruction = caller.instruction(&failed);
  if (failed) nb::raise_python_error();
  return walk(frame, slot(running_slot_), site);
}

// Tensors

void Follower::hold(const nb::object& key, const nb::object& storage) {
  if (item(held_, key.ptr()) != nullptr) return;
  const nb::object weak = hold_(storage);
  set_item(held_, key.ptr(), weak.ptr());
}

nb::object Follower::source_of(const nb::object& key, PyObject* tensor) {
  if (PyDict_GET_SIZE(parts_.ptr()) > 0 && item(parts_, key.ptr()) != nullptr) return source_(key, nb::handle(tensor));
  PyObject* found = item(sources_, key.ptr());
  return found == nullptr ? nb::object() : nb::borrow(found);
}

// As Provenance.note.
void Follower::note(PyObject* tensor, const nb::object& source) {
  OPDUMP_NAME(untyped_storage);
  OPDUMP_NAME(_cdata);
  OPDUMP_NAME(nbytes);
  View view;
  PyObject* dtype = nullptr;
  const bool is_plain = tensors_.is_plain(tensor) && tensors_.describe(tensor, &view, &dtype);
  const nb::object storage = nb::steal(is_plain ? PyObject_CallMethodNoArgs(tensor, untyped_storage) : nullptr);
  if (!storage) {
    PyErr_Clear();
    note_(nb::handle(tensor), source);
    return;
  }
  const nb::object key = owned(PyObject_GetAttr(storage.ptr(), _cdata));
  if (item(sources_, key.ptr()) == nullptr) {
    hold(key, storage);
  } else if (view.bytes < number(owned(PyObject_CallMethodNoArgs(storage.ptr(), nbytes)))) {
    note_(nb::handle(tensor), source);  // a part
    return;
  }
  set_item(sources_, key.ptr(), source.ptr());
  if (PyDict_GET_SIZE(parts_.ptr()) > 0 && item(parts_, key.ptr()) != nullptr) {
    if (PyDict_DelItem(parts_.ptr(), key.ptr()) != 0) nb::raise_python_error();
  }
}

// As Storages.memory_of_plain and Provenance.lives. `known`: what a constant is named that nobody was seen to write.
bool Follower::observe(PyObject* tensor, bool is_counted, bool is_input, const Slot* known, Slot& slot, View& view) {
  OPDUMP_NAME(untyped_storage);
  OPDUMP_NAME(_cdata);
  OPDUMP_NAME(_version);
  OPDUMP_NAME(storage_offset);
  PyObject* dtype = nullptr;
  if (!tensors_.is_plain(tensor) || !tensors_.describe(tensor, &view, &dtype)) return false;
  const nb::object storage = nb::steal(PyObject_CallMethodNoArgs(tensor, untyped_storage));
  if (!storage) {
    PyErr_Clear();
    return false;
  }
  const nb::object key = owned(PyObject_GetAttr(storage.ptr(), _cdata));
  nb::object source;
  if (is_input) {
    source = source_of(key, tensor);
    const bool is_named = source && PyUnicode_GET_LENGTH(source.ptr()) > 0;
    slot.is_constant = !is_named && known != nullptr && known->is_constant;
    if (slot.is_constant) source = known->source;
  }
  int64_t version = 0;
  PyObject* counted = PyObject_GetAttr(tensor, _version);
  if (counted == nullptr) {  // made in inference mode, where nothing is counted
    if (!PyErr_ExceptionMatches(PyExc_RuntimeError)) nb::raise_python_error();
    PyErr_Clear();
  } else {
    version = number(nb::steal(counted)) + is_counted;
  }
  slot.offset = number(owned(PyObject_CallMethodNoArgs(tensor, storage_offset)));
  PyObject* seen = item(first_, key.ptr());
  if (seen == nullptr) {
    hold(key, storage);
    slot.storage = PyDict_GET_SIZE(first_.ptr());
    slot.version = 0;
    set_item(first_, key.ptr(), nb::make_tuple(slot.storage, version).ptr());
  } else {
    slot.storage = number(nb::borrow(PyTuple_GET_ITEM(seen, 0)));
    slot.version = version - number(nb::borrow(PyTuple_GET_ITEM(seen, 1)));
  }
  slot.code = view.code;
  slot.dimensions.assign(view.shape, view.shape + view.rank);
  slot.dimensions.insert(slot.dimensions.end(), view.strides, view.strides + view.rank);
  slot.is_empty = view.count == 0;
  slot.is_unwritten = false;
  if (source) {
    const int found = PySet_Contains(unwritten_.ptr(), source.ptr());
    if (found < 0) nb::raise_python_error();
    slot.is_unwritten = found == 1;
  } else {
    static PyObject* const none = interned("");
    source = nb::borrow(none);
  }
  slot.source = std::move(source);
  return true;
}

void Follower::read(const std::vector<Found>& found, const std::vector<View>& views, const std::vector<Slot>& slots) {
  new_rows_.clear();
  for (size_t i = 0; i < found.size(); ++i) {
    const bool has_numbers = !slots[i].is_empty && !slots[i].is_unwritten;
    const int64_t row = has_numbers ? static_cast<int64_t>(tensors_.read(found[i].tensor, views[i]).row) : -1;
    new_rows_.push_back(row);
  }
}

// As CaptureMode._forget_written; the inputs are in found_.
void Follower::forget_written(const Function& function) {
  Seen* seen = tensors_.seen();
  if (seen == nullptr || seen->size() == 0) return;
  if (!function.declares_writes) {
    seen->clear();
    return;
  }
  if (!function.writes) return;
  OPDUMP_NAME(untyped_storage);
  OPDUMP_NAME(resizable);
  OPDUMP_NAME(_cdata);
  for (const Found& each : found_) {
    if (!function.tensors[each.argument].is_written) continue;
    const nb::object storage = nb::steal(PyObject_CallMethodNoArgs(each.tensor, untyped_storage));
    if (!storage) PyErr_Clear();
    if (!storage || owned(PyObject_CallMethodNoArgs(storage.ptr(), resizable)).ptr() != Py_True) {
      seen->clear();
    } else {
      seen->forget(nb::cast<uint64_t>(owned(PyObject_GetAttr(storage.ptr(), _cdata))));
    }
  }
}

// A step that is followed

void Follower::begins(const nb::object& link) {
  if (!link || link.is_none()) return;
  const int64_t sequence = number(called(sequence_));
  if (sequence != last_node_) {
    nb::object before = last_link_;
    int64_t last = last_node_;
    if (last < 0 || sequence - last > kMostNodes) {
      last = sequence - 1;
      before = nb::none();
    }
    last_node_ = sequence;
    const nb::tuple pair = nb::make_tuple(before, link);
    for (; last < sequence; ++last) set_item(recent_, nb::int_(last).ptr(), pair.ptr());
  }
  last_link_ = link;
}

// As `beside_the_program`.
void Follower::spent(int64_t began) {
  PyObject*& slot = Prototype::slot(clock_.ptr(), spent_slot_);
  PyObject* now = PyLong_FromLongLong(number(nb::borrow(slot)) + nanoseconds(CLOCK_MONOTONIC) - began);
  if (now == nullptr) nb::raise_python_error();
  std::swap(slot, now);
  Py_DECREF(now);
}

void Follower::note_step() {
  if (!timestamps_.empty()) return;
  OPDUMP_NAME(step);
  step_ = owned(PyObject_GetAttr(observer_.ptr(), step));
}

void Follower::counts(const nb::object& kind) {
  PyObject* before = item(counted_, kind.ptr());
  set_item(counted_, kind.ptr(), nb::int_(before == nullptr ? 1 : number(nb::borrow(before)) + 1).ptr());
}

// From here to its end nothing lets another thread run.
void Follower::commit(bool is_stamped) {
  if (is_stamped) {
    timestamp_ = std::max(timestamp_ + 1, nanoseconds(CLOCK_REALTIME) / 1000);
    timestamps_.push_back(timestamp_);
    ++order_;
  }
  rows_.insert(rows_.end(), new_rows_.begin(), new_rows_.end());
}

bool Follower::differs(const char* what) {
  difference_ = what;
  return false;
}

// Whether the operator is the known one, up to its inputs; then it is noted as running.
bool Follower::begin(const Event& known, PyObject* args, PyObject* kwargs) {
  const uint64_t generation = generation_;
  if (number(called(depth_)) != 0) return differs("modes");
  OPDUMP_NAME(pending);
  if (PyObject_Size(owned(PyObject_GetAttr(collectives_.ptr(), pending)).ptr()) != 0) return differs("collectives");
  if (order_ != known.order) return differs("order");
  if (!look_at_site(now_.site, known.kind) || !now_.site.is_same(known.site)) {
    missed_place_ = true;
    return differs("place");
  }
  if (known.kind != EventKind::kKernel) return true;
  if (!look_at_arguments(*known.function, args, kwargs) || arguments_.size() != known.arguments.size() ||
      found_.size() != known.inputs.size()) {
    return differs("arguments");
  }
  for (size_t i = 0; i < arguments_.size(); ++i) {
    if (!is_same_argument(arguments_[i], known.arguments[i].ptr())) return differs("arguments");
  }
  views_.resize(found_.size());
  now_.inputs.resize(found_.size());
  for (size_t i = 0; i < found_.size(); ++i) {
    Slot& slot = now_.inputs[i];
    slot.slot = found_[i].slot;
    slot.argument = found_[i].argument;
    if (!observe(found_[i].tensor, false, true, &known.inputs[i], slot, views_[i])) return differs("inputs");
    if (!slot.is_same(known.inputs[i])) return differs("inputs");
    if (slot.is_constant) note(found_[i].tensor, slot.source);
  }
  read(found_, views_, now_.inputs);
  note_step();
  if (generation != generation_) return differs("thread");
  begins(known.link);
  commit(true);
  in_operator_ = true;
  return true;
}

// Whether the outputs are the known ones; then they are read.
bool Follower::end(const Event& known, PyObject* args, PyObject* kwargs, PyObject* result) {
  const uint64_t generation = generation_;
  const Function& function = *known.function;
  found_.clear();
  if (!gather(function.tensors, args, kwargs, found_, nullptr)) return false;
  forget_written(function);
  if (!outputs_of(function, args, kwargs, result, found_) || found_.size() != known.outputs.size()) return false;
  for (size_t i = 0; i < found_.size(); ++i) {
    if (found_[i].slot != known.outputs[i].slot || found_[i].argument != known.outputs[i].argument) return false;
  }
  std::vector<Found> counted;
  if (!gather(function.counted, args, kwargs, counted, nullptr)) return false;
  for (size_t i = 0; i < found_.size(); ++i) note(found_[i].tensor, known.sources[i]);
  views_.resize(found_.size());
  now_.outputs.resize(found_.size());
  for (size_t i = 0; i < found_.size(); ++i) {
    Slot& slot = now_.outputs[i];
    slot.slot = found_[i].slot;
    slot.argument = found_[i].argument;
    const bool is_counted =
        std::any_of(counted.begin(), counted.end(), [&](const Found& each) { return each.tensor == found_[i].tensor; });
    if (!observe(found_[i].tensor, is_counted, false, nullptr, slot, views_[i])) return false;
    if (!slot.is_same(known.outputs[i])) return false;
  }
  read(found_, views_, now_.outputs);
  if (generation != generation_) return false;
  commit(false);
  in_operator_ = false;
  ++cursor_;
  return true;
}

// As Naming._release: nobody holds a lock here that the recorder might wait for.
void Follower::release_deferred() {
  OPDUMP_NAME(is_deferring);
  if (owned(PyObject_GetAttr(recorder_.ptr(), is_deferring)).ptr() == Py_False) return;
  PyObject* const position = position_.ptr();
  const bool is_network = Prototype::slot(position, root_slot_) != Py_None;
  const bool updates = PyUnicode_CompareWithASCIIString(Prototype::slot(position, phase_slot_), "optimizer") == 0;
  if (is_network || updates || number(called(task_)) >= 0) called(release_);
}

nb::object Follower::follow(nb::handle func, nb::handle types, nb::handle args, nb::handle kwargs) {
  if (!following_ || busy_ || in_operator_ || cursor_ >= events_->size()) return missed_;
  const std::shared_ptr<std::vector<Event>> events = events_;  // another thread may end the step meanwhile
  const size_t place = cursor_;
  const Event& known = (*events)[place];
  difference_ = "operator";
  if (known.function == nullptr || known.function->func.ptr() != func.ptr()) return missed_;
  difference_ = "thread";
  if (PyThread_get_thread_ident() != owner_) return missed_;
  difference_ = "recursion limit";
  if (calls_left() < kCallsLeft) return missed_;
  difference_ = "classes";
  for (nb::handle type : types) {
    if (!tensors_.is_plain_class(type.ptr())) return missed_;
  }
  PyObject* const named = kwargs.is_none() || PyDict_GET_SIZE(kwargs.ptr()) == 0 ? nullptr : kwargs.ptr();
  int64_t began = nanoseconds(CLOCK_MONOTONIC);
  release_deferred();
  const uint64_t generation = generation_;
  std::optional<Unseen> unseen(unseen_);
  bool is_known = false;
  {
    const Busy busy(busy_);
    try {
      is_known = following_ && cursor_ == place && begin(known, args.ptr(), named);
    } catch (nb::python_error& error) {
      broke(error);
    }
  }
  if (!is_known) return missed_;
  spent(began);
  const bool is_kernel = known.kind == EventKind::kKernel;
  nb::object result = nb::steal(PyObject_Call(func.ptr(), args.ptr(), named));
  if (!result) {
    if (!is_kernel) nb::raise_python_error();
    nb::python_error error;
    if (host_) failed_(func, args, kwargs, error.value());
    throw error;
  }
  if (!host_) return result;  // the capture has ended
  began = nanoseconds(CLOCK_MONOTONIC);
  bool is_same = false;
  if (generation == generation_) {  // else somebody has recorded it by other means meanwhile
    const Busy busy(busy_);
    try {
      if (is_kernel) {
        is_same = end(known, args.ptr(), named, result.ptr());
      } else if (known.kind != EventKind::kAllocation ||
                 (outputs_of(*known.function, args.ptr(), named, result.ptr(), found_) &&
                  found_.size() == known.sources.size())) {
        for (size_t i = 0; i < known.sources.size(); ++i) note(found_[i].tensor, known.sources[i]);
        if (generation == generation_) {
          begins(known.link);
          counts(known.function->kind);
          ++order_;
          ++cursor_;
          is_same = true;
        }
      }
    } catch (nb::python_error& error) {
      broke(error);
    }
  }
  spent(began);
  if (is_same || !host_) return result;
  if (is_kernel) {
    cut_off_(func, args, kwargs, result);
  } else {
    skipped_(func, args, kwargs, result);
  }
  return result;
}

bool Follower::follow_value(nb::handle name, nb::handle graph_id, nb::handle tensor) {
  if (!following_ || busy_ || in_operator_ || cursor_ >= events_->size() || PyThread_get_thread_ident() != owner_) {
    return false;
  }
  const std::shared_ptr<std::vector<Event>> events = events_;
  const Event& known = (*events)[cursor_];
  if (known.kind != EventKind::kValue || order_ != known.order || !are_equal(name.ptr(), known.name.ptr()) ||
      !are_equal(graph_id.ptr(), known.graph_id.ptr())) {
    return false;
  }
  const uint64_t generation = generation_;
  const Busy busy(busy_);
  try {
    views_.resize(1);
    now_.outputs.resize(1);
    Slot& slot = now_.outputs[0];
    slot.slot = 0;
    slot.argument = 0;
    if (!observe(tensor.ptr(), false, false, nullptr, slot, views_[0]) || !slot.is_same(known.outputs[0])) return false;
    found_.assign(1, {0, 0, tensor.ptr()});
    read(found_, views_, now_.outputs);
    note_step();
    if (generation != generation_) return false;
    commit(true);
    ++cursor_;
    return true;
  } catch (nb::python_error& error) {
    broke(error);
  }
  return false;
}

void Follower::broke(nb::python_error& error) {
  if (!error.matches(PyExc_Exception)) {  // Ctrl-C
    throw error;
  }
  if (host_) broke_(error.value());
}

// A step that is learned

bool Follower::look(int kind, nb::handle func, nb::handle schema, nb::handle args, nb::handle kwargs, int64_t order,
                    const nb::set& constants) {
  const Unseen unseen(unseen_);
  now_ = Event();
  now_.kind = static_cast<EventKind>(kind);
  now_.order = order;
  now_.function = function_of(func, schema);
  if (now_.function->asynchronous || !look_at_site(now_.site, now_.kind)) return false;
  if (now_.kind != EventKind::kKernel) return true;
  PyObject* const named = kwargs.is_none() || PyDict_GET_SIZE(kwargs.ptr()) == 0 ? nullptr : kwargs.ptr();
  if (!look_at_arguments(*now_.function, args.ptr(), named)) return false;
  for (PyObject* each : arguments_) {
    if (!is_comparable(each)) return false;
    now_.arguments.push_back(nb::borrow(each));
  }
  for (const Found& each : found_) {
    Slot slot;
    View view;
    slot.slot = each.slot;
    slot.argument = each.argument;
    if (!observe(each.tensor, false, true, nullptr, slot, view)) return false;
    slot.is_constant = constants.contains(nb::int_(each.slot));
    now_.inputs.push_back(std::move(slot));
  }
  return true;
}

nb::object Follower::learn(nb::handle args, nb::handle kwargs, nb::handle result, nb::handle link, nb::handle sources) {
  const Unseen unseen(unseen_);
  PyObject* const named = kwargs.is_none() || PyDict_GET_SIZE(kwargs.ptr()) == 0 ? nullptr : kwargs.ptr();
  now_.link = nb::borrow(link);
  for (nb::handle each : sources) now_.sources.push_back(nb::borrow(each));
  nb::list facts;
  if (now_.kind == EventKind::kKernel || now_.kind == EventKind::kAllocation) {
    std::vector<Found> counted;
    if (!outputs_of(*now_.function, args.ptr(), named, result.ptr(), found_) || found_.size() != now_.sources.size() ||
        !gather(now_.function->counted, args.ptr(), named, counted, nullptr)) {
      return nb::none();
    }
    for (const Slot& slot : now_.inputs) facts.append(facts_of(slot));
    for (const Found& each : found_) {
      if (now_.kind != EventKind::kKernel) break;
      Slot slot;
      View view;
      slot.slot = each.slot;
      slot.argument = each.argument;
      const bool is_counted =
          std::any_of(counted.begin(), counted.end(), [&](const Found& other) { return other.tensor == each.tensor; });
      if (!observe(each.tensor, is_counted, false, nullptr, slot, view)) return nb::none();
      facts.append(facts_of(slot));
      now_.outputs.push_back(std::move(slot));
    }
  }
  events_->push_back(std::move(now_));
  now_ = Event();
  return facts;
}

nb::object Follower::learn_value(nb::handle name, nb::handle graph_id, nb::handle tensor, int64_t order) {
  const Unseen unseen(unseen_);
  now_ = Event();
  now_.kind = EventKind::kValue;
  now_.order = order;
  now_.name = nb::borrow(name);
  now_.graph_id = nb::borrow(graph_id);
  Slot slot;
  View view;
  if (!observe(tensor.ptr(), false, false, nullptr, slot, view)) return nb::none();
  nb::list facts;
  facts.append(facts_of(slot));
  now_.outputs.push_back(std::move(slot));
  events_->push_back(std::move(now_));
  now_ = Event();
  return facts;
}

void Follower::learn_other() { events_->emplace_back(); }

void Follower::refuse() { events_->back() = Event(); }

nb::object Follower::facts_of(const Slot& slot) const {
  const size_t rank = slot.dimensions.size() / 2;
  nb::list shape, strides;
  for (size_t d = 0; d < rank; ++d) {
    shape.append(slot.dimensions[d]);
    strides.append(slot.dimensions[rank + d]);
  }
  return nb::make_tuple(slot.slot, slot.code, nb::tuple(shape), slot.storage, slot.offset, nb::tuple(strides),
                        slot.version, slot.source, slot.is_empty, slot.is_unwritten);
}

}  // namespace opdump
