#include "seen.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace opdump {

namespace {

constexpr int64_t kPage = 4096;

// The finaliser of splitmix64: every bit of the result depends on every bit of `value`.
uint64_t mixed(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

uint64_t word_at(const char* memory) {
  uint64_t word;
  std::memcpy(&word, memory, sizeof word);
  return word;
}

}  // namespace

const Sighting* Seen::find(uint64_t storage, const Sighting& now) const {
  const auto found = by_storage_.find(storage);
  if (found == by_storage_.end()) return nullptr;
  for (const Sighting& each : found->second) {
    if (each.geometry == now.geometry) {
      return each.version == now.version && each.fingerprint == now.fingerprint ? &each : nullptr;
    }
  }
  return nullptr;
}

void Seen::add(uint64_t storage, Sighting sighting, uint64_t epoch) {
  if (epoch != epoch_) return;
  std::vector<Sighting>& views = by_storage_[storage];
  for (Sighting& each : views) {
    if (each.geometry == sighting.geometry) {
      each = std::move(sighting);
      return;
    }
  }
  views.push_back(std::move(sighting));
}

void Seen::forget(uint64_t storage) {
  ++epoch_;
  by_storage_.erase(storage);
}

void Seen::clear() {
  ++epoch_;
  by_storage_.clear();
}

uint64_t fingerprint_of(const void* memory, int64_t bytes) {
  const auto* begin = static_cast<const char*>(memory);
  const int64_t last = bytes - static_cast<int64_t>(sizeof(uint64_t));
  const int64_t samples = std::clamp(bytes / kPage, kFewestSamples, kMostSamples);
  const int64_t stride = std::max<int64_t>(last / samples, 1);
  uint64_t found = mixed(word_at(begin)) ^ mixed(word_at(begin + last) + 1);
  uint64_t scatter = 0;
  for (int64_t i = 0; i < samples; ++i) {
    scatter = scatter * 6364136223846793005u + 1442695040888963407u;
    const int64_t place = std::min(i * stride + static_cast<int64_t>((scatter >> 33) % stride), last);
    found = found * 0x9e3779b97f4a7c15u + mixed(word_at(begin + place) ^ static_cast<uint64_t>(i));
  }
  return found;
}

}  // namespace opdump
