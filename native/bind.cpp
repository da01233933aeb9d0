// Binds the native kernels to Python. Pointers come as integers, so that no array or tensor is parsed on the way.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "append_file.h"
#include "compare.h"
#include "digest_batch.h"
#include "pool.h"
#include "prototype.h"
#include "reorder.h"
#include "seen.h"
#include "summarise.h"
#include "xxh3.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using opdump::DType;
using opdump::interned;
using opdump::Prototype;
using opdump::Summary;

// Giving up the GIL and getting it back costs more than so many bytes take to read.
constexpr int64_t kReleaseBytes = 256 * 1024;

// The bytes of so many adjacent elements, whatever their size, are a number that an integer holds.
constexpr int64_t kMostAdjacent = INT64_MAX / 16;

DType dtype_of(int64_t code) {
  if (code < 0 || code >= opdump::kDTypes) {
    throw nb::value_error(("dtype code " + std::to_string(code) + " is not in DTYPE_CODES, which end at " +
                           std::to_string(opdump::kDTypes - 1))
                              .c_str());
  }
  return static_cast<DType>(code);
}

void require_elements(uintptr_t pointer, int64_t count) {
  if (count < 0) throw nb::value_error(("a tensor cannot hold " + std::to_string(count) + " elements").c_str());
  if (pointer == 0 && count > 0) {
    throw nb::value_error(("the pointer is null, yet " + std::to_string(count) + " elements are to be read").c_str());
  }
}

void require_adjacent(uintptr_t pointer, int64_t count) {
  require_elements(pointer, count);
  if (count > kMostAdjacent) throw nb::value_error("the elements reach beyond any memory");
}

Summary summary_of(uintptr_t pointer, int code, int64_t count) {
  const DType dtype = dtype_of(code);
  require_adjacent(pointer, count);
  const void* elements = reinterpret_cast<const void*>(pointer);
  if (count * opdump::kItemSize[code] < kReleaseBytes) return opdump::summarise(elements, dtype, count);
  const nb::gil_scoped_release released;
  return opdump::summarise(elements, dtype, count);
}

// The product of the sizes. Neither the bytes of all elements nor the distance of two may be more than an integer
// holds.
int64_t count_of(size_t dimensions, const int64_t* sizes, const int64_t* steps, int64_t item) {
  for (size_t d = 0; d < dimensions; ++d) {
    if (sizes[d] == 0) return 0;
  }
  int64_t bytes = item, extent = item;
  for (size_t d = 0; d < dimensions; ++d) {
    int64_t reach;
    if (__builtin_mul_overflow(bytes, sizes[d], &bytes) || __builtin_mul_overflow(sizes[d] - 1, steps[d], &reach) ||
        __builtin_mul_overflow(reach, item, &reach) || reach == INT64_MIN ||
        __builtin_add_overflow(extent, reach < 0 ? -reach : reach, &extent)) {
      throw nb::value_error("the elements reach beyond any memory");
    }
  }
  return bytes / item;
}

int64_t integer(nb::handle item) { return nb::cast<int64_t>(item); }

Summary summary_of_strided(const void* elements, DType dtype, int rank, const int64_t* sizes, const int64_t* steps,
                           int64_t count) {
  if (count * opdump::kItemSize[static_cast<int>(dtype)] < kReleaseBytes) {
    return opdump::summarise_strided(elements, dtype, rank, sizes, steps);
  }
  const nb::gil_scoped_release released;
  return opdump::summarise_strided(elements, dtype, rank, sizes, steps);
}

