// Reads tensors of a framework in host memory in place; their properties come from DLPack's exchange API.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>

#include <utility>

#include "addressed.h"
#include "digests.h"
#include "prototype.h"
#include "seen.h"
#include "summary_table.h"

namespace opdump {

// The function table behind `__dlpack_c_exchange_api__`, as in dlpack.h; only the members used here have names.
struct ExchangeApi {
  uint32_t major;
  uint32_t minor;
  ExchangeApi* previous;
  void* managed_tensors[3];
  int (*describe)(void* tensor, nb::dlpack::dltensor* out);
  void* current_work_stream;
};

inline const ExchangeApi* exchange_api_of(nb::handle type) {
  const nb::object capsule = nb::getattr(type, "__dlpack_c_exchange_api__");
  auto* api = static_cast<ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  if (api == nullptr) nb::raise_python_error();
  while (api != nullptr && api->major != 1) api = api->previous;
  if (api == nullptr || api->describe == nullptr) {
    throw nb::type_error("the tensors lack the DLPack exchange API (major version 1) that describes a tensor in place");
  }
  return api;
}

struct Kind {
  int code = -1;
  PyObject* name = nullptr;
};

// The dtype code of a DLPack type; -1 if it cannot be summarised.
inline Kind kind_of(nb::dlpack::dtype dtype) {
  using Code = nb::dlpack::dtype_code;
  static PyObject* const names[kDTypes] = {
      interned("float16"), interned("bfloat16"), interned("float32"), interned("float64"), interned("int8"),
      interned("int16"),   interned("int32"),    interned("int64"),   interned("uint8"),   interned("uint16"),
      interned("uint32"),  interned("uint64"),   interned("bool")};
  const auto code = static_cast<Code>(dtype.code);
  const int width = dtype.bits == 8 ? 0 : dtype.bits == 16 ? 1 : dtype.bits == 32 ? 2 : dtype.bits == 64 ? 3 : -1;
  if (width < 0 || dtype.lanes != 1) return {};
  DType found;
  if (code == Code::Float && width > 0) {
    found = width == 1 ? DType::float16 : width == 2 ? DType::float32 : DType::float64;
  } else if (code == Code::Bfloat && width == 1) {
    found = DType::bfloat16;
  } else if (code == Code::Int) {
    found = static_cast<DType>(static_cast<int>(DType::int8) + width);
  } else if (code == Code::UInt) {
    found = static_cast<DType>(static_cast<int>(DType::uint8) + width);
  } else if (code == Code::Bool && width == 0) {
    found = DType::boolean;
  } else {
    return {};
  }
  return {static_cast<int>(found), names[static_cast<int>(found)]};
}

// A tensor's memory in place; the sizes and strides belong to the tensor.
struct View {
  const void* elements = nullptr;
  int code = 0;
  int rank = 0;
  const int64_t* shape = nullptr;
  const int64_t* strides = nullptr;
  int64_t count = 0;
  int64_t bytes = 0;
};

// Reads plain tensors: on the host, of one of the given classes and of a dtype that can be summarised. With `seen`, a
// large one that was read before and not written since is not read again.
class PlainTensors {
 public:
  PlainTensors(nb::handle table, const nb::tuple& classes, nb::handle digests, nb::handle seen, nb::handle place)
      : table_object_(nb::borrow(table)),
        table_(nb::cast<SummaryTable*>(table)),
        digests_object_(nb::borrow(digests)),
        digests_(digests.is_none() ? nullptr : nb::cast<Digests*>(digests)),
        seen_object_(nb::borrow(seen)),
        seen_(seen.is_none() ? nullptr : nb::cast<Seen*>(seen)),
        place_(nb::borrow(place)),
        classes_(classes),
        api_(exchange_api_of(classes[0])) {}

  PyObject* table() const { return table_object_.ptr(); }
  Seen* seen() const { return seen_; }

