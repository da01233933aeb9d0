// Digests of many tensors: the Python class.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "addressed.h"
#include "digest_batch.h"

namespace opdump {

// A thread that holds the mutex never waits for the GIL, so other threads may wait for the mutex while holding the GIL.
class Digests {
 public:
  Digests(const std::vector<std::string>& names, int64_t capacity, bool with_instructions)
      : batch_(names, capacity, with_instructions) {
    for (const std::string& name : names) names_.push_back(nb::str(name.c_str()));
  }

  // `steps` in elements; `row` of the tensor's summary, -1 without one.
  size_t add(const void* elements, int64_t item, int dimensions, const int64_t* sizes, const int64_t* steps,
             int64_t count, int64_t row) {
    int64_t strides[kMaxDimensions];
    for (int d = 0; d < dimensions; ++d) strides[d] = steps[d] * item;
    const auto take = [&] {
      const std::lock_guard<std::mutex> hold(mutex_);
      const size_t number = batch_.add({elements, item, dimensions, sizes, strides, count});
      if (row >= 0) rows_.emplace_back(row, number);
      note();
      return number;
    };
    if (count * item < kReleaseBytes && !full_.load(std::memory_order_relaxed)) return take();
    const nb::gil_scoped_release released;
    return take();
  }

  size_t add_pointer(uintptr_t pointer, int64_t bytes, int64_t item, int64_t row) {
    require_adjacent(pointer, bytes);
    if (item < 1 || bytes % item != 0) {
      throw nb::value_error(
          (std::to_string(bytes) + " bytes cannot be divided into elements of " + std::to_string(item) + " bytes")
              .c_str());
    }
    const int64_t count = bytes / item, one = 1;
    return add(reinterpret_cast<const void*>(pointer), item, 1, &count, &one, count, row);
  }

  nb::dict digests(size_t number) {
    std::vector<std::string> found;
    {
      const nb::gil_scoped_release released;
      const std::lock_guard<std::mutex> hold(mutex_);
      if (number >= batch_.size()) {
        throw nb::index_error(
            ("found tensor " + std::to_string(number) + "; the batch has " + std::to_string(batch_.size()) + " tensors")
                .c_str());
      }
      found = batch_.digests(number);
      note();
    }
    return by_name(found);
  }

  // The digests of all tensors with a summary, by its row.
  nb::dict by_row() {
    std::vector<std::pair<int64_t, std::vector<std::string>>> found;
    {
      const nb::gil_scoped_release released;
      const std::lock_guard<std::mutex> hold(mutex_);
      for (const auto& [row, number] : rows_) found.emplace_back(row, batch_.digests(number));
      note();
    }
    nb::dict rows;
    for (const auto& [row, digests] : found) rows[nb::int_(row)] = by_name(digests);
    return rows;
  }

  size_t size() const { return size_.load(std::memory_order_relaxed); }

  void clear() {
    const std::lock_guard<std::mutex> hold(mutex_);
    batch_.clear();
    rows_.clear();
    note();
  }

 private:
  nb::dict by_name(const std::vector<std::string>& found) const {
    nb::dict named;
    for (size_t i = 0; i < found.size(); ++i) named[names_[i]] = found[i];
    return named;
  }

  void note() {
    full_.store(batch_.is_full(), std::memory_order_relaxed);
    size_.store(batch_.size(), std::memory_order_relaxed);
  }

  std::mutex mutex_;
  std::vector<nb::str> names_;
  DigestBatch batch_;
  std::vector<std::pair<int64_t, size_t>> rows_;  // with the numbers of the tensors
  // Read without the mutex.
  std::atomic<bool> full_{false};
  std::atomic<size_t> size_{0};
};

}  // namespace opdump