Summary summary_of_strided(uintptr_t pointer, int code, const nb::tuple& shape, const nb::tuple& strides) {
  const DType dtype = dtype_of(code);
  const size_t dimensions = shape.size();
  if (strides.size() != dimensions) {
    throw nb::value_error(("the shape has " + std::to_string(dimensions) + " dimensions and the strides " +
                           std::to_string(strides.size()))
                              .c_str());
  }
  if (dimensions > opdump::kMaxDimensions) {
    throw nb::value_error(("a tensor of " + std::to_string(dimensions) + " dimensions has more than the " +
                           std::to_string(opdump::kMaxDimensions) + " that can be summarised")
                              .c_str());
  }
  int64_t sizes[opdump::kMaxDimensions];
  int64_t steps[opdump::kMaxDimensions];
  for (size_t d = 0; d < dimensions; ++d) {
    sizes[d] = integer(shape[d]);
    steps[d] = integer(strides[d]);
    require_elements(1, sizes[d]);
  }
  const int64_t count = count_of(dimensions, sizes, steps, opdump::kItemSize[code]);
  require_elements(pointer, count);
  return summary_of_strided(reinterpret_cast<const void*>(pointer), dtype, static_cast<int>(dimensions), sizes, steps,
                            count);
}

using Integers = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Rows that grow by themselves. A row is appended when its summary is complete, under the GIL: threads may share one.
class SummaryTable {
 public:
  explicit SummaryTable(size_t capacity) { rows_.reserve(capacity); }

  size_t add(uintptr_t pointer, int code, int64_t count) { return append(summary_of(pointer, code, count)); }
  size_t add_strided(uintptr_t pointer, int code, const nb::tuple& shape, const nb::tuple& strides) {
    return append(summary_of_strided(pointer, code, shape, strides));
  }

  // Nothing is appended where one of the tensors cannot be read.
  size_t add_all(const Integers& pointers, const Integers& codes, const Integers& counts) {
    const size_t count = pointers.shape(0);
    if (codes.shape(0) != count || counts.shape(0) != count) {
      throw nb::value_error("there must be as many codes and counts as pointers");
    }
    std::vector<opdump::Elements> tensors(count);
    for (size_t i = 0; i < count; ++i) {
      const auto pointer = static_cast<uintptr_t>(pointers.data()[i]);
      const int64_t code = codes.data()[i];
      tensors[i] = {reinterpret_cast<const void*>(pointer), dtype_of(code), counts.data()[i]};
      require_adjacent(pointer, counts.data()[i]);
    }
    std::vector<Summary> found(count);
    {
      const nb::gil_scoped_release released;
      opdump::summarise_all(tensors.data(), static_cast<int64_t>(count), found.data());
    }
    rows_.insert(rows_.end(), found.begin(), found.end());
    return rows_.size() - count;
  }

  size_t size() const { return rows_.size(); }
  void clear() { rows_.clear(); }

  nb::object rows() const {
    const size_t count = rows_.size();
    std::unique_ptr<double[]> copy(new double[count * opdump::kFields + 1]);
    if (count > 0) std::memcpy(copy.get(), rows_.data(), count * sizeof(Summary));
    nb::capsule owner(copy.get(), [](void* data) noexcept { delete[] static_cast<double*>(data); });
    double* data = copy.release();
    const size_t shape[2] = {count, opdump::kFields};
    return nb::cast(nb::ndarray<nb::numpy, double, nb::ndim<2>>(data, 2, shape, owner));
  }

  size_t append(const Summary& row) {
    rows_.push_back(row);
    return rows_.size() - 1;
  }

 private:
  std::vector<Summary> rows_;
};

// Whoever holds the mutex does not wait for the GIL, so others may wait for it with the GIL.
class Digests {
 public:
  Digests(const std::vector<std::string>& names, int64_t capacity, bool with_instructions)
      : names_(names), batch_(names, capacity, with_instructions) {}

  // `steps` in elements.
  size_t add(const void* elements, int64_t item, int dimensions, const int64_t* sizes, const int64_t* steps,
             int64_t count) {
    int64_t strides[opdump::kMaxDimensions];
    for (int d = 0; d < dimensions; ++d) strides[d] = steps[d] * item;
    const auto take = [&] {
      const std::lock_guard<std::mutex> hold(mutex_);
      const size_t number = batch_.add({elements, item, dimensions, sizes, strides, count});
      note();
      return number;
    };
    if (count * item < kReleaseBytes && !full_.load(std::memory_order_relaxed)) return take();
    const nb::gil_scoped_release released;
    return take();
  }

