// Digests of many tensors, as Python sees them.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <mutex>
#include <string>
#include <vector>

#include "addressed.h"
#include "digest_batch.h"

namespace opdump {

// Whoever holds the mutex does not wait for the GIL, so others may wait for it with the GIL.
class Digests {
 public:
  Digests(const std::vector<std::string>& names, int64_t capacity, bool with_instructions)
      : names_(names), batch_(names, capacity, with_instructions) {}

  // `steps` in elements.
  size_t add(const void* elements, int64_t item, int dimensions, const int64_t* sizes, const int64_t* steps,
             int64_t count) {
    int64_t strides[kMaxDimensions];
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
  DigestBatch batch_;
  // What is asked for without the mutex.
  std::atomic<bool> full_{false};
  std::atomic<size_t> size_{0};
};

}  // namespace opdump
