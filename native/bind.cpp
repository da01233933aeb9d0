// Binds the native kernels to Python. Pointers are passed as integers, so that no array or tensor is parsed.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "addressed.h"
#include "append_file.h"
#include "batch_summarizer.h"
#include "compare.h"
#include "digests.h"
#include "follower.h"
#include "pool.h"
#include "reorder.h"
#include "seen.h"
#include "summarise.h"
#include "summary_table.h"
#include "table_text.h"
#include "xxh3.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using opdump::BatchSummarizer;
using opdump::count_of;
using opdump::Digests;
using opdump::dtype_of;
using opdump::kReleaseBytes;
using opdump::require_elements;
using opdump::Summary;
using opdump::summary_of;
using opdump::summary_of_strided;
using opdump::SummaryTable;

using Rows = nb::ndarray<double, nb::shape<-1, opdump::kFields>, nb::c_contig, nb::device::cpu>;

void write_row(const Rows& rows, int64_t row, const Summary& summary) {
  if (row < 0 || row >= static_cast<int64_t>(rows.shape(0))) {
    throw nb::index_error(
        ("found row " + std::to_string(row) + "; the table has " + std::to_string(rows.shape(0)) + " rows").c_str());
  }
  std::memcpy(rows.data() + row * opdump::kFields, &summary, sizeof summary);
}

// Checks that addresses of elements and distances between them fit into an int64.
void require_extent(int64_t item, const std::vector<int64_t>& shape, const std::vector<int64_t>& strides) {
  int64_t bytes = item;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] < 0) throw nb::value_error(("found a negative dimension: " + std::to_string(shape[d])).c_str());
    int64_t reach = 0;
    if (shape[d] > 0 && (__builtin_mul_overflow(shape[d] - 1, strides[d], &reach) || reach == INT64_MIN ||
                         __builtin_add_overflow(bytes, reach < 0 ? -reach : reach, &bytes))) {
      throw nb::value_error("the elements extend beyond the address space");
    }
  }
}

void copy_strided(uintptr_t source, uintptr_t destination, int64_t item, const std::vector<int64_t>& shape,
                  const std::vector<int64_t>& source_strides, const std::vector<int64_t>& destination_strides) {
  if (item != 1 && item != 2 && item != 4 && item != 8 && item != 16) {
    throw nb::value_error(("found elements of " + std::to_string(item) + " bytes, expected 1, 2, 4, 8 or 16").c_str());
  }
  const size_t dimensions = shape.size();
  if (source_strides.size() != dimensions || destination_strides.size() != dimensions) {
    throw nb::value_error("the shape and the strides differ in their number of dimensions");
  }
  if (dimensions > opdump::kMaxDimensions) {
    throw nb::value_error(("found an array with " + std::to_string(dimensions) + " dimensions; at most " +
                           std::to_string(opdump::kMaxDimensions) + " can be copied")
                              .c_str());
  }
  require_extent(item, shape, source_strides);
  require_extent(item, shape, destination_strides);
  int64_t bytes = item;
  for (int64_t size : shape) {
    if (__builtin_mul_overflow(bytes, size, &bytes))
      throw nb::value_error("the elements extend beyond the address space");
  }
  if (bytes == 0) return;
  require_elements(source, 1);
  require_elements(destination, 1);
  const void* from = reinterpret_cast<const void*>(source);
  void* to = reinterpret_cast<void*>(destination);
  const auto copy = [&] {
    opdump::reorder(from, to, item, static_cast<int>(dimensions), shape.data(), source_strides.data(),
                    destination_strides.data());
  };
  if (bytes < kReleaseBytes) return copy();
  const nb::gil_scoped_release released;
  copy();
}

void widen_codes(uintptr_t codes, int64_t count, uintptr_t table, uintptr_t out) {
  require_elements(codes, count);
  require_elements(out, count);
  require_elements(table, 256);
  if (count == 0) return;
  const auto* bytes = reinterpret_cast<const uint8_t*>(codes);
  const auto* values = reinterpret_cast<const float*>(table);
  auto* floats = reinterpret_cast<float*>(out);
  if (count < kReleaseBytes) return opdump::widen_codes(bytes, count, values, floats);
  const nb::gil_scoped_release released;
  opdump::widen_codes(bytes, count, values, floats);
}

using PairNumbers = std::tuple<std::vector<double>, std::vector<double>, std::vector<int64_t>, std::vector<int64_t>,
                               std::vector<std::tuple<int, int64_t, double>>>;

