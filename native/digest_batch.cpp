// Passes the bytes of a tensor to lanes shared with other tensors, or to a hash that runs alone.
#include "digest_batch.h"

#include <cstring>
#include <stdexcept>

#include "reorder.h"
#include "summarise.h"

namespace opdump {

const uint8_t* dense_bytes(const StridedElements& tensor) {
  int64_t stride = tensor.item;
  for (int d = tensor.dimensions - 1; d >= 0; --d) {
    if (tensor.strides[d] != stride && tensor.shape[d] != 1 && tensor.count > 0) return nullptr;
    stride *= tensor.shape[d];
  }
  return static_cast<const uint8_t*>(tensor.elements);
}

namespace {

void gather(const StridedElements& tensor, uint8_t* to) {
  int64_t dense[kMaxDimensions];
  int64_t stride = tensor.item;
  for (int d = tensor.dimensions - 1; d >= 0; --d) {
    dense[d] = stride;
    stride *= tensor.shape[d];
  }
  reorder(tensor.elements, to, tensor.item, tensor.dimensions, tensor.shape, tensor.strides, dense);
}

void copy(const StridedElements& tensor, const uint8_t* dense, int64_t first_byte, uint8_t* to) {
  if (dense == nullptr) return gather(tensor, to);
  const int64_t bytes = tensor.count * tensor.item - first_byte;
  if (bytes > 0) std::memcpy(to, dense + first_byte, bytes);
}

std::string hexadecimal(uint64_t number) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (int shift = 60; shift >= 0; shift -= 4) text += kDigits[number >> shift & 15];
  return text;
}

}  // namespace

void copy_dense(const StridedElements& tensor, const uint8_t* dense, uint8_t* to) { copy(tensor, dense, 0, to); }

DigestBatch::DigestBatch(const std::vector<std::string>& names, int64_t capacity, bool with_instructions) {
  for (const std::string& name : names) {
    if (name == "md5") {
      kinds_.push_back(Kind::md5);
      md5_ = std::make_unique<HashBatch>(kMd5, capacity, with_instructions);
    } else if (name == "hash") {
      kinds_.push_back(Kind::sha1);
      sha1_ = std::make_unique<HashBatch>(kSha1, capacity, with_instructions);
    } else if (name == "xxh3") {
      kinds_.push_back(Kind::xxh3);
      with_xxh3_ = true;
    } else {
      throw std::invalid_argument("found digest " + name + ", expected md5, hash or xxh3");
    }
  }
}

bool DigestBatch::is_full() const { return (md5_ && md5_->is_full()) || (sha1_ && sha1_->is_full()); }

size_t DigestBatch::add(const StridedElements& tensor) {
  const uint8_t* dense = dense_bytes(tensor);
  const int64_t bytes = tensor.count * tensor.item;
  if (md5_) {
    copy(tensor, dense, 0, md5_->space(bytes));
    md5_->added(bytes);
    if (md5_->is_full()) md5_->advance();
  }
  if (sha1_) add_sha1(tensor, dense);
  if (with_xxh3_) {
    if (dense == nullptr) {
      gathered_.resize(bytes);
      gather(tensor, gathered_.data());
    }
    xxh3_.push_back(xxh3_128(dense == nullptr ? gathered_.data() : dense, bytes));
  }
  return size_++;
}

// Groups of slices that fill the lanes are hashed in place; the rest waits for slices of other tensors.
void DigestBatch::add_sha1(const StridedElements& tensor, const uint8_t* dense) {
  const int64_t slice = kSha1Slice * tensor.item;
  const int64_t bytes = tensor.count * tensor.item;
  const int64_t together = sha1_->worth_together();
  const int64_t groups = dense == nullptr ? 0 : bytes / slice / together;
  const int64_t slices = tensor.count <= kSha1Slice ? 1 : (tensor.count + kSha1Slice - 1) / kSha1Slice;
  Slices found{0, static_cast<size_t>(slices)};
  if (groups > 0) {
    found.first = sha1_->hash_slices(dense, groups * together, slice);
  }
  const int64_t done = groups * together * slice;
  if (done < bytes || bytes == 0) {
    copy(tensor, dense, done, sha1_->space(bytes - done));
    const size_t first = sha1_->added(slice);
    if (groups == 0) found.first = first;
    if (sha1_->is_full()) sha1_->advance();
  }
  slices_.push_back(found);
}

std::string DigestBatch::sha1(size_t number) {
  const Slices& slices = slices_[number];
  if (slices.count == 1) return sha1_->digest(slices.first);
  std::string joined;
  for (size_t i = 0; i < slices.count; ++i) joined += sha1_->digest(slices.first + i);
  return sha1_->hash(joined);
}

std::vector<std::string> DigestBatch::digests(size_t number) {
  std::vector<std::string> found;
  for (const Kind kind : kinds_) {
    if (kind == Kind::md5) {
      found.push_back(md5_->digest(number));
    } else if (kind == Kind::sha1) {
      found.push_back(sha1(number));
    } else {
      found.push_back(hexadecimal(xxh3_[number].high) + hexadecimal(xxh3_[number].low));
    }
  }
  return found;
}

void DigestBatch::clear() {
  if (md5_) md5_->clear();
  if (sha1_) sha1_->clear();
  slices_.clear();
  xxh3_.clear();
  size_ = 0;
}

}  // namespace opdump
