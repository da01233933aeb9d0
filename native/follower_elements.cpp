// The elements of followed operators, from the tensors to whoever files them.
#include "digest_batch.h"
#include "follower.h"
#include "python_objects.h"

namespace opdump {
namespace {

// Smaller tensors are copied, and filed with those of other operators; larger ones are filed where they lie.
constexpr int64_t kLentBytes = int64_t{1} << 16;
// So many bytes of copies are filed without waiting for more.
constexpr size_t kMostCopied = size_t{1} << 20;

}  // namespace

void Follower::keep(const View& view) {
  const int64_t item = kItemSize[view.code];
  int64_t strides[kMaxDimensions];
  for (int d = 0; d < view.rank; ++d) strides[d] = view.strides[d] * item;
  const StridedElements tensor{view.elements, item, view.rank, view.shape, strides, view.count};
  const uint8_t* dense = dense_bytes(tensor);
  if (dense != nullptr && view.bytes >= kLentBytes) {
    new_kept_.push_back({dense, 0});
    return;
  }
  const size_t begin = (copied_.size() + 7) / 8 * 8;  // elements have at most 8 bytes
  copied_.resize(begin + view.bytes);
  copy_dense(tensor, dense, copied_.data() + begin);
  new_kept_.push_back({nullptr, static_cast<int64_t>(begin)});
}

bool Follower::must_file() const { return has_lent_ || copied_.size() >= kMostCopied; }

nb::tuple Follower::take_elements() {
  copied_.swap(filed_);
  copied_.clear();
  if (copied_.capacity() > 4 * kMostCopied) copied_.shrink_to_fit();
  nb::list addresses, timestamps;
  for (const Kept& each : kept_) {
    const uint8_t* at = each.lent != nullptr ? each.lent : each.copied < 0 ? nullptr : filed_.data() + each.copied;
    addresses.append(reinterpret_cast<uintptr_t>(at));
  }
  for (; told_timestamps_ < timestamps_.size(); ++told_timestamps_) timestamps.append(timestamps_[told_timestamps_]);
  kept_.clear();
  has_lent_ = false;
  return nb::make_tuple(first_event_, step_ ? step_ : nb::none(), timestamps, addresses);
}

}  // namespace opdump