void require_dimensions(const std::vector<int64_t>& shape, const std::vector<int64_t>& strides) {
  if (strides.size() != shape.size()) {
    throw nb::value_error(("the shape has " + std::to_string(shape.size()) + " dimensions, the strides have " +
                           std::to_string(strides.size()))
                              .c_str());
  }
  if (shape.size() > opdump::kMaxDimensions) {
    throw nb::value_error(("found a tensor with " + std::to_string(shape.size()) + " dimensions; at most " +
                           std::to_string(opdump::kMaxDimensions) + " can be compared")
                              .c_str());
  }
}

PairNumbers pair_totals(uintptr_t first, int first_code, const std::vector<int64_t>& first_strides, uintptr_t second,
                        int second_code, const std::vector<int64_t>& second_strides, const std::vector<int64_t>& shape,
                        double atol, double rtol, bool with_argmax) {
  require_dimensions(shape, first_strides);
  require_dimensions(shape, second_strides);
  const opdump::PairSide a{reinterpret_cast<const void*>(first), dtype_of(first_code), first_strides.data()};
  const opdump::PairSide b{reinterpret_cast<const void*>(second), dtype_of(second_code), second_strides.data()};
  for (int64_t size : shape) require_elements(1, size);
  const int64_t count = count_of(shape.size(), shape.data(), first_strides.data(), opdump::kItemSize[first_code]);
  count_of(shape.size(), shape.data(), second_strides.data(), opdump::kItemSize[second_code]);
  require_elements(first, count);
  require_elements(second, count);
  opdump::PairTotals found;
  const auto compare = [&] {
    found = opdump::compare(a, b, static_cast<int>(shape.size()), shape.data(), {atol, rtol}, with_argmax);
  };
  if (count < kReleaseBytes / 16) {
    compare();
  } else {
    const nb::gil_scoped_release released;
    compare();
  }
  std::vector<std::tuple<int, int64_t, double>> worst;
  for (const opdump::WorstIndex& each : found.worst) worst.emplace_back(each.axis, each.index, each.sum);
  return {{found.sum, found.sum + opdump::kPairSums},
          {found.maximum, found.maximum + opdump::kPairMaxima},
          {found.count, found.count + opdump::kPairCounts},
          found.distances,
          worst};
}

uint64_t xxh3_low(uintptr_t pointer, int64_t count) {
  require_elements(pointer, count);
  const auto* bytes = reinterpret_cast<const uint8_t*>(pointer);
  if (count < kReleaseBytes) return opdump::xxh3_128(bytes, count).low;
  const nb::gil_scoped_release released;
  return opdump::xxh3_128(bytes, count).low;
}

// An AppendFile for Python: waiting releases the GIL and checks for signals.
class Appender {
 public:
  Appender(int descriptor, int threads, int64_t capacity)
      : file_(new opdump::AppendFile(descriptor, threads, capacity)), process_(getpid()) {}
  ~Appender() {
    // A forked process has no threads to join, and one of them may have held a lock that is now never released.
    if (process_ != getpid()) return;
    const nb::gil_scoped_release released;
    delete file_;
  }
  Appender(const Appender&) = delete;
  Appender& operator=(const Appender&) = delete;

  int64_t append(const nb::bytes& header, uintptr_t elements, int64_t count) {
    require_elements(elements, count);
    const auto* begin = reinterpret_cast<const uint8_t*>(header.c_str());
    const auto bytes = static_cast<int64_t>(header.size());
    if (bytes < opdump::kRecordAlignment || bytes % opdump::kRecordAlignment != 0) {
      throw nb::value_error("the size of a record's header must be a multiple of 64 bytes");
    }
    while (true) {
      int64_t offset = 0;
      switch (append_once(begin, bytes, reinterpret_cast<const uint8_t*>(elements), count, &offset)) {
        case opdump::AppendFile::Outcome::kDone: return offset;
        case opdump::AppendFile::Outcome::kStopped: return -1;
        case opdump::AppendFile::Outcome::kBusy: {
          const nb::gil_scoped_release released;
          std::this_thread::sleep_for(kCopying);  // another thread copies a tensor
          break;
        }
        case opdump::AppendFile::Outcome::kNoRoom: {
          const nb::gil_scoped_release released;
          file_->wait_for_room(kSlice);
        }
      }
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
    }
  }
  void push() {
    const nb::gil_scoped_release released;
    file_->push();
  }
  void flush() {
    push();
    while (true) {
      bool is_empty = false;
      {
        const nb::gil_scoped_release released;
        is_empty = file_->wait_until_empty(kSlice);
      }
      if (is_empty) return;
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
    }
  }
  void stop() {
    const nb::gil_scoped_release released;
    file_->stop();
  }
  int error() const { return file_->error(); }
  int64_t bytes_appended() const { return file_->bytes_appended(); }
  int64_t bytes_written() const { return file_->bytes_written(); }
  double seconds_waited() const { return file_->seconds_waited(); }

