// Passes the elements of followed operators from the tensors to the writer.
#include <cstring>
#include <exception>
#include <utility>

#include "digest_batch.h"
#include "follower.h"
#include "python_objects.h"

namespace opdump {
namespace {

// Smaller tensors are copied and filed together with those of other operators; larger ones are filed from their memory.
constexpr int64_t kLentBytes = int64_t{1} << 16;
// Copies are filed once they have this many bytes.
constexpr size_t kMostCopied = size_t{1} << 20;

}  // namespace

void Follower::keep(const View& view) {
  const int64_t item = kItemSize[view.code];
  int64_t strides[kMaxDimensions];
  for (int d = 0; d < view.rank; ++d) strides[d] = view.strides[d] * item;
  const StridedElements tensor{view.elements, item, view.rank, view.shape, strides, view.count};
  const uint8_t* dense = dense_bytes(tensor);
  if (dense != nullptr && view.bytes >= kLentBytes) {
    new_kept_.push_back({dense, 0, view.bytes});
    return;
  }
  const size_t begin = (copied_.size() + 7) / 8 * 8;  // elements have at most 8 bytes
  copied_.resize(begin + view.bytes);
  copy_dense(tensor, dense, copied_.data() + begin);
  new_kept_.push_back({nullptr, static_cast<int64_t>(begin), view.bytes});
}

bool Follower::must_file() const { return has_lent_ || copied_.size() >= kMostCopied; }

void Follower::file() {
  try {
    called(file_);
  } catch (nb::python_error&) {
    for (Kept& each : kept_) {
      if (each.lent == nullptr) continue;
      each.copied = static_cast<int64_t>((copied_.size() + 7) / 8 * 8);
      copied_.resize(each.copied + each.bytes);
      std::memcpy(copied_.data() + each.copied, each.lent, each.bytes);
      each.lent = nullptr;
    }
    has_lent_ = false;
    throw;
  }
}

void Follower::file_kept(const nb::object& filed) {
  copied_.swap(filed_);
  copied_.clear();
  if (copied_.capacity() > 4 * kMostCopied) copied_.shrink_to_fit();
  const std::vector<Kept> kept = std::move(kept_);
  kept_.clear();
  has_lent_ = false;
  const nb::object step = step_ ? step_ : nb::none();
  std::exception_ptr stopped;
  bool goes_on = true;
  for (const Kept& each : kept) {
    const uint8_t* at = each.lent != nullptr ? each.lent : each.copied < 0 ? nullptr : filed_.data() + each.copied;
    nb::object file = nb::none();
    if (at != nullptr && goes_on) {
      try {
        file = filed(nb::len(files_), reinterpret_cast<uintptr_t>(at), first_event_, step);
      } catch (nb::python_error& error) {
        if (stopped == nullptr) stopped = std::current_exception();
        goes_on = !error.matches(PyExc_Exception);
      }
    }
    files_.append(file);
  }
  if (stopped != nullptr) std::rethrow_exception(stopped);
}

}  // namespace opdump