  size_t add_pointer(uintptr_t pointer, int64_t bytes, int64_t item) {
    require_adjacent(pointer, bytes);
    if (item < 1 || bytes % item != 0) {
      throw nb::value_error(
          (std::to_string(bytes) + " bytes are no elements of " + std::to_string(item) + " bytes").c_str());
    }
    const int64_t count = bytes / item, one = 1;
    return add(reinterpret_cast<const void*>(pointer), item, 1, &count, &one, count);
  }

  nb::dict digests(size_t number) {
    std::vector<std::string> found;
    {
      const nb::gil_scoped_release released;
      const std::lock_guard<std::mutex> hold(mutex_);
      if (number >= batch_.size()) {
        throw nb::index_error(
            ("tensor " + std::to_string(number) + " of " + std::to_string(batch_.size()) + " tensors").c_str());
      }
      found = batch_.digests(number);
      note();
    }
    nb::dict by_name;
    for (size_t i = 0; i < found.size(); ++i) by_name[names_[i].c_str()] = found[i];
    return by_name;
  }

  size_t size() const { return size_.load(std::memory_order_relaxed); }

  void clear() {
    const std::lock_guard<std::mutex> hold(mutex_);
    batch_.clear();
    note();
  }

 private:
  void note() {
    full_.store(batch_.is_full(), std::memory_order_relaxed);
    size_.store(batch_.size(), std::memory_order_relaxed);
  }

  std::mutex mutex_;
  std::vector<std::string> names_;
  opdump::DigestBatch batch_;
  // What is asked for without the mutex.
  std::atomic<bool> full_{false};
  std::atomic<size_t> size_{0};
};

// The table of functions behind `__dlpack_c_exchange_api__`, which dlpack.h describes; the members used here have
// names.
struct ExchangeApi {
  uint32_t major;
  uint32_t minor;
  ExchangeApi* previous;
  void* managed_tensors[3];
  int (*describe)(void* tensor, nb::dlpack::dltensor* out);
  void* current_work_stream;
};

const ExchangeApi* exchange_api_of(nb::handle type) {
  const nb::object capsule = nb::getattr(type, "__dlpack_c_exchange_api__");
  auto* api = static_cast<ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  if (api == nullptr) nb::raise_python_error();
  while (api != nullptr && api->major != 1) api = api->previous;
  if (api == nullptr || api->describe == nullptr) {
    throw nb::type_error("the tensors have no DLPack exchange API of major version 1 that describes one in place");
  }
  return api;
}

struct Kind {
  int code = -1;
  PyObject* name = nullptr;
};

