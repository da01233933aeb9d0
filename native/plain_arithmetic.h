// The floating-point mode of the kernels.
#pragma once

#if defined(OPDUMP_X86_KERNELS)
#include <immintrin.h>
#endif

namespace opdump {

#if defined(OPDUMP_X86_KERNELS)
// The caller may flush denormals (torch.set_flush_denormal), round differently or trap exceptions; statistics must not
// depend on that. Restores the caller's mode, without the flags that the kernels raised.
class PlainArithmetic {
 public:
  PlainArithmetic() : saved_(_mm_getcsr()) {
    if ((saved_ & kModes) != kDefault) _mm_setcsr(kDefault);
  }
  ~PlainArithmetic() {
    if ((saved_ & kModes) != kDefault) _mm_setcsr(saved_);
  }
  PlainArithmetic(const PlainArithmetic&) = delete;
  PlainArithmetic& operator=(const PlainArithmetic&) = delete;

 private:
  static constexpr unsigned kModes = 0xffc0;
  static constexpr unsigned kDefault = 0x1f80;
  unsigned saved_;
};
#else
struct PlainArithmetic {
  PlainArithmetic() {}
};
#endif

}  // namespace opdump
