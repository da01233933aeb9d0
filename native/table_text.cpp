#include "table_text.h"

#include <nanobind/ndarray.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

#include "python_objects.h"

namespace opdump {

namespace {

// Printed numbers are shorter: "-1.23457e-05", or a 64-bit integer.
constexpr size_t kWidest = 32;
constexpr int kMostDigits = 20;  // of an integer
constexpr size_t kUsual = 12;
constexpr size_t kShort = 16;  // most texts between two numbers are a comma
constexpr int kDigits = 6;     // of %g
constexpr int kMostPower = 27;

constexpr std::array<uint64_t, kMostPower + 1> powers_of_five() {
  std::array<uint64_t, kMostPower + 1> powers{};
  uint64_t power = 1;
  for (uint64_t& each : powers) {
    each = power;
    power *= 5;  // the last product is not used
  }
  return powers;
}

constexpr std::array<uint64_t, kMostPower + 1> kPowersOfFive = powers_of_five();

__extension__ typedef unsigned __int128 Wide;

char* put_whole(uint64_t number, char* at) {
  if (number < 10) {
    *at = static_cast<char>('0' + number);
    return at + 1;
  }
  int count = 2;
  for (uint64_t power = 100; number >= power && count < kMostDigits; power *= 10) ++count;
  for (char* digit = at + count; digit != at; number /= 10) *--digit = static_cast<char>('0' + number % 10);
  return at + count;
}

char* put_whole(int64_t number, char* at) {
  if (number < 0) *at++ = '-';
  return put_whole(number < 0 ? 0 - static_cast<uint64_t>(number) : static_cast<uint64_t>(number), at);
}

// Six digits and the power of ten of the first, rounded to nearest, ties to even. Exact in 128 bits; false if the
// number does not fit.
bool six_digits(double magnitude, uint32_t* digits, int* exponent) {
  if (!(magnitude >= 1e-21 && magnitude < 1e32)) return false;
  uint64_t bits = 0;
  std::memcpy(&bits, &magnitude, sizeof bits);
  const int power = static_cast<int>(bits >> 52) - 1075;
  const uint64_t mantissa = (bits & ((uint64_t{1} << 52) - 1)) | uint64_t{1} << 52;
  // The decimal exponent of the largest power of two up to the number; the exponent of the number is equal or one more.
  int found = static_cast<int>((int64_t{power + 52} * 1262611) >> 22);
  while (true) {
    const int tens = kDigits - 1 - found;
    Wide number = mantissa, whole = 1;  // the digits are number / whole
    if (tens >= 0) {
      number *= kPowersOfFive[tens];
    } else {
      whole = kPowersOfFive[-tens];
    }
    const int twos = power + tens;
    (twos >= 0 ? number : whole) <<= std::abs(twos);
    // A 128-bit division takes ten times as long as a shift.
    const Wide quotient = tens >= 0 ? number >> -twos : number / whole;
    if (quotient >= 1000000) {
      ++found;
      continue;
    }
    const Wide twice = (number - quotient * whole) * 2;
    *digits = static_cast<uint32_t>(quotient);
    if (twice > whole || (twice == whole && (*digits & 1) != 0)) ++*digits;
    if (*digits == 1000000) {
      *digits = 100000;
      ++found;
    }
    *exponent = found;
    return true;
  }
}

// %g of a finite number. Copies of a fixed length need no call; excess characters are overwritten later.
char* put_digits(uint32_t digits, int exponent, char* at) {
  char text[kDigits + 8];
  for (uint32_t place = kDigits; place > 0; place -= 2, digits /= 100) {
    text[place - 2] = static_cast<char>('0' + digits / 10 % 10);
    text[place - 1] = static_cast<char>('0' + digits % 10);
  }
  int count = kDigits;
  while (count > 1 && text[count - 1] == '0') --count;
  if (exponent >= 0 && exponent < kDigits) {
    const int whole = exponent + 1;
    std::memcpy(at, text, kDigits);
    if (count <= whole) return at + whole;
    at[whole] = '.';
    std::memcpy(at + whole + 1, text + whole, kDigits);
    return at + count + 1;
  }
  if (exponent < 0 && exponent >= -4) {
    std::memcpy(at, "0.000", 5);
    at += 1 - exponent;
    std::memcpy(at, text, kDigits);
    return at + count;
  }
  *at++ = text[0];
  if (count > 1) {
    *at = '.';
    std::memcpy(at + 1, text + 1, kDigits);
    at += count;
  }
  *at++ = 'e';
  *at++ = exponent < 0 ? '-' : '+';
  const int size = std::abs(exponent);
  if (size < 10) *at++ = '0';
  return put_whole(static_cast<uint64_t>(size), at);
}

// A growing buffer, with room for one more number after every literal.
class Text {
 public:
  explicit Text(size_t size) : room_(new char[size]), size_(size) {}

