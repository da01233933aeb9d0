// Tensors that were read, by where they lie, so that one that nothing has written since is not read again.
//
// Of a write that nobody tells of, the version that a framework counts and a fingerprint of the memory bear witness.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace opdump {

// A view of memory: `dimensions` holds the sizes, then the strides.
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
  // Views of fewer bytes are not looked for.
  explicit Seen(int64_t least_bytes) : least_bytes_(least_bytes) {}

  int64_t least_bytes() const { return least_bytes_; }
  // The sighting of the same view at the same version with the same fingerprint; null without one.
  const Sighting* find(uint64_t storage, const Sighting& now) const;
  // Replaces what is known of the view. Does nothing where something was forgotten since `epoch`.
  void add(uint64_t storage, Sighting sighting, uint64_t epoch);
  // After a write into this storage, or into any.
  void forget(uint64_t storage);
  void clear();

  uint64_t epoch() const { return epoch_; }
  size_t size() const { return by_storage_.size(); }

 private:
  int64_t least_bytes_;
  std::unordered_map<uint64_t, std::vector<Sighting>> by_storage_;
  uint64_t epoch_ = 0;
};

// Mixes a sample of `bytes` >= 8 of memory: the first and the last 8, and 8 at a scattered place of each page of 4 KiB;
// of small memory at least kFewestSamples, of large memory at most kMostSamples.
uint64_t fingerprint_of(const void* memory, int64_t bytes);
constexpr int64_t kFewestSamples = 64;
constexpr int64_t kMostSamples = 1024;

}  // namespace opdump
