// The follower's view of tensors, and the notes about them for later readers.
#include <utility>

#include "follower.h"
#include "python_objects.h"

namespace opdump {

bool Follower::Slot::is_same(const Slot& other) const {
  return slot == other.slot && argument == other.argument && code == other.code && storage == other.storage &&
         offset == other.offset && version == other.version && is_unwritten == other.is_unwritten &&
         dimensions == other.dimensions && are_equal(source.ptr(), other.source.ptr());
}

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

// Like Provenance.note.
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
    note_(nb::handle(tensor), source);  // a write to a part of the storage
    return;
  }
  set_item(sources_, key.ptr(), source.ptr());
  if (PyDict_GET_SIZE(parts_.ptr()) > 0 && item(parts_, key.ptr()) != nullptr) {
    if (PyDict_DelItem(parts_.ptr(), key.ptr()) != 0) nb::raise_python_error();
  }
}

// Like Storages.memory_of_plain.
void Follower::locate(PyObject* tensor, const nb::object& key, const nb::object& storage, bool is_counted, Slot& slot) {
  OPDUMP_NAME(_version);
  OPDUMP_NAME(storage_offset);
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
    OPDUMP_NAME(numbers);
    const nb::object counter = owned(PyObject_GetAttr(storages_.ptr(), numbers));
    slot.storage = number(owned(PyIter_Next(counter.ptr())));
    slot.version = 0;
    set_item(first_, key.ptr(), nb::make_tuple(slot.storage, version).ptr());
  } else {
    slot.storage = number(nb::borrow(PyTuple_GET_ITEM(seen, 0)));
    slot.version = version - number(nb::borrow(PyTuple_GET_ITEM(seen, 1)));
  }
}

// Like Provenance.lives. `known` has the name of a constant, an input without a known writer.
bool Follower::observe(const Found& found, bool is_counted, const Function* given, bool ignores_self, const Slot* known,
                       Slot& slot, View& view) {
  PyObject* const tensor = found.tensor;
  const bool is_input = given != nullptr;
  slot.slot = found.slot;
  slot.argument = found.argument;
  OPDUMP_NAME(untyped_storage);
  OPDUMP_NAME(_cdata);
  PyObject* dtype = nullptr;
  if (!tensors_.is_plain(tensor) || !tensors_.describe(tensor, &view, &dtype)) return false;
  const nb::object storage = nb::steal(PyObject_CallMethodNoArgs(tensor, untyped_storage));
  if (!storage) {
    PyErr_Clear();
    return false;
  }
  const nb::object key = owned(PyObject_GetAttr(storage.ptr(), _cdata));
  nb::object source;
  slot.is_unwritten = false;
  if (is_input) {
    source = source_of(key, tensor);
    const int is_in = source ? PySet_Contains(unwritten_.ptr(), source.ptr()) : 0;
    if (is_in < 0) nb::raise_python_error();
    slot.is_unwritten =
        is_in == 1 && (given->tensors[found.argument].is_unread || (ignores_self && found.argument == 0));
    if (is_in == 1 && !slot.is_unwritten) source = nb::object();  // something other than an operator wrote it
    const bool is_named = source && PyUnicode_GET_LENGTH(source.ptr()) > 0;
    slot.is_constant = !is_named && known != nullptr && known->is_constant;
    if (slot.is_constant) source = known->source;
  }
  if (is_input ? files_inputs_ : files_outputs_) locate(tensor, key, storage, is_counted, slot);
  slot.code = view.code;
  slot.dimensions.assign(view.shape, view.shape + view.rank);
  slot.dimensions.insert(slot.dimensions.end(), view.strides, view.strides + view.rank);
  slot.is_empty = view.count == 0;
  if (!source) {
    static PyObject* const none = interned("");
    source = nb::borrow(none);
  }
  slot.source = std::move(source);
  return true;
}

void Follower::read(const std::vector<Found>& found, const std::vector<View>& views, const std::vector<Slot>& slots,
                    bool is_filed) {
  new_rows_.clear();
  new_kept_.clear();
  if (!is_filed) return;
  for (size_t i = 0; i < found.size(); ++i) {
    const bool has_numbers = !slots[i].is_empty && !slots[i].is_unwritten;
    const int64_t row = has_numbers ? static_cast<int64_t>(tensors_.read(found[i].tensor, views[i])) : -1;
    new_rows_.push_back(row);
    if (!files_elements_) continue;
    if (has_numbers) {
      keep(views[i]);
    } else {
      new_kept_.push_back({nullptr, -1, 0});
    }
  }
}

// Like CaptureMode._forget_written; the inputs are in found_.
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

}  // namespace opdump
