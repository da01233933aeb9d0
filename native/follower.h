// Fast path for steps that repeat an earlier step.
//
// First a step is learned: each operator, its place in the program, its arguments, and its tensors. In a later step,
// each operator is compared with the next learned one. If everything matches, only a time stamp and summaries of its
// tensors are recorded, and other arguments only if their values differ (`given`). If something else differs, `follow`
// returns `missed`, and the caller records the operator by the slow path. src/opdump/adapters/torch/following.py is the
// other half.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "call_stack.h"
#include "plain_tensors.h"

namespace opdump {

// How an operator is recorded; the numbers are those of `lessons.Kind`.
enum class EventKind : int {
  kKernel,      // with its tensors
  kListed,      // without a kernel: named and counted
  kQuick,       // without a kernel, in a gradient that ran it before: only counted
  kAllocation,  // counted, and its outputs are noted
  kValue,       // a value without an operator
  kOther,       // not followed
};

class Follower {
 public:
  // `files_inputs` and `files_outputs` select the tensors of which summaries and digests are taken, and with
  // `files_elements` values. `host` provides functions and tables as attributes; the constructor reads them by name.
  Follower(nb::handle table, const nb::tuple& classes, nb::handle digests, nb::handle seen, nb::handle place,
           bool files_inputs, bool files_outputs, bool files_elements, nb::handle host);
  ~Follower();
  Follower(const Follower&) = delete;
  Follower& operator=(const Follower&) = delete;

  // Begins a step in the calling thread: it is compared with lesson number `lesson`, or learned as that lesson.
  void start(int lesson, nb::handle position, nb::handle nodes, int64_t order, int64_t timestamp);
  // The same in the middle of a step; the event at `place` comes next.
  void resume(size_t place, nb::handle nodes, int64_t order, int64_t timestamp);
  // Stops following until `resume` or `start`, and passes on what was noted for the nodes. Returns (order, timestamp).
  nb::tuple suspend();
  // What was followed since the last call: (first event, end of the events, step, time stamps, rows, counted, location
  // of the elements of each tensor, None if they were not filed).
  nb::tuple take();

  // Files pending elements: filed(place among the tensors since `take`, address, first event, step) returns their
  // location. If a call raises, its tensor has no location; after Ctrl-C the later tensors are still filed, after
  // another error they are not.
  void file_kept(const nb::object& filed);
  // The time stamp of an operator since `take`.
  int64_t timestamp(size_t place) const { return timestamps_.at(place); }

  // Runs the operator and returns its result; returns `missed`, without running it, if it cannot be followed.
  nb::object follow(nb::handle func, nb::handle types, nb::handle args, nb::handle kwargs);
  bool follow_value(nb::handle name, nb::handle graph_id, nb::handle tensor);

  void forget(int lesson);
  // Ends the capture: releases the host.
  void close();
  // Learns an operator that is about to run and whose inputs have been read; false if it cannot be followed.
  // `constants`: the slots of the inputs that became constants named by it.
  bool look(int kind, nb::handle func, nb::handle schema, nb::handle args, nb::handle kwargs, int64_t order,
            const nb::set& constants);
  // Appends that operator to the lesson after it has run and its outputs have been read. Returns (slot, dtype, shape,
  // storage, offset, strides, version, source, is_empty, is_unwritten) for each filed input and output; None if it
  // cannot be followed.
  nb::object learn(nb::handle args, nb::handle kwargs, nb::handle result, nb::handle link, nb::handle sources);
  nb::object learn_value(nb::handle name, nb::handle graph_id, nb::handle tensor, int64_t order);
  void learn_other();
  // Marks the event that was learned last as not followed.
  void refuse();

  // The number of a call of a network, optimizer or gradient within this step.
  int call_number(int64_t call);
  const std::vector<int64_t>& calls() const { return calls_; }

  size_t place() const { return cursor_; }
  size_t size() const { return events_->size(); }
  bool is_following() const { return following_; }
  bool is_in_operator() const { return in_operator_; }
  bool missed_place() const { return missed_place_; }
  // What differed at the last miss.
  const char* difference() const { return difference_; }
  nb::object missed() const { return missed_; }

 private:
  struct Argument {
    int64_t index;
    nb::object name;
    bool is_written = false;
    bool is_unread = false;
  };
  // The properties of an operator that follow from its schema.
  struct Function {
    nb::object func;
    nb::object kind;
    std::vector<Argument> tensors, others, written, counted;
    int64_t non_blocking = -1;
    int64_t factor = -1;  // position of the factor of `self`; if the factor is 0, `self` is not read
    bool asynchronous = false;
    bool declares_writes = false;
    bool writes = false;
  };
  // A tensor among the arguments or results.
  struct Found {
    int64_t slot;
    size_t argument;
    PyObject* tensor;
  };
  // The location of the elements of a tensor: in the program's memory, or an offset in `copied_`, -1 without elements.
  struct Kept {
    const uint8_t* lent;
    int64_t copied;
    int64_t bytes;
  };
  // The properties of a tensor, without its values.
  struct Slot {
    int64_t slot = 0;
    size_t argument = 0;
    int code = 0;
    std::vector<int64_t> dimensions;  // sizes, then strides
    int64_t storage = 0;              // the number of the storage in the step
    int64_t offset = 0;
    int64_t version = 0;
    nb::object source;
    bool is_unwritten = false;
    bool is_empty = false;
    bool is_constant = false;  // named by this operator