// What elements DLPack means, among those that can be summarised; a code of -1 for others.
Kind kind_of(nb::dlpack::dtype dtype) {
  using Code = nb::dlpack::dtype_code;
  static PyObject* const names[opdump::kDTypes] = {
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

// Reads the tensors of an operator, all of a side in one call. What a tensor is comes from DLPack's exchange API, which
// costs a tenth of seven attributes.
class BatchSummarizer {
 public:
  BatchSummarizer(nb::handle table, nb::handle prototype, const nb::tuple& classes, nb::handle digests, nb::handle seen,
                  nb::handle place)
      : table_object_(nb::borrow(table)),
        table_(nb::cast<SummaryTable*>(table)),
        digests_object_(nb::borrow(digests)),
        digests_(digests.is_none() ? nullptr : nb::cast<Digests*>(digests)),
        seen_object_(nb::borrow(seen)),
        seen_(seen.is_none() ? nullptr : nb::cast<opdump::Seen*>(seen)),
        place_(nb::borrow(place)),
        prototype_(prototype),
        classes_(classes),
        api_(exchange_api_of(classes[0])) {
    prototype_.find(kNames, offsets_);
  }

  void take_all(nb::handle op, nb::handle io, nb::handle lives, nb::list entries, nb::handle other) {
    for (nb::handle live : lives) {
      if (!PyTuple_Check(live.ptr()) || PyTuple_GET_SIZE(live.ptr()) != 5) {
        throw nb::type_error("a live tensor is a tuple of slot, argument, tensor, source and skip");
      }
      PyObject* const* part = &PyTuple_GET_ITEM(live.ptr(), 0);
      const bool skipped = PyUnicode_GET_LENGTH(part[4]) > 0;
      nb::object taken;
      if (!skipped && is_plain(part[2])) taken = take_plain(part[2]);
      if (!taken) {
        taken = other(nb::handle(part[2]), nb::handle(part[4]));
        if (!prototype_.is_alike(taken)) throw nb::type_error("`other` returned an object unlike the prototype");
      }
      set(taken, kOp, op.ptr());
      set(taken, kIo, io.ptr());
      set(taken, kSlot, part[0]);
      set(taken, kArgument, part[1]);
      set(taken, kSource, part[3]);
      entries.append(taken);
    }
  }

 private:
  enum Place { kDtype, kShape, kSize, kRow, kTable, kDigest, kOp, kIo, kSlot, kArgument, kSource, kPlaces };
  static constexpr const char* kNames[kPlaces] = {"dtype", "shape", "data_size", "row",      "table", "digest",
                                                  "op",    "io",    "slot",      "argument", "source"};

  // The properties of a subclass may be overridden, and it may have no memory of its own.
  bool is_plain(PyObject* tensor) const {
    for (nb::handle type : classes_) {
      if (reinterpret_cast<PyObject*>(Py_TYPE(tensor)) == type.ptr()) return true;
    }
    return false;
  }

  // Null where it must be looked at otherwise.
  nb::object take_plain(PyObject* tensor) const {
    nb::dlpack::dltensor facts;
    if (api_->describe(tensor, &facts) != 0) {
      // No memory, or none that has a shape (RuntimeError), or nothing that DLPack has a word for (BufferError).
      if (!PyErr_ExceptionMatches(PyExc_RuntimeError) && !PyErr_ExceptionMatches(PyExc_BufferError)) {
        nb::raise_python_error();
      }
      PyErr_Clear();
      return nb::object();
    }
    const Kind kind = kind_of(facts.dtype);
    if (facts.device.device_type != nb::device::cpu::value || facts.data == nullptr || kind.code < 0 ||
        facts.ndim > opdump::kMaxDimensions) {
      return nb::object();
    }
    static PyObject* const is_neg = interned("is_neg");
    const nb::object negated = nb::steal(PyObject_CallMethodNoArgs(tensor, is_neg));
    if (!negated) nb::raise_python_error();
    if (negated.ptr() != Py_False) return nb::object();
    int64_t count = 1;
    const nb::object shape = nb::steal(PyTuple_New(facts.ndim));
    if (!shape) nb::raise_python_error();
    for (int d = 0; d < facts.ndim; ++d) {
      if (__builtin_mul_overflow(count, facts.shape[d], &count)) return nb::object();
      PyObject* size = PyLong_FromLongLong(facts.shape[d]);
      if (size == nullptr) nb::raise_python_error();
      PyTuple_SET_ITEM(shape.ptr(), d, size);
    }
    if (count == 0) return nb::object();
    const View view{static_cast<const char*>(facts.data) + facts.byte_offset,
                    kind.code,
                    facts.ndim,
                    facts.shape,
                    facts.strides,
                    count,
                    count * opdump::kItemSize[kind.code]};
    const bool is_known = seen_ != nullptr && view.bytes >= seen_->least_bytes();
    const Read read = is_known ? read_once(tensor, view) : read_now(view);
    nb::object taken = prototype_.copy();
    if (digests_ != nullptr) set(taken, kDigest, nb::int_(read.digest).ptr());
    set(taken, kDtype, kind.name);
    set(taken, kShape, shape.ptr());
    set(taken, kSize, nb::int_(view.bytes).ptr());
    set(taken, kRow, nb::int_(read.row).ptr());
    set(taken, kTable, table_object_.ptr());
    return taken;
  }

  struct View {
    const void* elements;
    int code;
    int rank;
    const int64_t* shape;
    const int64_t* strides;
    int64_t count;
    int64_t bytes;
  };
  // The row of the summary, and the number of the digest where one is taken.
  struct Read {
    size_t row;
    size_t digest;
  };

  Read read_now(const View& view) const {
    const size_t row = table_->append(summary_of_strided(view.elements, static_cast<DType>(view.code), view.rank,
                                                         view.shape, view.strides, view.count));
    if (digests_ == nullptr) return {row, 0};
    return {row, digests_->add(view.elements, opdump::kItemSize[view.code], view.rank, view.shape, view.strides,
                               view.count)};
  }

  // What was read of the same view, where nothing has written into its storage since.
  Read read_once(PyObject* tensor, const View& view) const {
    const nb::object place = place_(nb::handle(tensor));
    int64_t extent = 1;
    for (int d = 0; d < view.rank; ++d) {
      if (view.strides[d] < 0) return read_now(view);
      extent += (view.shape[d] - 1) * view.strides[d];
    }
    const int64_t bytes = extent * opdump::kItemSize[view.code];
    if (place.is_none() || bytes < static_cast<int64_t>(sizeof(uint64_t))) return read_now(view);
    const auto [storage, version] = nb::cast<std::pair<uint64_t, int64_t>>(place);
    opdump::Sighting now;
    now.geometry = {view.elements, view.code, {view.shape, view.shape + view.rank}};
    now.geometry.dimensions.insert(now.geometry.dimensions.end(), view.strides, view.strides + view.rank);
    now.version = version;
    now.fingerprint = opdump::fingerprint_of(view.elements, bytes);
    const opdump::Sighting* before = seen_->find(storage, now);
    if (before != nullptr) return {before->row, before->digest};
    const uint64_t epoch = seen_->epoch();  // another thread may write while this one reads without the GIL
    const Read read = read_now(view);
    now.row = read.row;
    now.digest = read.digest;
    seen_->add(storage, std::move(now), epoch);
    return read;
  }

  void set(const nb::object& taken, Place place, PyObject* value) const {
    PyObject*& slot = Prototype::slot(taken.ptr(), offsets_[place]);
    PyObject* before = slot;
    Py_INCREF(value);
    slot = value;
    Py_XDECREF(before);
  }

  nb::object table_object_;
  SummaryTable* table_;
  nb::object digests_object_;
  Digests* digests_;
  nb::object seen_object_;
  opdump::Seen* seen_;
  nb::object place_;
  Prototype prototype_;
  nb::tuple classes_;
  const ExchangeApi* api_;
  Py_ssize_t offsets_[kPlaces];
};

using Rows = nb::ndarray<double, nb::shape<-1, opdump::kFields>, nb::c_contig, nb::device::cpu>;

void write_row(const Rows& rows, int64_t row, const Summary& summary) {
  if (row < 0 || row >= static_cast<int64_t>(rows.shape(0))) {
    throw nb::index_error(
        ("row " + std::to_string(row) + " of a table of " + std::to_string(rows.shape(0)) + " rows").c_str());
  }
  std::memcpy(rows.data() + row * opdump::kFields, &summary, sizeof summary);
}

// No address of an element, nor the distance of two, may be beyond what an integer holds.
void require_extent(int64_t item, const std::vector<int64_t>& shape, const std::vector<int64_t>& strides) {
  int64_t bytes = item;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] < 0) throw nb::value_error(("no dimension is negative: " + std::to_string(shape[d])).c_str());
    int64_t reach = 0;
    if (shape[d] > 0 && (__builtin_mul_overflow(shape[d] - 1, strides[d], &reach) || reach == INT64_MIN ||
                         __builtin_add_overflow(bytes, reach < 0 ? -reach : reach, &bytes))) {
      throw nb::value_error("the elements reach beyond any memory");
    }
  }
}

