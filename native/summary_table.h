// Summaries of many tensors: the Python class.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstring>
#include <memory>
#include <vector>

#include "addressed.h"

namespace opdump {

using Integers = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// A growing table of rows. A row is appended under the GIL once its summary is complete, so threads may share a table.
class SummaryTable {
 public:
  explicit SummaryTable(size_t capacity) { rows_.reserve(capacity); }

  size_t add(uintptr_t pointer, int code, int64_t count) { return append(summary_of(pointer, code, count)); }
  size_t add_strided(uintptr_t pointer, int code, const nb::tuple& shape, const nb::tuple& strides) {
    return append(summary_of_strided(pointer, code, shape, strides));
  }

  // If one of the tensors cannot be read, nothing is appended.
  size_t add_all(const Integers& pointers, const Integers& codes, const Integers& counts) {
    const size_t count = pointers.shape(0);
    if (codes.shape(0) != count || counts.shape(0) != count) {
      throw nb::value_error("pointers, codes and counts must have the same length");
    }
    std::vector<Elements> tensors(count);
    for (size_t i = 0; i < count; ++i) {
      const auto pointer = static_cast<uintptr_t>(pointers.data()[i]);
      const int64_t code = codes.data()[i];
      tensors[i] = {reinterpret_cast<const void*>(pointer), dtype_of(code), counts.data()[i]};
      require_adjacent(pointer, counts.data()[i]);
    }
    std::vector<Summary> found(count);
    {
      const nb::gil_scoped_release released;
      summarise_all(tensors.data(), static_cast<int64_t>(count), found.data());
    }
    rows_.insert(rows_.end(), found.begin(), found.end());
    return rows_.size() - count;
  }

  size_t size() const { return rows_.size(); }
  void clear() { rows_.clear(); }

  nb::object rows() const {
    const size_t count = rows_.size();
    std::unique_ptr<double[]> copy(new double[count * kFields + 1]);
    if (count > 0) std::memcpy(copy.get(), rows_.data(), count * sizeof(Summary));
    nb::capsule owner(copy.get(), [](void* data) noexcept { delete[] static_cast<double*>(data); });
    double* data = copy.release();
    const size_t shape[2] = {count, kFields};
    return nb::cast(nb::ndarray<nb::numpy, double, nb::ndim<2>>(data, 2, shape, owner));
  }

  size_t append(const Summary& row) {
    rows_.push_back(row);
    return rows_.size() - 1;
  }

 private:
  std::vector<Summary> rows_;
};

}  // namespace opdump
