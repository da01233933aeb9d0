// Tables whose text repeats but for numbers: a template for Python's `%`, filled from columns in one call.
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <vector>

namespace opdump {

namespace nb = nanobind;

// What it prints is what `template % values` gives, encoded, to the last byte: src/opdump/kernels/table_text.py.
class TableText {
 public:
  explicit TableText(nb::str text);

  // Row by row a value of each column: arrays of doubles, or lists of anything.
  nb::bytes fill(const nb::list& columns);

 private:
  struct Place {
    size_t end;  // of the literal text before it, which begins where that of the place before ends
    char conversion;
  };

  std::string literals_;  // and bytes behind them that may be read
  size_t size_ = 0;       // without these
  std::vector<Place> places_;
};

}  // namespace opdump