void copy_strided(uintptr_t source, uintptr_t destination, int64_t item, const std::vector<int64_t>& shape,
                  const std::vector<int64_t>& source_strides, const std::vector<int64_t>& destination_strides) {
  if (item != 1 && item != 2 && item != 4 && item != 8 && item != 16) {
    throw nb::value_error(("elements have 1, 2, 4, 8 or 16 bytes, not " + std::to_string(item)).c_str());
  }
  const size_t dimensions = shape.size();
  if (source_strides.size() != dimensions || destination_strides.size() != dimensions) {
    throw nb::value_error("the shape and the strides have not the same number of dimensions");
  }
  if (dimensions > opdump::kMaxDimensions) {
    throw nb::value_error(("an array of " + std::to_string(dimensions) + " dimensions has more than the " +
                           std::to_string(opdump::kMaxDimensions) + " that can be copied")
                              .c_str());
  }
  require_extent(item, shape, source_strides);
  require_extent(item, shape, destination_strides);
  int64_t bytes = item;
  for (int64_t size : shape) {
    if (__builtin_mul_overflow(bytes, size, &bytes)) throw nb::value_error("the elements reach beyond any memory");
  }
  if (bytes == 0) return;
  require_elements(source, 1);
  require_elements(destination, 1);
  const void* from = reinterpret_cast<const void*>(source);
  void* to = reinterpret_cast<void*>(destination);
  const auto copy = [&] {
    opdump::reorder(from, to, item, static_cast<int>(dimensions), shape.data(), source_strides.data(),
                    destination_strides.data());
  };
  if (bytes < kReleaseBytes) return copy();
  const nb::gil_scoped_release released;
  copy();
}

