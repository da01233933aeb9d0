#include "follower.h"

#include <time.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "python_objects.h"

namespace opdump {
namespace {

constexpr int64_t kMostNodes = 16;  // as in ForwardLinks: one operator makes at most this many autograd nodes

int64_t nanoseconds(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// The number of Python calls that the thread has left below its recursion limit.
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

// With fewer calls left, an operator is recorded by the slow path, which raises the limit.
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

}  // namespace

Follower::Follower(nb::handle table, const nb::tuple& classes, nb::handle digests, nb::handle seen, nb::handle place,
                   bool files_inputs, bool files_outputs, bool files_elements, nb::handle host)
    : tensors_(table, classes, digests, seen, place),
      files_inputs_(files_inputs),
      files_outputs_(files_outputs),
      files_elements_(files_elements),
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
                                                       {&file_, "file_elements"},
                                                       {&cut_off_, "cut_off"},
                                                       {&failed_, "failed"},
                                                       {&broke_, "broke"},
                                                       {&skipped_, "skipped"},
                                                       {&given_, "given"},
                                                       {&collectives_, "collectives"},
                                                       {&storages_, "storages"},
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
  kept_.clear();
  copied_.clear();
  has_lent_ = false;
  files_ = nb::list();
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
  nb::tuple taken =
      nb::make_tuple(first_event_, cursor_, step_ ? step_ : nb::none(), timestamps, rows, counted_, files_);
  first_event_ = cursor_;
  timestamps_.clear();
  rows_.clear();
  counted_ = nb::dict();
  files_ = nb::list();
  step_ = nb::object();
  return taken;
}

void Follower::forget(int lesson) { lessons_.erase(lesson); }

void Follower::close() {
  suspend();
  lessons_.clear();
  for (nb::object* each : {&host_, &cut_off_, &failed_, &skipped_, &given_, &broke_, &release_, &file_}) {
    *each = nb::object();
  }
}

// Following a step

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

// Adds to the capture's time, like `isolated_from_program`.
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

// Does not release the GIL, so the operator is added as a whole.
void Follower::commit(bool is_stamped) {
  if (is_stamped) {
    timestamp_ = std::max(timestamp_ + 1, nanoseconds(CLOCK_REALTIME) / 1000);
    timestamps_.push_back(timestamp_);
    ++order_;
  }
  rows_.insert(rows_.end(), new_rows_.begin(), new_rows_.end());
  for (const Kept& each : new_kept_) has_lent_ |= each.lent != nullptr;
  kept_.insert(kept_.end(), new_kept_.begin(), new_kept_.end());
}

bool Follower::differs(const char* what) {
  difference_ = what;
  return false;
}

// Whether the operator matches the known one up to its inputs; if so, notes it as running.
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
  if (keeps_back()) return differs("step");
  if (!look_at_arguments(*known.function, args, kwargs) || arguments_.size() != known.arguments.size() ||
      found_.size() != known.inputs.size()) {
    return differs("arguments");
  }
  const bool is_self_ignored = ignores_self(*known.function, args, kwargs);
  bool are_others = false;
  for (size_t i = 0; i < arguments_.size(); ++i) {
    if (is_same_argument(arguments_[i], known.arguments[i].ptr())) continue;
    if (!is_comparable(arguments_[i])) return differs("arguments");
    are_others = true;
  }
  views_.resize(found_.size());
  now_.inputs.resize(found_.size());
  for (size_t i = 0; i < found_.size(); ++i) {
    Slot& slot = now_.inputs[i];
    if (!observe(found_[i], false, known.function, is_self_ignored, &known.inputs[i], slot, views_[i]))
      return differs("inputs");
    if (!slot.is_same(known.inputs[i])) return differs("inputs");
    if (slot.is_constant) note(found_[i].tensor, slot.source);
  }
  read(found_, views_, now_.inputs, files_inputs_);
  if (are_others) {
    given_(nb::int_(cursor_), known.function->func, nb::handle(args),
           kwargs == nullptr ? nb::none() : nb::borrow(kwargs));
  }
  note_step();
  if (generation != generation_) return differs("thread");
  begins(known.link);
  commit(true);
  in_operator_ = true;
  return true;
}