  // At least kShort bytes after `from` must be readable.
  void literal(const char* from, size_t count) {
    reserve(count + kShort + kWidest);
    char* const at = room_.get() + used_;
    std::memcpy(at, from, kShort);  // a fixed length needs no call
    if (count > kShort) std::memcpy(at + kShort, from + kShort, count - kShort);
    used_ += count;
  }
  void add(const char* from, size_t count) {
    reserve(count + kWidest);
    std::memcpy(room_.get() + used_, from, count);
    used_ += count;
  }
  void general(double value) {
    char* at = room_.get() + used_;
    if (std::isnan(value)) return add("nan", 3);
    if (std::signbit(value)) *at++ = '-';
    const double magnitude = std::fabs(value);
    uint32_t digits = 0;
    int exponent = 0;
    if (magnitude == 0) {
      *at++ = '0';
    } else if (magnitude < 1000000 && magnitude == std::floor(magnitude)) {
      at = put_whole(static_cast<uint64_t>(magnitude), at);
    } else if (six_digits(magnitude, &digits, &exponent)) {
      at = put_digits(digits, exponent, at);
    } else {
      return slow_general(value);
    }
    used_ = at - room_.get();
  }
  void whole(double value) {
    if (!(std::fabs(value) < 9e18)) return whole(owned(PyLong_FromDouble(value)));  // or its error
    used_ = put_whole(static_cast<int64_t>(value), room_.get() + used_) - room_.get();
  }
  void whole(const nb::object& value) {
    int overflow = 0;
    const long long number = PyLong_AsLongLongAndOverflow(value.ptr(), &overflow);
    if (overflow != 0) return text(value);
    used_ = put_whole(int64_t{number}, room_.get() + used_) - room_.get();
  }
  void text(const nb::object& value) {
    const nb::object words = owned(PyObject_Str(value.ptr()));
    const nb::object bytes = owned(PyUnicode_AsEncodedString(words.ptr(), "utf-8", "backslashreplace"));
    add(PyBytes_AS_STRING(bytes.ptr()), PyBytes_GET_SIZE(bytes.ptr()));
  }
  nb::bytes bytes() const { return nb::bytes(room_.get(), used_); }

 private:
  void reserve(size_t more) {
    if (size_ - used_ >= more) return;
    const size_t size = std::max(size_ * 2, used_ + more);
    std::unique_ptr<char[]> room(new char[size]);
    std::memcpy(room.get(), room_.get(), used_);
    room_ = std::move(room);
    size_ = size;
  }
  void slow_general(double value) {
    char* printed = PyOS_double_to_string(value, 'g', kDigits, 0, nullptr);
    if (printed == nullptr) nb::raise_python_error();
    add(printed, std::strlen(printed));
    PyMem_Free(printed);
  }

  std::unique_ptr<char[]> room_;
  size_t size_;
  size_t used_ = 0;
};

using Doubles = nb::ndarray<const double, nb::ndim<1>, nb::device::cpu>;

// A column: the memory of an array, or a list.
struct Column {
  nb::object list;
  Doubles array;
  const double* data;
  int64_t stride;
};

Column column_of(nb::handle given) {
  if (PyList_Check(given.ptr())) return {nb::borrow(given), {}, nullptr, 0};
  const auto array = nb::cast<Doubles>(given);
  return {{}, array, array.data(), array.stride(0)};
}

void put_object(nb::handle value, char conversion, Text& text) {
  PyObject* const object = value.ptr();
  if (conversion == 's') return text.text(nb::borrow(value));
  if (conversion == 'g') {
    const double number = PyFloat_AsDouble(object);
    if (number == -1 && PyErr_Occurred() != nullptr) nb::raise_python_error();
    return text.general(number);
  }
  if (PyFloat_Check(object)) return text.whole(PyFloat_AS_DOUBLE(object));
  if (!PyLong_Check(object)) throw nb::type_error("%d requires an integer");
  text.whole(nb::borrow(value));
}

}  // namespace

TableText::TableText(nb::str text) {
  const nb::object encoded = owned(PyUnicode_AsEncodedString(text.ptr(), "utf-8", "backslashreplace"));
  const char* at = PyBytes_AS_STRING(encoded.ptr());
  const char* const end = at + PyBytes_GET_SIZE(encoded.ptr());
  while (true) {
    const char* const sign = std::find(at, end, '%');
    literals_.append(at, sign);
    if (sign == end) break;
    const char conversion = sign + 1 == end ? '\0' : sign[1];
    if (conversion == '%') {
      literals_ += '%';
    } else if (conversion == 'd' || conversion == 'g' || conversion == 's') {
      places_.push_back({literals_.size(), conversion});
    } else {
      throw nb::value_error("a template may contain only %d, %g, %s and %% as conversions");
    }
    at = sign + 2;
  }
  size_ = literals_.size();
  literals_.append(kShort, '\0');
}

nb::bytes TableText::fill(const nb::list& given) {
  std::vector<Column> columns;
  size_t rows = 0;
  for (nb::handle each : given) {
    columns.push_back(column_of(each));
    const Column& column = columns.back();
    const size_t length = column.list ? nb::len(column.list) : column.array.shape(0);
    if (columns.size() > 1 && length != rows) throw nb::value_error("the columns of a table must have the same length");
    rows = length;
  }
  if (rows * columns.size() != places_.size()) {
    throw nb::type_error(
        (std::to_string(rows * columns.size()) + " values for " + std::to_string(places_.size()) + " places").c_str());
  }
  Text text(literals_.size() + places_.size() * kUsual + kWidest);
  const Place* place = places_.data();
  size_t begin = 0;
  for (size_t row = 0; row < rows; ++row) {
    for (const Column& column : columns) {
      text.literal(literals_.data() + begin, place->end - begin);
      begin = place->end;
      const char conversion = place++->conversion;
      if (column.list) {
        PyObject* const value = PyList_GetItem(column.list.ptr(), static_cast<Py_ssize_t>(row));
        if (value == nullptr) nb::raise_python_error();
        put_object(value, conversion, text);
      } else {
        const double value = column.data[static_cast<int64_t>(row) * column.stride];
        if (conversion == 'g') {
          text.general(value);
        } else if (conversion == 'd') {
          text.whole(value);
        } else {
          text.text(nb::float_(value));
        }
      }
    }
  }
  text.literal(literals_.data() + begin, size_ - begin);
  return text.bytes();
}

}  // namespace opdump
