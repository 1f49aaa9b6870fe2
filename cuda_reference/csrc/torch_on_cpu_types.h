// torch_on_cpu_types.h: errors, dtypes, devices, lists and options. Included by torch_on_cpu.h.
#pragma once

// For functions that run once per call: optimising them would only make the compiler slower.
#define CROSSCHECK_COLD __attribute__((noinline, cold))

namespace c10 {

// ---- Errors ------------------------------------------------------------------------------------------------

struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};
struct TypeError : Error {
  using Error::Error;
};

template <class... Part>
CROSSCHECK_COLD std::string str(const Part&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

// ---- Types and devices -------------------------------------------------------------------------------------

// 16-bit floating types that compute as torch's do: implicit conversions from and to float, and operators for mixed
// operands whose results have torch's types.
#define CROSSCHECK_SHORT(Short, Native)                                                                      \
  struct alignas(2) Short {                                                                                  \
    unsigned short x;                                                                                        \
    struct from_bits_t {};                                                                                   \
    static constexpr from_bits_t from_bits() { return {}; }                                                  \
    Short() = default;                                                                                       \
    constexpr Short(unsigned short bits, from_bits_t) : x(bits) {}                                           \
    Short(float value) : Short(Native(value)) {}                                                             \
    Short(const Native& value) : x(cuda_on_cpu::bits_as<unsigned short>(value)) {}                           \
    operator float() const { return static_cast<float>(Native(*this)); }                                     \
    operator Native() const { return cuda_on_cpu::bits_as<Native>(x); }                                      \
  };                                                                                                         \
  CROSSCHECK_OPERATOR(Short, +) CROSSCHECK_OPERATOR(Short, -) CROSSCHECK_OPERATOR(Short, *)                  \
  CROSSCHECK_OPERATOR(Short, /)                                                                              \
  inline Short operator-(const Short& a) { return -static_cast<float>(a); }
#define CROSSCHECK_OPERATOR(Short, op)                                                                       \
  inline Short operator op(const Short& a, const Short& b) { return float(a) op float(b); }                  \
  inline float operator op(const Short& a, float b) { return float(a) op b; }                                \
  inline float operator op(float a, const Short& b) { return a op float(b); }                                \
  inline double operator op(const Short& a, double b) { return float(a) op b; }                              \
  inline double operator op(double a, const Short& b) { return a op float(b); }                              \
  inline Short operator op(const Short& a, int b) { return a op Short(float(b)); }                           \
  inline Short operator op(int a, const Short& b) { return Short(float(a)) op b; }                           \
  inline Short operator op(const Short& a, int64_t b) { return a op Short(float(b)); }                       \
  inline Short operator op(int64_t a, const Short& b) { return Short(float(a)) op b; }                       \
  inline Short& operator op##=(Short& a, const Short& b) { return a = a op b; }                              \
  inline float& operator op##=(float& a, const Short& b) { return a = a op b; }
CROSSCHECK_SHORT(Half, __half)
CROSSCHECK_SHORT(BFloat16, __nv_bfloat16)
#undef CROSSCHECK_OPERATOR
#undef CROSSCHECK_SHORT
// For two operands of one such type. With any other operand this one is converted to float.
template <class T>
using IfShort = std::enable_if_t<std::is_same<T, Half>::value || std::is_same<T, BFloat16>::value, bool>;
template <class T> IfShort<T> operator==(const T& a, const T& b) { return float(a) == float(b); }
template <class T> IfShort<T> operator!=(const T& a, const T& b) { return float(a) != float(b); }
template <class T> IfShort<T> operator<(const T& a, const T& b) { return float(a) < float(b); }
template <class T> IfShort<T> operator<=(const T& a, const T& b) { return float(a) <= float(b); }
template <class T> IfShort<T> operator>(const T& a, const T& b) { return float(a) > float(b); }
template <class T> IfShort<T> operator>=(const T& a, const T& b) { return float(a) >= float(b); }

// For kernels that compute with complex numbers; there are no complex tensors here.
template <class T>
struct alignas(2 * sizeof(T)) complex {
  T real_, imag_;
  constexpr complex(T real = 0, T imag = 0) : real_(real), imag_(imag) {}
  constexpr T real() const { return real_; }
  constexpr T imag() const { return imag_; }
  complex& operator+=(const complex& b) { return *this = *this + b; }
  complex& operator-=(const complex& b) { return *this = *this - b; }
  complex& operator*=(const complex& b) { return *this = *this * b; }
  complex& operator/=(const complex& b) { return *this = *this / b; }
  complex operator-() const { return {-real_, -imag_}; }
  friend complex operator+(const complex& a, const complex& b) { return {a.real_ + b.real_, a.imag_ + b.imag_}; }
  friend complex operator-(const complex& a, const complex& b) { return {a.real_ - b.real_, a.imag_ - b.imag_}; }
  friend complex operator*(const complex& a, const complex& b) {
    return {a.real_ * b.real_ - a.imag_ * b.imag_, a.real_ * b.imag_ + a.imag_ * b.real_};
  }
  friend complex operator/(const complex& a, const complex& b) {
    const T square = b.real_ * b.real_ + b.imag_ * b.imag_;
    const complex product = a * complex(b.real_, -b.imag_);
    return {product.real_ / square, product.imag_ / square};
  }
  friend bool operator==(const complex& a, const complex& b) { return a.real_ == b.real_ && a.imag_ == b.imag_; }
  friend bool operator!=(const complex& a, const complex& b) { return !(a == b); }
};

// In the order of DTYPES in cuda_reference/_torch_calls.py, followed by types that no tensor has here.
enum class ScalarType : int {
  Half, BFloat16, Float, Double, Byte, Char, Short, Int, Long, Bool, Float8_e4m3fn, Float8_e5m2, Undefined,
  ComplexFloat, ComplexDouble
};
constexpr const char* scalar_type_names[] = {"Half", "BFloat16", "Float", "Double", "Byte", "Char", "Short",
                                             "Int", "Long", "Bool", "Float8_e4m3fn", "Float8_e5m2", "Undefined",
                                             "ComplexFloat", "ComplexDouble"};
constexpr int scalar_type_bytes[] = {2, 2, 4, 8, 1, 1, 2, 4, 8, 1, 1, 1, 0, 8, 16};
constexpr const char* toString(ScalarType type) { return scalar_type_names[static_cast<int>(type)]; }
constexpr size_t elementSize(ScalarType type) { return scalar_type_bytes[static_cast<int>(type)]; }
CROSSCHECK_COLD inline std::ostream& operator<<(std::ostream& out, ScalarType type) { return out << toString(type); }

template <class T> struct CppTypeToScalarType;
#define CROSSCHECK_TYPES(_)                                                                                     \
  _(c10::Half, Half) _(c10::BFloat16, BFloat16) _(float, Float) _(double, Double) _(unsigned char, Byte)         \
  _(signed char, Char) _(short, Short) _(int, Int) _(long, Long) _(long long, Long) _(bool, Bool)         \
  _(c10::complex<float>, ComplexFloat) _(c10::complex<double>, ComplexDouble)
#define CROSSCHECK_TYPE(T, name) \
  template <> struct CppTypeToScalarType<T> { static constexpr ScalarType value = ScalarType::name; };
CROSSCHECK_TYPES(CROSSCHECK_TYPE)
#undef CROSSCHECK_TYPE
#undef CROSSCHECK_TYPES

// The others are named by sources that ask for them; no tensor is there.
enum class DeviceType : int8_t {
  CPU = 0, CUDA = 1, HIP = 6, XPU = 12, MPS = 13, Meta = 14, PrivateUse1 = 20, COMPILE_TIME_MAX_DEVICE_TYPES = 21
};
constexpr DeviceType kCPU = DeviceType::CPU, kCUDA = DeviceType::CUDA, kHIP = DeviceType::HIP, kXPU = DeviceType::XPU,
                     kMPS = DeviceType::MPS, kMeta = DeviceType::Meta, kPrivateUse1 = DeviceType::PrivateUse1;
CROSSCHECK_COLD inline std::string DeviceTypeName(DeviceType type, bool lower_case = false) {
  if (type == kCUDA) return lower_case ? "cuda" : "CUDA";
  return lower_case ? "cpu" : "CPU";
}
struct Device {
  DeviceType kind = kCPU;
  int number = 0;
  Device(DeviceType type, int index = -1) : kind(type), number(index < 0 ? 0 : index) {}
  Device(const std::string& text) : kind(text.rfind("cuda", 0) == 0 ? kCUDA : kCPU) {}
  DeviceType type() const { return kind; }
  int index() const { return number; }
  bool has_index() const { return true; }
  bool is_cuda() const { return kind == kCUDA; }
  bool is_cpu() const { return kind == kCPU; }
  std::string str() const { return is_cuda() ? "cuda:" + std::to_string(number) : "cpu"; }
  bool operator==(const Device& other) const { return kind == other.kind && number == other.number; }
  bool operator!=(const Device& other) const { return !(*this == other); }
};
CROSSCHECK_COLD inline std::ostream& operator<<(std::ostream& out, const Device& device) { return out << device.str(); }
CROSSCHECK_COLD inline std::ostream& operator<<(std::ostream& out, DeviceType type) {
  return out << DeviceTypeName(type, true);
}

template <class T>
class ArrayRef {
 public:
  ArrayRef() = default;
  ArrayRef(const T* data, size_t size) : data_(data), size_(size) {}
  ArrayRef(const std::vector<T>& list) : data_(list.data()), size_(list.size()) {}
  ArrayRef(const std::initializer_list<T>& list) : data_(list.begin()), size_(list.size()) {}
  ArrayRef(const T& one) : data_(&one), size_(1) {}
  const T* data() const { return data_; }
  size_t size() const { return size_; }
  bool empty() const { return !size_; }
  const T* begin() const { return data_; }
  const T* end() const { return data_ + size_; }
  const T& front() const { return data_[0]; }
  const T& back() const { return data_[size_ - 1]; }
  const T& operator[](size_t i) const { return data_[i]; }
  std::vector<T> vec() const { return {begin(), end()}; }
  ArrayRef slice(size_t first, size_t count) const { return {data_ + first, count}; }
  ArrayRef slice(size_t first) const { return slice(first, size_ - first); }
  bool equals(const ArrayRef& other) const { return std::equal(begin(), end(), other.begin(), other.end()); }
  bool operator==(const ArrayRef& other) const { return equals(other); }
  bool operator!=(const ArrayRef& other) const { return !(*this == other); }

 private:
  const T* data_ = nullptr;
  size_t size_ = 0;
};
template <class T>
std::ostream& operator<<(std::ostream& out, const ArrayRef<T>& list) {
  out << '[';
  for (size_t i = 0; i < list.size(); ++i) out << (i ? ", " : "") << list[i];
  return out << ']';
}
using IntArrayRef = ArrayRef<int64_t>;
using IntList = IntArrayRef;  // its old name

enum class Layout : int { Strided, Sparse };
constexpr Layout kStrided = Layout::Strided, kSparse = Layout::Sparse;
enum class MemoryFormat : int { Contiguous, Preserve, ChannelsLast, ChannelsLast3d };

class TensorOptions {
 public:
  TensorOptions() = default;
  TensorOptions(ScalarType type) : dtype_(type) {}
  TensorOptions(c10::Device device) : device_(device) {}
  TensorOptions(DeviceType device) : device_(c10::Device(device)) {}
  TensorOptions(MemoryFormat format) : format_(format) {}
  TensorOptions dtype(ScalarType type) const { return with(&TensorOptions::dtype_, type); }
  TensorOptions device(const c10::Device& device) const { return with(&TensorOptions::device_, device); }
  TensorOptions device(DeviceType type, int index = -1) const { return device(c10::Device(type, index)); }
  TensorOptions memory_format(MemoryFormat format) const { return with(&TensorOptions::format_, format); }
  TensorOptions requires_grad(bool) const { return *this; }
  // These options, completed by others for those that are not set.
  TensorOptions or_else(TensorOptions others) const {
    if (dtype_) others.dtype_ = dtype_;
    if (device_) others.device_ = device_;
    if (format_) others.format_ = format_;
    return others;
  }
  ScalarType dtype() const { return dtype_.value_or(ScalarType::Float); }
  c10::Device device() const { return device_.value_or(c10::Device(kCPU)); }
  std::optional<MemoryFormat> memory_format_opt() const { return format_; }
  bool has_dtype() const { return dtype_.has_value(); }
  bool has_device() const { return device_.has_value(); }

 private:
  template <class T> TensorOptions with(std::optional<T> TensorOptions::*member, const T& value) const {
    TensorOptions result = *this;
    result.*member = value;
    return result;
  }
  std::optional<ScalarType> dtype_;
  std::optional<c10::Device> device_;
  std::optional<MemoryFormat> format_;
};
CROSSCHECK_COLD inline std::ostream& operator<<(std::ostream& out, const TensorOptions& options) {
  return out << "TensorOptions(dtype=" << options.dtype() << ", device=" << options.device() << ")";
}

// The result of Tensor::type(), which older code uses instead of scalar_type().
struct Type {
  ScalarType type;
  bool cuda;
  operator ScalarType() const { return type; }
  operator TensorOptions() const { return TensorOptions(type).device(cuda ? kCUDA : kCPU); }
  ScalarType scalarType() const { return type; }
  bool is_cuda() const { return cuda; }
};
CROSSCHECK_COLD inline std::ostream& operator<<(std::ostream& out, const Type& t) { return out << t.type; }

template <class T> using optional = std::optional<T>;
using string_view = std::string_view;
constexpr std::nullopt_t nullopt = std::nullopt;
}  // namespace c10

#define CROSSCHECK_LIMITS(Short, bits_of_max, bits_of_lowest, bits_of_min, bits_of_epsilon)                          \
  template <> struct std::numeric_limits<c10::Short> : std::numeric_limits<float> {                                 \
    static c10::Short of(unsigned short bits) { return c10::Short(bits, c10::Short::from_bits()); }                  \
    static c10::Short max() { return of(bits_of_max); }                                                             \
    static c10::Short lowest() { return of(bits_of_lowest); }                                                       \
    static c10::Short min() { return of(bits_of_min); }                                                             \
    static c10::Short epsilon() { return of(bits_of_epsilon); }                                                     \
    static c10::Short infinity() { return std::numeric_limits<float>::infinity(); }                                 \
    static c10::Short quiet_NaN() { return std::numeric_limits<float>::quiet_NaN(); }                               \
  };
CROSSCHECK_LIMITS(Half, 0x7BFF, 0xFBFF, 0x0400, 0x1400)
CROSSCHECK_LIMITS(BFloat16, 0x7F7F, 0xFF7F, 0x0080, 0x3C00)
#undef CROSSCHECK_LIMITS
