// Digests of tensors, named as statistics: `md5`, `hash` (SHA-1 as MindSpore computes it) and `xxh3`.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "hash_batch.h"
#include "xxh3.h"

namespace opdump {

// The elements of a tensor in place, with any strides, in bytes. `dimensions` <= kMaxDimensions.
struct StridedElements {
  const void* elements;
  int64_t item;
  int dimensions;
  const int64_t* shape;
  const int64_t* strides;
  int64_t count;
};

// The address of the elements if they are adjacent in C order, else null.
const uint8_t* dense_bytes(const StridedElements& tensor);
// Copies the elements in C order; `dense` is the result of `dense_bytes`.
void copy_dense(const StridedElements& tensor, const uint8_t* dense, uint8_t* to);

// MindSpore hashes slices of this many elements, then the concatenated hexadecimal digests of the slices.
constexpr int64_t kSha1Slice = 20480;

class DigestBatch {
 public:
  // Throws std::invalid_argument for an unknown name. See HashBatch for the other arguments.
  DigestBatch(const std::vector<std::string>& names, int64_t capacity, bool with_instructions);

  // Takes the current elements; returns the number of the tensor.
  size_t add(const StridedElements& tensor);
  // Whether the next `add` hashes the tensors that were added before.
  bool is_full() const;
  // Hexadecimal digests, in the order of the names.
  std::vector<std::string> digests(size_t number);
  size_t size() const { return size_; }
  void clear();

 private:
  enum class Kind { md5, sha1, xxh3 };
  struct Slices {
    size_t first;
    size_t count;
  };
  void add_sha1(const StridedElements& tensor, const uint8_t* dense);
  std::string sha1(size_t number);

  std::vector<Kind> kinds_;
  std::unique_ptr<HashBatch> md5_;
  std::unique_ptr<HashBatch> sha1_;
  std::vector<Slices> slices_;  // of each tensor, in sha1_
  bool with_xxh3_ = false;
  std::vector<Xxh3> xxh3_;
  std::vector<uint8_t> gathered_;
  size_t size_ = 0;
};

}  // namespace opdump