// Whether the outputs match the known ones; if so, reads them.
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
    const bool is_counted = is_among(found_[i].tensor, counted);
    if (!observe(found_[i], is_counted, nullptr, false, nullptr, slot, views_[i])) return false;
    if (!slot.is_same(known.outputs[i])) return false;
  }
  read(found_, views_, now_.outputs, files_outputs_);
  if (generation != generation_) return false;
  commit(false);
  in_operator_ = false;
  ++cursor_;
  return true;
}

// Like Naming._release; no lock is held here that the recorder might wait for.
void Follower::release_deferred() {
  OPDUMP_NAME(is_deferring);
  if (owned(PyObject_GetAttr(recorder_.ptr(), is_deferring)).ptr() == Py_False) return;
  PyObject* const position = position_.ptr();
  const bool is_network = Prototype::slot(position, root_slot_) != Py_None;
  const bool updates = PyUnicode_CompareWithASCIIString(Prototype::slot(position, phase_slot_), "optimizer") == 0;
  if (is_network || updates || number(called(task_)) >= 0) called(release_);
}

// Whether nothing may be written yet, because the step or the rank is unknown.
bool Follower::keeps_back() const {
  if (!files_elements_) return false;
  OPDUMP_NAME(keeps_back);
  return owned(PyObject_GetAttr(recorder_.ptr(), keeps_back)).ptr() != Py_False;
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
  PyObject* const by_name = named(kwargs);
  int64_t began = nanoseconds(CLOCK_MONOTONIC);
  release_deferred();
  const uint64_t generation = generation_;
  std::optional<Unseen> unseen(unseen_);
  bool is_known = false;
  {
    const Busy busy(busy_);
    try {
      is_known = following_ && cursor_ == place && begin(known, args.ptr(), by_name);
    } catch (nb::python_error& error) {
      broke(error);
    }
  }
  if (!is_known) return missed_;
  spent(began);
  const bool is_kernel = known.kind == EventKind::kKernel;
  // The operator has begun: Ctrl-C from here on counts as an error of the operator.
  const auto ends_with = [&](nb::python_error& error) {
    if (is_kernel && host_) failed_(func, args, kwargs, error.value());
  };
  if (host_ && must_file()) {
    try {
      file();
    } catch (nb::python_error& error) {
      ends_with(error);
      throw;
    }
  }
  nb::object result = nb::steal(PyObject_Call(func.ptr(), args.ptr(), by_name));
  if (!result) {
    nb::python_error error;
    ends_with(error);
    throw error;
  }
  if (!host_) return result;  // the capture has ended
  began = nanoseconds(CLOCK_MONOTONIC);
  bool is_same = false;
  if (generation == generation_) {  // else it was recorded by other means meanwhile
    const Busy busy(busy_);
    try {
      if (is_kernel) {
        is_same = end(known, args.ptr(), by_name, result.ptr());
      } else if (known.kind != EventKind::kAllocation ||
                 (outputs_of(*known.function, args.ptr(), by_name, result.ptr(), found_) &&
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
      if (!error.matches(PyExc_Exception)) ends_with(error);
      broke(error);
    }
  }
  spent(began);
  if (is_same && host_ && must_file()) file();
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
  if (keeps_back()) return differs("step");
  const std::shared_ptr<std::vector<Event>> events = events_;
  const Event& known = (*events)[cursor_];
  if (known.kind != EventKind::kValue || order_ != known.order || !are_equal(name.ptr(), known.name.ptr()) ||
      !are_equal(graph_id.ptr(), known.graph_id.ptr())) {
    return false;
  }
  const uint64_t generation = generation_;
  std::optional<Busy> busy(busy_);
  try {
    views_.resize(1);
    now_.outputs.resize(1);
    Slot& slot = now_.outputs[0];
    found_.assign(1, {0, 0, tensor.ptr()});
    if (!observe(found_[0], false, nullptr, false, nullptr, slot, views_[0]) || !slot.is_same(known.outputs[0]))
      return false;
    read(found_, views_, now_.outputs, true);
    note_step();
    if (generation != generation_) return false;
    commit(true);
    ++cursor_;
  } catch (nb::python_error& error) {
    broke(error);
    return false;
  }
  busy.reset();
  if (host_ && must_file()) file();
  return true;
}

void Follower::broke(nb::python_error& error) {
  if (!error.matches(PyExc_Exception)) {  // Ctrl-C
    throw error;
  }
  if (host_) broke_(error.value());
}

}  // namespace opdump