  // Not for subclasses: they may override properties and may have no memory of their own.
  bool is_plain(PyObject* tensor) const { return is_plain_class(reinterpret_cast<PyObject*>(Py_TYPE(tensor))); }
  bool is_plain_class(PyObject* type) const {
    for (nb::handle each : classes_) {
      if (each.ptr() == type) return true;
    }
    return false;
  }

  // False if the tensor must be read by other means. True for an empty tensor.
  bool describe(PyObject* tensor, View* view, PyObject** dtype) const {
    nb::dlpack::dltensor facts;
    if (api_->describe(tensor, &facts) != 0) {
      // No memory, or no strided memory (RuntimeError), or a type that DLPack cannot express (BufferError).
      if (!PyErr_ExceptionMatches(PyExc_RuntimeError) && !PyErr_ExceptionMatches(PyExc_BufferError)) {
        nb::raise_python_error();
      }
      PyErr_Clear();
      return false;
    }
    const Kind kind = kind_of(facts.dtype);
    if (facts.device.device_type != nb::device::cpu::value || kind.code < 0 || facts.ndim > kMaxDimensions) {
      return false;
    }
    static PyObject* const is_neg = interned("is_neg");
    const nb::object negated = nb::steal(PyObject_CallMethodNoArgs(tensor, is_neg));
    if (!negated) nb::raise_python_error();
    if (negated.ptr() != Py_False) return false;
    int64_t count = 1;
    for (int d = 0; d < facts.ndim; ++d) {
      if (__builtin_mul_overflow(count, facts.shape[d], &count)) return false;
    }
    if (count > 0 && facts.data == nullptr) return false;
    *view = {static_cast<const char*>(facts.data) + facts.byte_offset,
             kind.code,
             facts.ndim,
             facts.shape,
             facts.strides,
             count,
             count * kItemSize[kind.code]};
    *dtype = kind.name;
    return true;
  }

  // The row of the summary.
  size_t read(PyObject* tensor, const View& view) const {
    return seen_ != nullptr && view.bytes >= seen_->least_bytes() ? read_once(tensor, view) : read_now(view);
  }

 private:
  size_t read_now(const View& view) const {
    const size_t row = table_->append(summary_of_strided(view.elements, static_cast<DType>(view.code), view.rank,
                                                         view.shape, view.strides, view.count));
    if (digests_ != nullptr) {
      digests_->add(view.elements, kItemSize[view.code], view.rank, view.shape, view.strides, view.count,
                    static_cast<int64_t>(row));
    }
    return row;
  }

  // The row of an earlier read of the same view if its storage was not written since; else reads it.
  size_t read_once(PyObject* tensor, const View& view) const {
    const nb::object place = place_(nb::handle(tensor));
    int64_t extent = 1;
    for (int d = 0; d < view.rank; ++d) {
      if (view.strides[d] < 0) return read_now(view);
      extent += (view.shape[d] - 1) * view.strides[d];
    }
    const int64_t bytes = extent * kItemSize[view.code];
    if (place.is_none() || bytes < static_cast<int64_t>(sizeof(uint64_t))) return read_now(view);
    const auto [storage, version] = nb::cast<std::pair<uint64_t, int64_t>>(place);
    Sighting now;
    now.geometry = {view.elements, view.code, {view.shape, view.shape + view.rank}};
    now.geometry.dimensions.insert(now.geometry.dimensions.end(), view.strides, view.strides + view.rank);
    now.version = version;
    now.fingerprint = fingerprint_of(view.elements, bytes);
    const Sighting* before = seen_->find(storage, now);
    if (before != nullptr) return before->row;
    const uint64_t epoch = seen_->epoch();  // another thread may write while this one reads without the GIL
    const size_t row = now.row = read_now(view);
    seen_->add(storage, std::move(now), epoch);
    return row;
  }

  nb::object table_object_;
  SummaryTable* table_;
  nb::object digests_object_;
  Digests* digests_;
  nb::object seen_object_;
  Seen* seen_;
  nb::object place_;
  nb::tuple classes_;
  const ExchangeApi* api_;
};

}  // namespace opdump