void widen_codes(uintptr_t codes, int64_t count, uintptr_t table, uintptr_t out) {
  require_elements(codes, count);
  require_elements(out, count);
  require_elements(table, 256);
  if (count == 0) return;
  const auto* bytes = reinterpret_cast<const uint8_t*>(codes);
  const auto* values = reinterpret_cast<const float*>(table);
  auto* floats = reinterpret_cast<float*>(out);
  if (count < kReleaseBytes) return opdump::widen_codes(bytes, count, values, floats);
  const nb::gil_scoped_release released;
  opdump::widen_codes(bytes, count, values, floats);
}

using PairNumbers = std::tuple<std::vector<double>, std::vector<double>, std::vector<int64_t>, std::vector<int64_t>,
                               std::vector<std::tuple<int, int64_t, double>>>;

void require_dimensions(const std::vector<int64_t>& shape, const std::vector<int64_t>& strides) {
  if (strides.size() != shape.size()) {
    throw nb::value_error(("the shape has " + std::to_string(shape.size()) + " dimensions and the strides " +
                           std::to_string(strides.size()))
                              .c_str());
  }
  if (shape.size() > opdump::kMaxDimensions) {
    throw nb::value_error(("a tensor of " + std::to_string(shape.size()) + " dimensions has more than the " +
                           std::to_string(opdump::kMaxDimensions) + " that can be compared")
                              .c_str());
  }
}

PairNumbers pair_totals(uintptr_t first, int first_code, const std::vector<int64_t>& first_strides, uintptr_t second,
                        int second_code, const std::vector<int64_t>& second_strides, const std::vector<int64_t>& shape,
                        double atol, double rtol, bool with_argmax) {
  require_dimensions(shape, first_strides);
  require_dimensions(shape, second_strides);
  const opdump::PairSide a{reinterpret_cast<const void*>(first), dtype_of(first_code), first_strides.data()};
  const opdump::PairSide b{reinterpret_cast<const void*>(second), dtype_of(second_code), second_strides.data()};
  for (int64_t size : shape) require_elements(1, size);
  const int64_t count = count_of(shape.size(), shape.data(), first_strides.data(), opdump::kItemSize[first_code]);
  count_of(shape.size(), shape.data(), second_strides.data(), opdump::kItemSize[second_code]);
  require_elements(first, count);
  require_elements(second, count);
  opdump::PairTotals found;
  const auto compare = [&] {
    found = opdump::compare(a, b, static_cast<int>(shape.size()), shape.data(), {atol, rtol}, with_argmax);
  };
  if (count < kReleaseBytes / 16) {
    compare();
  } else {
    const nb::gil_scoped_release released;
    compare();
  }
  std::vector<std::tuple<int, int64_t, double>> worst;
  for (const opdump::WorstIndex& each : found.worst) worst.emplace_back(each.axis, each.index, each.sum);
  return {{found.sum, found.sum + opdump::kPairSums},
          {found.maximum, found.maximum + opdump::kPairMaxima},
          {found.count, found.count + opdump::kPairCounts},
          found.distances,
          worst};
}