    bool is_same(const Slot& other) const;
  };
  // The place in the program where an operator runs.
  struct Site {
    std::vector<std::pair<PyObject*, long>> frames;
    nb::object callers;
    PyObject* code = nullptr;
    long instruction = 0;
    nb::object scope, graph_id, phase;
    int call = 0;
    bool in_backward = false;
    nb::object found;            // the operator whose gradient runs
    nb::object parameter_scope;  // if none was found

    bool is_same(const Site& other) const;
  };
  struct Event {
    EventKind kind = EventKind::kOther;
    const Function* function = nullptr;
    int64_t order = 0;
    Site site;
    std::vector<nb::object> arguments;
    std::vector<Slot> inputs, outputs;
    nb::object link;
    std::vector<nb::object> sources;  // names of the outputs as sources of later operators
    nb::object name, graph_id;        // of a value
  };

  const Function* function_of(nb::handle func, nb::handle schema);
  static std::vector<Argument> arguments_of(nb::handle places);
  bool look_at_site(Site& site, EventKind kind);
  void walk(PyFrameObject* frame, PyObject* running, Site& site);
  void below(PyFrameObject* frame, Site& site);
  bool is_tensor(PyObject* value, bool* is_foreign) const;
  bool gather(const std::vector<Argument>& places, PyObject* args, PyObject* kwargs, std::vector<Found>& found,
              std::vector<PyObject*>* numbers) const;
  bool look_at_arguments(const Function& function, PyObject* args, PyObject* kwargs);
  bool outputs_of(const Function& function, PyObject* args, PyObject* kwargs, PyObject* result,
                  std::vector<Found>& found) const;
  static bool ignores_self(const Function& function, PyObject* args, PyObject* kwargs);
  // `given`: the operator that an input is passed to; null for an output. `ignores_self`: its first tensor is not read.
  bool observe(const Found& found, bool is_counted, const Function* given, bool ignores_self, const Slot* known,
               Slot& slot, View& view);
  void locate(PyObject* tensor, const nb::object& key, const nb::object& storage, bool is_counted, Slot& slot);
  nb::object source_of(const nb::object& key, PyObject* tensor);
  void note(PyObject* tensor, const nb::object& source);
  void hold(const nb::object& key, const nb::object& storage);
  void begins(const nb::object& link);
  bool begin(const Event& known, PyObject* args, PyObject* kwargs);
  bool end(const Event& known, PyObject* args, PyObject* kwargs, PyObject* result);
  void forget_written(const Function& function);
  void read(const std::vector<Found>& found, const std::vector<View>& views, const std::vector<Slot>& slots,
            bool is_filed);
  void keep(const View& view);
  bool must_file() const;
  // Files elements; if that is interrupted, copies those that are still in the program's memory.
  void file();
  bool keeps_back() const;
  void counts(const nb::object& kind);
  void note_step();
  void commit(bool is_stamped);
  void release_deferred();
  void spent(int64_t began);
  nb::object facts_of(const Slot& slot) const;
  bool is_comparable(PyObject* value) const;
  void broke(nb::python_error& error);
  bool differs(const char* what);
  static bool is_among(PyObject* tensor, const std::vector<Found>& found);
  // The keyword arguments; null without any.
  static PyObject* named(nb::handle kwargs);

  PlainTensors tensors_;
  const bool files_inputs_, files_outputs_, files_elements_;
  nb::object host_, missed_;
  // Attributes of the host.
  nb::object depth_, task_, node_, sequence_, grad_enabled_, unseen_, callers_of_, source_, note_, hold_, observer_,
      recorder_, tensor_class_, release_, file_, cut_off_, failed_, broke_, skipped_, given_, collectives_, storages_;
  nb::object sources_, parts_, first_, held_, unwritten_, parameter_scopes_, comparable_, engine_, clock_;
  Question ours_, mine_;
  nb::object position_, nodes_, recent_, earlier_;
  Py_ssize_t scope_slot_ = 0, graph_slot_ = 0, phase_slot_ = 0, call_slot_ = 0, recomputing_slot_ = 0,
             running_slot_ = 0, root_slot_ = 0, spent_slot_ = 0;

  std::map<PyObject*, std::unique_ptr<Function>> functions_;
  std::map<int, std::shared_ptr<std::vector<Event>>> lessons_;
  std::shared_ptr<std::vector<Event>> events_ = std::make_shared<std::vector<Event>>();
  Event now_;  // the current operator
  std::vector<PyObject*> arguments_;
  std::vector<Found> found_;
  std::vector<View> views_;
  std::vector<int64_t> calls_;

  unsigned long owner_ = 0;
  bool following_ = false, busy_ = false, in_operator_ = false, missed_place_ = false;
  const char* difference_ = "";
  size_t cursor_ = 0, first_event_ = 0;
  int64_t order_ = 0, timestamp_ = 0, last_node_ = -1;
  nb::object last_link_, step_;
  uint64_t generation_ = 0;  // increases with each `suspend`
  std::vector<int64_t> timestamps_, rows_, new_rows_;
  nb::dict counted_;
  std::vector<Kept> kept_, new_kept_;
  std::vector<uint8_t> copied_, filed_;
  bool has_lent_ = false;
  nb::list files_;
};

}  // namespace opdump
