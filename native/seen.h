// Tensors that were read, by memory location, so that a tensor that was not written since is not read again.
//
// Writes that are not reported are detected by the framework's version counter and a fingerprint of the memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace opdump {

// A view of memory. `dimensions` contains the sizes, then the strides.
struct Geometry {
  const void* elements = nullptr;
  int dtype = 0;
  std::vector<int64_t> dimensions;

  bool operator==(const Geometry& other) const {
    return elements == other.elements && dtype == other.dtype && dimensions == other.dimensions;
  }
};

struct Sighting {
  Geometry geometry;
  int64_t version = 0;
  uint64_t fingerprint = 0;
  size_t row = 0;  // of the summary
};

class Seen {
 public:
  // Smaller views are not kept here.
  explicit Seen(int64_t least_bytes) : least_bytes_(least_bytes) {}

  int64_t least_bytes() const { return least_bytes_; }
  // The sighting of the same view at the same version with the same fingerprint; null without one.
  const Sighting* find(uint64_t storage, const Sighting& now) const;
  // Replaces the sighting of the view. Does nothing if something was forgotten since `epoch`.
  void add(uint64_t storage, Sighting sighting, uint64_t epoch);
  // To be called after a write to this storage; `clear` after a write to an unknown one.
  void forget(uint64_t storage);
  void clear();

  uint64_t epoch() const { return epoch_; }
  size_t size() const { return by_storage_.size(); }

 private:
  int64_t least_bytes_;
  std::unordered_map<uint64_t, std::vector<Sighting>> by_storage_;
  uint64_t epoch_ = 0;
};

// Hashes a sample of `bytes` >= 8 bytes of memory: the first and last 8, and 8 at a scattered place in each 4 KiB page;
// at least kFewestSamples for small memory, at most kMostSamples for large memory.
uint64_t fingerprint_of(const void* memory, int64_t bytes);
constexpr int64_t kFewestSamples = 64;
constexpr int64_t kMostSamples = 1024;

}  // namespace opdump