uint64_t xxh3_low(uintptr_t pointer, int64_t count) {
  require_elements(pointer, count);
  const auto* bytes = reinterpret_cast<const uint8_t*>(pointer);
  if (count < kReleaseBytes) return opdump::xxh3_128(bytes, count).low;
  const nb::gil_scoped_release released;
  return opdump::xxh3_128(bytes, count).low;
}

// An AppendFile of a Python process: whoever waits gives up the GIL, and hears of signals meanwhile.
class Appender {
 public:
  Appender(int descriptor, int threads, int64_t capacity)
      : file_(new opdump::AppendFile(descriptor, threads, capacity)), process_(getpid()) {}
  ~Appender() {
    // In a forked process the threads are not there to be joined, and a lock may be held by one of them for ever.
    if (process_ != getpid()) return;
    const nb::gil_scoped_release released;
    delete file_;
  }
  Appender(const Appender&) = delete;
  Appender& operator=(const Appender&) = delete;

  int64_t append(const nb::bytes& header, uintptr_t elements, int64_t count) {
    require_elements(elements, count);
    const auto* begin = reinterpret_cast<const uint8_t*>(header.c_str());
    const auto bytes = static_cast<int64_t>(header.size());
    if (bytes < opdump::kRecordAlignment || bytes % opdump::kRecordAlignment != 0) {
      throw nb::value_error("the header of a record has a multiple of 64 bytes");
    }
    while (true) {
      int64_t offset = 0;
      switch (append_once(begin, bytes, reinterpret_cast<const uint8_t*>(elements), count, &offset)) {
        case opdump::AppendFile::Outcome::kDone: return offset;
        case opdump::AppendFile::Outcome::kStopped: return -1;
        case opdump::AppendFile::Outcome::kBusy: {
          const nb::gil_scoped_release released;
          std::this_thread::sleep_for(kCopying);  // another thread copies a tensor
          break;
        }
        case opdump::AppendFile::Outcome::kNoRoom: {
          const nb::gil_scoped_release released;
          file_->wait_for_room(kSlice);
        }
      }
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
    }
  }
  void push() {
    const nb::gil_scoped_release released;
    file_->push();
  }
  void flush() {
    push();
    while (true) {
      bool is_empty = false;
      {
        const nb::gil_scoped_release released;
        is_empty = file_->wait_until_empty(kSlice);
      }
      if (is_empty) return;
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
    }
  }
  void stop() {
    const nb::gil_scoped_release released;
    file_->stop();
  }
  int error() const { return file_->error(); }
  int64_t bytes_appended() const { return file_->bytes_appended(); }
  int64_t bytes_written() const { return file_->bytes_written(); }
  double seconds_waited() const { return file_->seconds_waited(); }

 private:
  static constexpr std::chrono::milliseconds kSlice{100};
  static constexpr std::chrono::microseconds kCopying{100};

  opdump::AppendFile::Outcome append_once(const uint8_t* header, int64_t header_bytes, const uint8_t* elements,
                                          int64_t count, int64_t* offset) {
    if (count < kReleaseBytes) return file_->append(header, header_bytes, elements, count, offset);
    const nb::gil_scoped_release released;
    return file_->append(header, header_bytes, elements, count, offset);
  }

  opdump::AppendFile* const file_;
  const pid_t process_;
};

std::vector<std::string> instruction_set_names() {
  const opdump::InstructionSet* sets[opdump::kMaxInstructionSets];
  const int found = opdump::instruction_sets(sets);
  std::vector<std::string> names;
  for (int i = 0; i < found; ++i) names.emplace_back(sets[i]->name);
  return names;
}

bool use_instruction_set(const std::string& name) {
  const opdump::InstructionSet* sets[opdump::kMaxInstructionSets];
  const int found = opdump::instruction_sets(sets);
  for (int i = 0; i < found; ++i) {
    if (name == sets[i]->name) {
      opdump::use_instruction_set(*sets[i]);
      return true;
    }
  }
  return false;
}

}  // namespace

