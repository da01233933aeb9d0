// Follows a step of a program that runs what the step before ran.
//
// A step is learned first: what each operator was, where in the program it ran, what it was given, and what its tensors
// were. In a step that follows, each operator is looked at in the same way and compared with the one that stands next.
// Where all is equal, nothing is made of it but a time stamp and the summaries of its tensors, and of arguments that
// are no tensors what the host keeps of them (`given`), where they are others. Where something else differs, `follow`
// says so, and whoever called it records the operator by other means. src/opdump/adapters/torch/following.py is the
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

// How an operator is recorded; the numbers are those of `lesson.Kind`.
enum class EventKind : int {
  kKernel,      // with its tensors
  kListed,      // without a kernel: named and counted
  kQuick,       // the same in a gradient that ran it before: counted
  kAllocation,  // the same, and its outputs are noted
  kValue,       // what no operator made
  kOther,       // not to be followed
};

class Follower {
 public:
  // Of the sides of an operator whose tensors are filed, inputs or outputs, summaries and digests are taken, and
  // elements where these are filed. `host` has the functions and tables that are asked for in the constructor, by these
  // names.
  Follower(nb::handle table, const nb::tuple& classes, nb::handle digests, nb::handle seen, nb::handle place,
           bool files_inputs, bool files_outputs, bool files_elements, nb::handle host);
  ~Follower();
  Follower(const Follower&) = delete;
  Follower& operator=(const Follower&) = delete;

  // A step begins, in the thread that calls: it is compared with the lesson of that number, or learned as that.
  void start(int lesson, nb::handle position, nb::handle nodes, int64_t order, int64_t timestamp);
  // The same in the middle of a step, where the event at `place` comes next.
  void resume(size_t place, nb::handle nodes, int64_t order, int64_t timestamp);
  // Nothing is followed until `resume` or `start`: (order, timestamp). The nodes get what was noted for them.
  nb::tuple suspend();
  // What was followed since the last time: (first event, behind the last event, step, time stamps, rows, counted, where
  // the elements of each tensor are, None of those that were not filed).
  nb::tuple take();

  // Has elements filed that were not yet: filed(place among the tensors since `take`, address, first event, step) says
  // where they are. Whatever stops that, each tensor keeps its place; those behind it are filed where it is Ctrl-C.
  void file_kept(const nb::object& filed);
  // Of an operator since `take`.
  int64_t timestamp(size_t place) const { return timestamps_.at(place); }

  // The result of the operator, or `missed`, and nothing was done.
  nb::object follow(nb::handle func, nb::handle types, nb::handle args, nb::handle kwargs);
  bool follow_value(nb::handle name, nb::handle graph_id, nb::handle tensor);

  void forget(int lesson);
  // The capture has ended: lets go of the host.
  void close();
  // Looks at an operator that is about to run, and whose inputs have been read; false where it cannot be followed.
  // `constants`: the slots of those that it gave their names.
  bool look(int kind, nb::handle func, nb::handle schema, nb::handle args, nb::handle kwargs, int64_t order,
            const nb::set& constants);
  // The same operator has run, and its outputs have been read. Appends it to what is known: what was seen of its
  // tensors, as (slot, dtype, shape, storage, offset, strides, version, source, is_empty, is_unwritten) of those inputs
  // and outputs that are filed; None where it cannot be followed.
  nb::object learn(nb::handle args, nb::handle kwargs, nb::handle result, nb::handle link, nb::handle sources);
  nb::object learn_value(nb::handle name, nb::handle graph_id, nb::handle tensor, int64_t order);
  void learn_other();
  // The event that was learned last is not to be followed after all.
  void refuse();

  // The calls of networks, optimizers and gradients of this step, by their numbers.
  int call_number(int64_t call);
  const std::vector<int64_t>& calls() const { return calls_; }

  size_t place() const { return cursor_; }
  size_t size() const { return events_->size(); }
  bool is_following() const { return following_; }
  bool is_in_operator() const { return in_operator_; }
  bool missed_place() const { return missed_place_; }
  // What was different when an operator was missed the last time.
  const char* difference() const { return difference_; }
  nb::object missed() const { return missed_; }

 private:
  struct Argument {
    int64_t index;
    nb::object name;
    bool is_written = false;
    bool is_unread = false;
  };
  // What is known of an operator by its schema.
  struct Function {
    nb::object func;
    nb::object kind;
    std::vector<Argument> tensors, others, written, counted;
    int64_t non_blocking = -1;
    int64_t factor = -1;  // of `self`, which is not read where it is 0
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
  // Where the elements of a tensor are: in the memory of the program, or a place in `copied_`, -1 without any.
  struct Kept {
    const uint8_t* lent;
    int64_t copied;
    int64_t bytes;
  };
  // What is known of a tensor but its numbers.
  struct Slot {
    int64_t slot = 0;
    size_t argument = 0;
    int code = 0;
    std::vector<int64_t> dimensions;  // sizes, then strides
    int64_t storage = 0;              // what no record tells is not looked at
    int64_t offset = 0;
    int64_t version = 0;
    nb::object source;
    bool is_unwritten = false;
    bool is_empty = false;
    bool is_constant = false;  // named by this operator

    bool is_same(const Slot& other) const;
  };
  // Where in the program an operator runs.
  struct Site {
    std::vector<std::pair<PyObject*, long>> frames;
    nb::object callers;
    PyObject* code = nullptr;
    long instruction = 0;
    nb::object scope, graph_id, phase;
    int call = 0;
    bool in_backward = false;
    nb::object found;            // the operator whose gradient runs
    nb::object parameter_scope;  // where none was found

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
    std::vector<nb::object> sources;  // of the outputs, as the operators that read them are told
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
  // `given`: what an input is given to; null of an output. `ignores_self`: its first tensor is not read.
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
  // Files what must be; where that is stopped, nothing is left that lies in a tensor.
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
  // The arguments that were given by name; null without one.
  static PyObject* named(nb::handle kwargs);

  PlainTensors tensors_;
  const bool files_inputs_, files_outputs_, files_elements_;
  nb::object host_, missed_;
  // Of the host.
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
  Event now_;  // what is looked at
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
  uint64_t generation_ = 0;  // grows with each `suspend`
  std::vector<int64_t> timestamps_, rows_, new_rows_;
  nb::dict counted_;
  std::vector<Kept> kept_, new_kept_;
  std::vector<uint8_t> copied_, filed_;
  bool has_lent_ = false;
  nb::list files_;
};

}  // namespace opdump
