// Neumaier's summation. Do not include it in files that are compiled for several instruction sets (see lanes.h).
#pragma once

#include <cmath>

#include "summarise.h"

namespace opdump {

inline void accumulate(CompensatedSum& total, double x) {
  const double sum = total.sum + x;
  if (std::isfinite(sum)) {
    total.error += std::fabs(total.sum) >= std::fabs(x) ? (total.sum - sum) + x : (x - sum) + total.sum;
  }
  total.sum = sum;
}

inline double value(const CompensatedSum& total) {
  return std::isfinite(total.sum) ? total.sum + total.error : total.sum;
}

}  // namespace opdump