NB_MODULE(_native, m) {
  nb::set_leak_warnings(false);  // a table that a module still holds at exit is no mistake
  m.def(
      "summarise_pointer",
      [](uintptr_t pointer, int code, int64_t count, const Rows& rows, int64_t row) {
        write_row(rows, row, summary_of(pointer, code, count));
      },
      "pointer"_a, "code"_a, "count"_a, "rows"_a, "row"_a);
  m.def(
      "summarise_strided_pointer",
      [](uintptr_t pointer, int code, const nb::tuple& shape, const nb::tuple& strides, const Rows& rows, int64_t row) {
        write_row(rows, row, summary_of_strided(pointer, code, shape, strides));
      },
      "pointer"_a, "code"_a, "shape"_a, "strides_in_elements"_a, "rows"_a, "row"_a);
  nb::class_<SummaryTable>(m, "SummaryTable")
      .def(nb::init<size_t>(), "capacity"_a = 256)
      .def("add", &SummaryTable::add, "pointer"_a, "code"_a, "count"_a)
      .def("add_strided", &SummaryTable::add_strided, "pointer"_a, "code"_a, "shape"_a, "strides_in_elements"_a)
      .def("add_all", &SummaryTable::add_all, "pointers"_a, "codes"_a, "counts"_a)
      .def("rows", &SummaryTable::rows)
      .def("clear", &SummaryTable::clear)
      .def("__len__", &SummaryTable::size);
  nb::class_<Digests>(m, "DigestBatch")
      .def(nb::init<const std::vector<std::string>&, int64_t, bool>(), "names"_a, "capacity"_a = int64_t{1} << 28,
           "with_instructions"_a = true)
      .def("add", &Digests::add_pointer, "pointer"_a, "byte_count"_a, "item"_a = 1)
      .def("digests", &Digests::digests, "number"_a)
      .def("clear", &Digests::clear)
      .def("__len__", &Digests::size);
  nb::class_<opdump::Seen>(m, "SeenTensors")
      .def(nb::init<int64_t>(), "least_bytes"_a)
      .def("forget", &opdump::Seen::forget, "storage"_a)
      .def("clear", &opdump::Seen::clear)
      .def("__len__", &opdump::Seen::size);
  nb::class_<BatchSummarizer>(m, "BatchSummarizer")
      .def(nb::init<nb::handle, nb::handle, const nb::tuple&, nb::handle, nb::handle, nb::handle>(), "table"_a,
           "prototype"_a, "classes"_a, "digests"_a = nb::none(), "seen"_a = nb::none(), "place"_a = nb::none())
      .def("take_all", &BatchSummarizer::take_all, "op"_a.none(), "io"_a, "lives"_a, "entries"_a, "other"_a);
  nb::class_<Appender>(m, "AppendFile")
      .def(nb::init<int, int, int64_t>(), "descriptor"_a, "threads"_a = 2, "capacity"_a = int64_t{1} << 30)
      .def("append", &Appender::append, "header"_a, "elements"_a, "byte_count"_a)
      .def("push", &Appender::push)
      .def("flush", &Appender::flush)
      .def("stop", &Appender::stop)
      .def_prop_ro("error", &Appender::error)
      .def_prop_ro("bytes_appended", &Appender::bytes_appended)
      .def_prop_ro("bytes_written", &Appender::bytes_written)
      .def_prop_ro("seconds_waited", &Appender::seconds_waited);
  m.def("xxh3_low_pointer", &xxh3_low, "pointer"_a, "byte_count"_a);
  m.def("copy_strided_pointer", &copy_strided, "source"_a, "destination"_a, "item"_a, "shape"_a, "source_strides"_a,
        "destination_strides"_a);
  m.def("widen_codes", &widen_codes, "codes"_a, "count"_a, "table"_a, "out"_a);
  m.def("pair_totals", &pair_totals, "first"_a, "first_code"_a, "first_strides"_a, "second"_a, "second_code"_a,
        "second_strides"_a, "shape"_a, "atol"_a, "rtol"_a, "with_argmax"_a);
  m.def("instruction_set", [] { return std::string(opdump::active_instruction_set().name); });
  m.def("instruction_sets", &instruction_set_names);
  m.def("use_instruction_set", &use_instruction_set, "name"_a);
  m.def("threads", &opdump::threads);
  m.def("set_threads", &opdump::set_threads, "count"_a);
}
