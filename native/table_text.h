// Prints tables whose rows differ only in values: fills a template for Python's `%` from columns in one call.
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <vector>

namespace opdump {

namespace nb = nanobind;

// The output equals the encoded `template % values`, byte for byte, as in src/opdump/kernels/append_file.py.
class TableText {
 public:
  explicit TableText(nb::str text);

  // Fills one row per value of the columns: arrays of doubles, or lists of any objects.
  nb::bytes fill(const nb::list& columns);

 private:
  struct Place {
    size_t end;  // of the literal text before it, which begins at the `end` of the previous place
    char conversion;
  };

  std::string literals_;  // with readable bytes after them
  size_t size_ = 0;       // without those bytes
  std::vector<Place> places_;
};

}  // namespace opdump