 private:
  static constexpr std::chrono::milliseconds kSlice{100};
  static constexpr std::chrono::microseconds kCopying{100};

  opdump::AppendFile::Outcome append_once(const uint8_t* header, int64_t header_bytes, const uint8_t* elements,
                                          int64_t count, int64_t* offset) {
    if (count < kReleaseBytes) return file_->append(header, header_bytes, elements, count, offset);
    const nb::gil_scoped_release released;
    return file_->append(header, header_bytes, elements, count, offset);
  }

  opdump::AppendFile* const file_;
  const pid_t process_;
};

std::vector<std::string> instruction_set_names() {
  const opdump::InstructionSet* sets[opdump::kMaxInstructionSets];
  const int found = opdump::instruction_sets(sets);
  std::vector<std::string> names;
  for (int i = 0; i < found; ++i) names.emplace_back(sets[i]->name);
  return names;
}

bool use_instruction_set(const std::string& name) {
  const opdump::InstructionSet* sets[opdump::kMaxInstructionSets];
  const int found = opdump::instruction_sets(sets);
  for (int i = 0; i < found; ++i) {
    if (name == sets[i]->name) {
      opdump::use_instruction_set(*sets[i]);
      return true;
    }
  }
  return false;
}

}  // namespace

NB_MODULE(_native, m) {
  nb::set_leak_warnings(false);  // a table that a module still holds at exit is not an error
  m.def(
      "summarise_pointer",
      [](uintptr_t pointer, int code, int64_t count, const Rows& rows, int64_t row) {
        write_row(rows, row, summary_of(pointer, code, count));
      },
      "pointer"_a, "code"_a, "count"_a, "rows"_a, "row"_a);
  m.def(
      "summarise_strided_pointer",
      [](uintptr_t pointer, int code, const nb::tuple& shape, const nb::tuple& strides, const Rows& rows, int64_t row) {
        write_row(rows, row, summary_of_strided(pointer, code, shape, strides));
      },
      "pointer"_a, "code"_a, "shape"_a, "strides_in_elements"_a, "rows"_a, "row"_a);
  nb::class_<SummaryTable>(m, "SummaryTable")
      .def(nb::init<size_t>(), "capacity"_a = 256)
      .def("add", &SummaryTable::add, "pointer"_a, "code"_a, "count"_a)
      .def("add_strided", &SummaryTable::add_strided, "pointer"_a, "code"_a, "shape"_a, "strides_in_elements"_a)
      .def("add_all", &SummaryTable::add_all, "pointers"_a, "codes"_a, "counts"_a)
      .def("rows", &SummaryTable::rows)
      .def("clear", &SummaryTable::clear)
      .def("__len__", &SummaryTable::size);
  nb::class_<Digests>(m, "DigestBatch")
      .def(nb::init<const std::vector<std::string>&, int64_t, bool>(), "names"_a, "capacity"_a = int64_t{1} << 28,
           "with_instructions"_a = true)
      .def("add", &Digests::add_pointer, "pointer"_a, "byte_count"_a, "item"_a = 1, "row"_a = -1)
      .def("digests", &Digests::digests, "number"_a)
      .def("by_row", &Digests::by_row)
      .def("clear", &Digests::clear)
      .def("__len__", &Digests::size);
  nb::class_<opdump::Seen>(m, "SeenTensors")
      .def(nb::init<int64_t>(), "least_bytes"_a)
      .def("forget", &opdump::Seen::forget, "storage"_a)
      .def("clear", &opdump::Seen::clear)
      .def("__len__", &opdump::Seen::size);
  nb::class_<BatchSummarizer>(m, "BatchSummarizer")
      .def(nb::init<nb::handle, nb::handle, const nb::tuple&, nb::handle, nb::handle, nb::handle>(), "table"_a,
           "prototype"_a, "classes"_a, "digests"_a = nb::none(), "seen"_a = nb::none(), "place"_a = nb::none())
      .def("take_all", &BatchSummarizer::take_all, "op"_a.none(), "io"_a, "lives"_a, "entries"_a, "other"_a);
  nb::class_<opdump::Follower>(m, "Follower")
      .def(nb::init<nb::handle, const nb::tuple&, nb::handle, nb::handle, nb::handle, bool, bool, bool, nb::handle>(),
           "table"_a, "classes"_a, "digests"_a.none(), "seen"_a.none(), "place"_a.none(), "files_inputs"_a,
           "files_outputs"_a, "files_elements"_a, "host"_a)
      .def("start", &opdump::Follower::start, "lesson"_a, "position"_a, "nodes"_a, "order"_a, "timestamp"_a)
      .def("resume", &opdump::Follower::resume, "place"_a, "nodes"_a, "order"_a, "timestamp"_a)
      .def("suspend", &opdump::Follower::suspend)
      .def("take", &opdump::Follower::take)
      .def("file_kept", &opdump::Follower::file_kept, "filed"_a)
      .def("timestamp", &opdump::Follower::timestamp, "place"_a)
      .def("follow", &opdump::Follower::follow, "func"_a, "types"_a, "args"_a, "kwargs"_a.none())
      .def("follow_value", &opdump::Follower::follow_value, "name"_a, "graph_id"_a, "tensor"_a)
      .def("forget", &opdump::Follower::forget, "lesson"_a)
      .def("look", &opdump::Follower::look, "kind"_a, "func"_a, "schema"_a, "args"_a, "kwargs"_a.none(), "order"_a,
           "constants"_a)
      .def("close", &opdump::Follower::close)
      .def("learn", &opdump::Follower::learn, "args"_a, "kwargs"_a.none(), "result"_a.none(), "link"_a.none(),
           "sources"_a)
      .def("learn_value", &opdump::Follower::learn_value, "name"_a, "graph_id"_a, "tensor"_a, "order"_a)
      .def("learn_other", &opdump::Follower::learn_other)
      .def("refuse", &opdump::Follower::refuse)
      .def("call_number", &opdump::Follower::call_number, "call"_a)
      .def_prop_ro("calls", &opdump::Follower::calls)
      .def_prop_ro("place", &opdump::Follower::place)
      .def("__len__", &opdump::Follower::size)
      .def_prop_ro("is_following", &opdump::Follower::is_following)
      .def_prop_ro("is_in_operator", &opdump::Follower::is_in_operator)
      .def_prop_ro("missed_place", &opdump::Follower::missed_place)
      .def_prop_ro("difference", &opdump::Follower::difference)
      .def_prop_ro("missed", &opdump::Follower::missed);
  nb::class_<opdump::TableText>(m, "TableText")
      .def(nb::init<nb::str>(), "template"_a)
      .def("fill", &opdump::TableText::fill, "columns"_a);
  nb::class_<Appender>(m, "AppendFile")
      .def(nb::init<int, int, int64_t>(), "descriptor"_a, "threads"_a = 2, "capacity"_a = int64_t{1} << 30)
      .def("append", &Appender::append, "header"_a, "elements"_a, "byte_count"_a)
      .def("push", &Appender::push)
      .def("flush", &Appender::flush)
      .def("stop", &Appender::stop)
      .def_prop_ro("error", &Appender::error)
      .def_prop_ro("bytes_appended", &Appender::bytes_appended)
      .def_prop_ro("bytes_written", &Appender::bytes_written)
      .def_prop_ro("seconds_waited", &Appender::seconds_waited);
  m.def("xxh3_low_pointer", &xxh3_low, "pointer"_a, "byte_count"_a);
  m.def("copy_strided_pointer", &copy_strided, "source"_a, "destination"_a, "item"_a, "shape"_a, "source_strides"_a,
        "destination_strides"_a);
  m.def("widen_codes", &widen_codes, "codes"_a, "count"_a, "table"_a, "out"_a);
  m.def("pair_totals", &pair_totals, "first"_a, "first_code"_a, "first_strides"_a, "second"_a, "second_code"_a,
        "second_strides"_a, "shape"_a, "atol"_a, "rtol"_a, "with_argmax"_a);
  m.def("instruction_set", [] { return std::string(opdump::active_instruction_set().name); });
  m.def("instruction_sets", &instruction_set_names);
  m.def("use_instruction_set", &use_instruction_set, "name"_a);
  m.def("threads", &opdump::threads);
  m.def("set_threads", &opdump::set_threads, "count"_a);
}
