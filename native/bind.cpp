// What Python sees of the native kernels. Pointers come as integers, so that no array or tensor is parsed on the way.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "pool.h"
#include "reorder.h"
#include "summarise.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using opdump::DType;
using opdump::Summary;

// Giving up the GIL and getting it back costs more than so many bytes take to read.
constexpr int64_t kReleaseBytes = 256 * 1024;

DType dtype_of(int code) {
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

Summary summary_of(uintptr_t pointer, int code, int64_t count) {
  const DType dtype = dtype_of(code);
  require_elements(pointer, count);
  const void* elements = reinterpret_cast<const void*>(pointer);
  if (count * opdump::kItemSize[code] < kReleaseBytes) return opdump::summarise(elements, dtype, count);
  const nb::gil_scoped_release released;
  return opdump::summarise(elements, dtype, count);
}

int64_t integer(nb::handle item) { return nb::cast<int64_t>(item); }

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
  int64_t count = 1;
  for (size_t d = 0; d < dimensions; ++d) {
    sizes[d] = integer(shape[d]);
    steps[d] = integer(strides[d]);
    require_elements(1, sizes[d]);
    count *= sizes[d];
  }
  require_elements(pointer, count);
  const void* elements = reinterpret_cast<const void*>(pointer);
  const int rank = static_cast<int>(dimensions);
  if (count * opdump::kItemSize[code] < kReleaseBytes) {
    return opdump::summarise_strided(elements, dtype, rank, sizes, steps);
  }
  const nb::gil_scoped_release released;
  return opdump::summarise_strided(elements, dtype, rank, sizes, steps);
}

// A tensor of a framework, asked through Python by the names that PyTorch gives things: no header of it is needed, and
// an attribute costs half of what it costs in a Python function. A RuntimeError is PyTorch's way to say that there is
// none.
class TensorObject {
 public:
  explicit TensorObject(nb::handle tensor) : tensor_(tensor.ptr()) {}

  // Null after a RuntimeError.
  nb::object attribute(PyObject* name) const { return checked(PyObject_GetAttr(tensor_, name)); }
  nb::object call(PyObject* name) const { return checked(PyObject_CallMethodNoArgs(tensor_, name)); }
  bool is_true(const nb::object& value) const { return value.ptr() == Py_True; }

 private:
  static nb::object checked(PyObject* result) {
    if (result != nullptr) return nb::steal(result);
    if (!PyErr_ExceptionMatches(PyExc_RuntimeError)) nb::raise_python_error();
    PyErr_Clear();
    return nb::object();
  }
  PyObject* tensor_;
};

// Never freed, as the strings of a module are.
PyObject* interned(const char* text) {
  PyObject* name = PyUnicode_InternFromString(text);
  if (name == nullptr) nb::raise_python_error();
  return name;
}

struct Names {
  PyObject* dtype = interned("dtype");
  PyObject* layout = interned("layout");
  PyObject* is_cpu = interned("is_cpu");
  PyObject* is_neg = interned("is_neg");
  PyObject* shape = interned("shape");
  PyObject* data_ptr = interned("data_ptr");
  PyObject* is_contiguous = interned("is_contiguous");
  PyObject* stride = interned("stride");
};

const Names& names() {
  static const Names names;
  return names;
}

nb::object plain_tuple(const nb::object& sizes) {
  if (!PyTuple_Check(sizes.ptr())) return nb::object();
  return nb::steal(PyTuple_GetSlice(sizes.ptr(), 0, PyTuple_GET_SIZE(sizes.ptr())));
}

// Rows that grow by themselves. A row is appended when its summary is complete, under the GIL: threads may share one.
class SummaryTable {
 public:
  explicit SummaryTable(size_t capacity) { rows_.reserve(capacity); }

  size_t add(uintptr_t pointer, int code, int64_t count) { return append(summary_of(pointer, code, count)); }
  size_t add_strided(uintptr_t pointer, int code, const nb::tuple& shape, const nb::tuple& strides) {
    return append(summary_of_strided(pointer, code, shape, strides));
  }
  nb::object add_tensor(nb::handle object, const nb::dict& kinds, nb::handle strided) {
    const Names& name = names();
    const TensorObject tensor(object);
    const nb::object dtype = tensor.attribute(name.dtype);
    if (!dtype) return nb::none();
    PyObject* kind = PyDict_GetItemWithError(kinds.ptr(), dtype.ptr());
    if (kind == nullptr) {
      if (PyErr_Occurred()) nb::raise_python_error();
      return nb::none();
    }
    if (tensor.attribute(name.layout).ptr() != strided.ptr() || !tensor.is_true(tensor.attribute(name.is_cpu)) ||
        tensor.call(name.is_neg).ptr() != Py_False) {
      return nb::none();
    }
    const nb::object sizes = tensor.attribute(name.shape);
    if (!sizes) return nb::none();
    const nb::object shape = plain_tuple(sizes);
    const nb::object address = tensor.call(name.data_ptr);
    if (!shape || !address) return nb::none();
    const auto [code, type, item] = nb::cast<std::tuple<int, nb::object, int64_t>>(nb::handle(kind));
    int64_t count = 1;
    for (nb::handle size : nb::borrow<nb::tuple>(shape)) count *= integer(size);
    if (count == 0) return nb::make_tuple(type, shape, 0, -1);
    const auto pointer = nb::cast<uintptr_t>(address);
    if (pointer == 0) return nb::none();
    size_t row = 0;
    if (tensor.is_true(tensor.call(name.is_contiguous))) {
      row = add(pointer, code, count);
    } else {
      const nb::object strides = tensor.call(name.stride);
      if (!strides) return nb::none();
      row = add_strided(pointer, code, nb::borrow<nb::tuple>(shape), nb::borrow<nb::tuple>(strides));
    }
    return nb::make_tuple(type, shape, count * item, row);
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

 private:
  size_t append(const Summary& row) {
    rows_.push_back(row);
    return rows_.size() - 1;
  }
  std::vector<Summary> rows_;
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
      .def("add_tensor", &SummaryTable::add_tensor, "tensor"_a, "kinds"_a, "strided"_a)
      .def("rows", &SummaryTable::rows)
      .def("clear", &SummaryTable::clear)
      .def("__len__", &SummaryTable::size);
  m.def("copy_strided_pointer", &copy_strided, "source"_a, "destination"_a, "item"_a, "shape"_a, "source_strides"_a,
        "destination_strides"_a);
  m.def("widen_codes", &widen_codes, "codes"_a, "count"_a, "table"_a, "out"_a);
  m.def("instruction_set", [] { return std::string(opdump::active_instruction_set().name); });
  m.def("instruction_sets", &instruction_set_names);
  m.def("use_instruction_set", &use_instruction_set, "name"_a);
  m.def("threads", &opdump::threads);
  m.def("set_threads", &opdump::set_threads, "count"_a);
}
