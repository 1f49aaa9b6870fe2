// torch_on_cpu_tensor.h: tensors, dtypes, options and TORCH_CHECK. Included by torch_on_cpu.h.
#pragma once

namespace c10 {

// ---- Errors ------------------------------------------------------------------------------------------------

struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};
struct TypeError : Error {
  using Error::Error;
};

template <class... Part>
std::string str(const Part&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

// ---- Types and devices -------------------------------------------------------------------------------------

using Half = __half;
using BFloat16 = __nv_bfloat16;

// In the order of DTYPE_CODE in cuda_reference/_extension.py.
enum class ScalarType : int {
  Half, BFloat16, Float, Double, Byte, Char, Short, Int, Long, Bool, Float8_e4m3fn, Float8_e5m2, Undefined
};
constexpr const char* scalar_type_names[] = {"Half", "BFloat16", "Float", "Double", "Byte", "Char", "Short",
                                             "Int", "Long", "Bool", "Float8_e4m3fn", "Float8_e5m2", "Undefined"};
constexpr int scalar_type_bytes[] = {2, 2, 4, 8, 1, 1, 2, 4, 8, 1, 1, 1, 0};
constexpr const char* toString(ScalarType type) { return scalar_type_names[static_cast<int>(type)]; }
constexpr size_t elementSize(ScalarType type) { return scalar_type_bytes[static_cast<int>(type)]; }
inline std::ostream& operator<<(std::ostream& out, ScalarType type) { return out << toString(type); }

template <class T> struct CppTypeToScalarType;
#define CROSSCHECK_TYPES(_)                                                                                     \
  _(__half, Half) _(__nv_bfloat16, BFloat16) _(float, Float) _(double, Double) _(unsigned char, Byte)           \
  _(signed char, Char) _(short, Short) _(int, Int) _(long, Long) _(long long, Long) _(bool, Bool)
#define CROSSCHECK_TYPE(T, name) \
  template <> struct CppTypeToScalarType<T> { static constexpr ScalarType value = ScalarType::name; };
CROSSCHECK_TYPES(CROSSCHECK_TYPE)
#undef CROSSCHECK_TYPE
#undef CROSSCHECK_TYPES

enum class DeviceType : int { CPU, CUDA };
constexpr DeviceType kCPU = DeviceType::CPU, kCUDA = DeviceType::CUDA;
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
inline std::ostream& operator<<(std::ostream& out, const Device& device) { return out << device.str(); }

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
  bool operator==(const ArrayRef& other) const { return std::equal(begin(), end(), other.begin(), other.end()); }
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

class TensorOptions {
 public:
  TensorOptions() = default;
  TensorOptions(ScalarType type) : dtype_(type) {}
  TensorOptions(c10::Device device) : device_(device) {}
  TensorOptions(DeviceType device) : device_(c10::Device(device)) {}
  TensorOptions dtype(ScalarType type) const { return TensorOptions(type, device_); }
  TensorOptions device(const c10::Device& device) const { return TensorOptions(dtype_, device); }
  TensorOptions device(DeviceType type, int index = -1) const { return device(c10::Device(type, index)); }
  TensorOptions requires_grad(bool) const { return *this; }
  ScalarType dtype() const { return dtype_.value_or(ScalarType::Float); }
  c10::Device device() const { return device_.value_or(c10::Device(kCPU)); }
  bool has_dtype() const { return dtype_.has_value(); }
  bool has_device() const { return device_.has_value(); }

 private:
  TensorOptions(std::optional<ScalarType> type, std::optional<c10::Device> device) : dtype_(type), device_(device) {}
  std::optional<ScalarType> dtype_;
  std::optional<c10::Device> device_;
};
inline std::ostream& operator<<(std::ostream& out, const TensorOptions& options) {
  return out << "TensorOptions(dtype=" << options.dtype() << ", device=" << options.device() << ")";
}

template <class T> using optional = std::optional<T>;
using string_view = std::string_view;
constexpr std::nullopt_t nullopt = std::nullopt;
}  // namespace c10

// ---- What Python is asked ----------------------------------------------------------------------------------

namespace crosscheck_torch {

// Mirrored by cuda_reference/_extension.py.
enum Kind : int { NONE, BOOL, INTEGER, REAL, TEXT, TENSOR, LIST, DTYPE };
struct RawTensor {
  int64_t handle;
  void* data;
  int dtype, ndim, cuda;
  int64_t size[64], stride[64];
};
struct Value {
  int kind;
  int64_t integer;  // a list's length, too
  double real;
  const void* data;  // a text, a RawTensor, a list's Values
};

using Operator = int (*)(const char* name, const Value* arguments, int count, Value* result);
inline __attribute__((visibility("hidden"))) Operator ask_python = nullptr;
struct PythonRaised {};

}  // namespace crosscheck_torch

// ---- Tensors -----------------------------------------------------------------------------------------------

namespace at {

using namespace c10;

class Tensor;

class Scalar {
 public:
  Scalar(double value = 0) : real_(value), integer_(static_cast<int64_t>(value)), floating_(true) {}
  Scalar(float value) : Scalar(static_cast<double>(value)) {}
  template <class T, class = std::enable_if_t<std::is_integral<T>::value>>
  Scalar(T value) : real_(value), integer_(value) {}
  template <class T> T to() const { return floating_ ? T(real_) : T(integer_); }
  double toDouble() const { return to<double>(); }
  float toFloat() const { return to<float>(); }
  int toInt() const { return to<int>(); }
  int64_t toLong() const { return to<int64_t>(); }
  bool toBool() const { return to<bool>(); }
  bool isFloatingPoint() const { return floating_; }

 private:
  double real_;
  int64_t integer_;
  bool floating_ = false;
};

template <class T, size_t N, template <class> class = std::add_pointer_t, class Index = int64_t>
class PackedTensorAccessor;

class Tensor {
 public:
  Tensor() = default;
  explicit Tensor(const crosscheck_torch::RawTensor& raw)
      : raw_(std::make_shared<crosscheck_torch::RawTensor>(raw)) {}

  bool defined() const { return raw_ != nullptr; }
  int64_t dim() const { return raw().ndim; }
  int64_t ndimension() const { return dim(); }
  int64_t size(int64_t i) const { return raw().size[wrapped(i)]; }
  int64_t stride(int64_t i) const { return raw().stride[wrapped(i)]; }
  IntArrayRef sizes() const { return {raw().size, static_cast<size_t>(dim())}; }
  IntArrayRef strides() const { return {raw().stride, static_cast<size_t>(dim())}; }
  int64_t numel() const {
    int64_t count = 1;
    for (int64_t extent : sizes()) count *= extent;
    return count;
  }
  int64_t element_size() const { return elementSize(scalar_type()); }
  int64_t itemsize() const { return element_size(); }
  int64_t nbytes() const { return numel() * element_size(); }
  ScalarType scalar_type() const { return static_cast<ScalarType>(raw().dtype); }
  ScalarType dtype() const { return scalar_type(); }
  ScalarType type() const { return scalar_type(); }
  bool is_floating_point() const { return scalar_type() <= ScalarType::Double; }
  c10::Device device() const { return raw().cuda ? c10::Device(kCUDA, 0) : c10::Device(kCPU); }
  bool is_cuda() const { return raw().cuda; }
  bool is_cpu() const { return !is_cuda(); }
  int64_t get_device() const { return is_cuda() ? 0 : -1; }
  TensorOptions options() const { return TensorOptions(scalar_type()).device(device()); }
  bool is_contiguous() const {
    int64_t expected = 1;
    for (int64_t i = dim() - 1; i >= 0; --i) {
      if (size(i) != 1 && stride(i) != expected) return numel() == 0;
      expected *= size(i);
    }
    return true;
  }
  bool is_same(const Tensor& other) const { return raw_ == other.raw_ || raw().handle == other.raw().handle; }

  void* data_ptr() const { return raw().data; }
  void* mutable_data_ptr() const { return data_ptr(); }
  const void* const_data_ptr() const { return data_ptr(); }
  template <class T>
  T* data_ptr() const {
    constexpr ScalarType expected = CppTypeToScalarType<std::remove_const_t<T>>::value;
    if (scalar_type() != expected)
      throw c10::Error(c10::str("expected scalar type ", expected, " but found ", scalar_type()));
    return static_cast<T*>(data_ptr());
  }
  template <class T> T* mutable_data_ptr() const { return data_ptr<T>(); }
  template <class T> const T* const_data_ptr() const { return data_ptr<T>(); }
  template <class T> T* data() const { return data_ptr<T>(); }

  template <class T, size_t N, template <class> class Pointer = std::add_pointer_t>
  PackedTensorAccessor<T, N, Pointer, int32_t> packed_accessor32() const;
  template <class T, size_t N, template <class> class Pointer = std::add_pointer_t>
  PackedTensorAccessor<T, N, Pointer, int64_t> packed_accessor64() const;

  const crosscheck_torch::RawTensor& raw() const {
    if (!raw_) throw c10::Error("a tensor that is not defined was asked for its properties");
    return *raw_;
  }

  // What follows is done by torch itself.
#define CROSSCHECK_METHOD(name) \
  template <class... Argument>  \
  Tensor name(const Argument&... arguments) const;
  CROSSCHECK_METHOD(contiguous) CROSSCHECK_METHOD(clone) CROSSCHECK_METHOD(detach) CROSSCHECK_METHOD(cpu)
  CROSSCHECK_METHOD(cuda) CROSSCHECK_METHOD(to) CROSSCHECK_METHOD(zero_) CROSSCHECK_METHOD(fill_)
  CROSSCHECK_METHOD(copy_) CROSSCHECK_METHOD(t) CROSSCHECK_METHOD(transpose) CROSSCHECK_METHOD(unsqueeze)
  CROSSCHECK_METHOD(squeeze) CROSSCHECK_METHOD(flatten) CROSSCHECK_METHOD(select) CROSSCHECK_METHOD(narrow)
  CROSSCHECK_METHOD(sum) CROSSCHECK_METHOD(mean) CROSSCHECK_METHOD(abs) CROSSCHECK_METHOD(add)
  CROSSCHECK_METHOD(mul) CROSSCHECK_METHOD(sub) CROSSCHECK_METHOD(div)
#undef CROSSCHECK_METHOD
  Tensor view(IntArrayRef sizes) const;
  Tensor reshape(IntArrayRef sizes) const;
  Tensor permute(IntArrayRef order) const;
  Tensor expand(IntArrayRef sizes) const;
  Tensor max() const;
  Tensor min() const;
  Tensor operator[](int64_t index) const;
  Scalar item() const;
  template <class T> T item() const { return item().to<T>(); }

 private:
  std::shared_ptr<crosscheck_torch::RawTensor> raw_;
  int64_t wrapped(int64_t i) const {
    const int64_t n = dim(), at = i < 0 ? i + n : i;
    if (at < 0 || at >= n)
      throw c10::Error(c10::str("Dimension out of range (expected to be in range of [", -n, ", ", n - 1,
                                "], but got ", i, ")"));
    return at;
  }
};

}  // namespace at

namespace crosscheck_torch {

inline Value value(int kind, int64_t integer = 0, double real = 0, const void* data = nullptr) {
  return {kind, integer, real, data};
}
inline Value value_of(const at::Tensor& t) {
  return t.defined() ? value(TENSOR, t.raw().handle, 0, &t.raw()) : value(NONE);
}
inline Value value_of(bool x) { return value(BOOL, x); }
inline Value value_of(double x) { return value(REAL, 0, x); }
inline Value value_of(float x) { return value(REAL, 0, x); }
template <class T, class = std::enable_if_t<std::is_integral<T>::value>>
Value value_of(T x) {
  return value(INTEGER, x);
}
inline Value value_of(const at::Scalar& x) {
  return x.isFloatingPoint() ? value_of(x.toDouble()) : value_of(x.toLong());
}
inline Value value_of(const char* text) { return value(TEXT, 0, 0, text); }
inline Value value_of(c10::ScalarType type) { return value(DTYPE, static_cast<int>(type)); }
inline Value value_of(const c10::Device& device) { return value_of(device.is_cuda() ? "cuda" : "cpu"); }
inline Value value_of(c10::DeviceType device) { return value_of(c10::Device(device)); }

class Arguments {
 public:
  template <class T>
  void add(const T& x) {
    values_.push_back(value_of(x));
  }
  void add(const c10::TensorOptions& options) {
    add(options.dtype());
    add(options.device());
  }
  void add(c10::IntArrayRef list) {
    lists_.emplace_back();
    for (int64_t x : list) lists_.back().push_back(value_of(x));
    values_.push_back(value(LIST, list.size(), 0, lists_.back().data()));
  }
  void add(const std::vector<int64_t>& list) { add(c10::IntArrayRef(list)); }
  Value ask(const char* name) const {
    Value result{};
    if (ask_python(name, values_.data(), static_cast<int>(values_.size()), &result)) throw PythonRaised();
    return result;
  }

 private:
  std::vector<Value> values_;
  std::deque<std::vector<Value>> lists_;
};

template <class... Argument>
Value ask(const char* name, const Argument&... argument) {
  Arguments arguments;
  (arguments.add(argument), ...);
  return arguments.ask(name);
}
inline at::Tensor tensor_of(const Value& value) {
  return at::Tensor(*static_cast<const RawTensor*>(value.data));
}
inline std::tuple<at::Tensor, at::Tensor> pair_of(const Value& value) {
  const Value* list = static_cast<const Value*>(value.data);
  return {tensor_of(list[0]), tensor_of(list[1])};
}

}  // namespace crosscheck_torch

namespace at {

#define CROSSCHECK_METHOD(name)                                                             \
  template <class... Argument>                                                              \
  Tensor Tensor::name(const Argument&... arguments) const {                                 \
    return crosscheck_torch::tensor_of(crosscheck_torch::ask(#name, *this, arguments...)); \
  }
CROSSCHECK_METHOD(contiguous) CROSSCHECK_METHOD(clone) CROSSCHECK_METHOD(detach) CROSSCHECK_METHOD(cpu)
CROSSCHECK_METHOD(cuda) CROSSCHECK_METHOD(to) CROSSCHECK_METHOD(zero_) CROSSCHECK_METHOD(fill_)
CROSSCHECK_METHOD(copy_) CROSSCHECK_METHOD(t) CROSSCHECK_METHOD(transpose) CROSSCHECK_METHOD(unsqueeze)
CROSSCHECK_METHOD(squeeze) CROSSCHECK_METHOD(flatten) CROSSCHECK_METHOD(select) CROSSCHECK_METHOD(narrow)
CROSSCHECK_METHOD(sum) CROSSCHECK_METHOD(mean) CROSSCHECK_METHOD(abs) CROSSCHECK_METHOD(add)
CROSSCHECK_METHOD(mul) CROSSCHECK_METHOD(sub) CROSSCHECK_METHOD(div)
#undef CROSSCHECK_METHOD

inline Tensor ask_tensor(const crosscheck_torch::Value& value) { return crosscheck_torch::tensor_of(value); }
inline Tensor Tensor::view(IntArrayRef sizes) const {
  return ask_tensor(crosscheck_torch::ask("view", *this, sizes));
}
inline Tensor Tensor::reshape(IntArrayRef sizes) const {
  return ask_tensor(crosscheck_torch::ask("reshape", *this, sizes));
}
inline Tensor Tensor::permute(IntArrayRef order) const {
  return ask_tensor(crosscheck_torch::ask("permute", *this, order));
}
inline Tensor Tensor::expand(IntArrayRef sizes) const {
  return ask_tensor(crosscheck_torch::ask("expand", *this, sizes));
}
inline Tensor Tensor::max() const { return ask_tensor(crosscheck_torch::ask("amax", *this)); }
inline Tensor Tensor::min() const { return ask_tensor(crosscheck_torch::ask("amin", *this)); }
inline Tensor Tensor::operator[](int64_t index) const { return select(int64_t(0), index); }
inline Scalar Tensor::item() const {
  const crosscheck_torch::Value value = crosscheck_torch::ask("item", *this);
  return value.kind == crosscheck_torch::REAL ? Scalar(value.real) : Scalar(value.integer);
}

// ---- Functions ---------------------------------------------------------------------------------------------

#define CROSSCHECK_NEW(name)                                                      \
  inline Tensor name(IntArrayRef sizes, const TensorOptions& options = {}) {      \
    return ask_tensor(crosscheck_torch::ask(#name, sizes, options));              \
  }                                                                               \
  inline Tensor name##_like(const Tensor& like, const TensorOptions& options) {   \
    return ask_tensor(crosscheck_torch::ask(#name "_like", like, options));       \
  }                                                                               \
  inline Tensor name##_like(const Tensor& like) { return name##_like(like, like.options()); }
CROSSCHECK_NEW(empty)
CROSSCHECK_NEW(zeros)
CROSSCHECK_NEW(ones)
#undef CROSSCHECK_NEW
inline Tensor full(IntArrayRef sizes, const Scalar& value, const TensorOptions& options = {}) {
  return ask_tensor(crosscheck_torch::ask("full", sizes, value, options));
}
inline Tensor full_like(const Tensor& like, const Scalar& value) {
  return ask_tensor(crosscheck_torch::ask("full_like", like, value, like.options()));
}
inline std::tuple<Tensor, Tensor> max(const Tensor& x, int64_t dim, bool keepdim = false) {
  return crosscheck_torch::pair_of(crosscheck_torch::ask("max", x, dim, keepdim));
}
inline std::tuple<Tensor, Tensor> min(const Tensor& x, int64_t dim, bool keepdim = false) {
  return crosscheck_torch::pair_of(crosscheck_torch::ask("min", x, dim, keepdim));
}
inline Tensor max(const Tensor& x) { return x.max(); }
inline Tensor min(const Tensor& x) { return x.min(); }
inline Tensor sum(const Tensor& x) { return x.sum(); }

inline TensorOptions dtype(ScalarType type) { return TensorOptions(type); }
inline TensorOptions device(const c10::Device& device) { return TensorOptions(device); }

// ---- Packed accessors --------------------------------------------------------------------------------------

template <class T> struct RestrictPtrTraits { using PtrType = T* __restrict__; };
template <class T> struct DefaultPtrTraits { using PtrType = T*; };

template <class T, size_t N, class Index>
class TensorAccessor {
 public:
  TensorAccessor(T* data, const Index* sizes, const Index* strides) : data_(data), sizes_(sizes), strides_(strides) {}
  Index size(int i) const { return sizes_[i]; }
  Index stride(int i) const { return strides_[i]; }
  T* data() const { return data_; }
  decltype(auto) operator[](Index i) const {
    if constexpr (N == 1) return (data_[i * strides_[0]]);
    else return TensorAccessor<T, N - 1, Index>(data_ + i * strides_[0], sizes_ + 1, strides_ + 1);
  }

 private:
  T* data_;
  const Index *sizes_, *strides_;
};

template <class T, size_t N, template <class> class Pointer, class Index>
class PackedTensorAccessor {
 public:
  explicit PackedTensorAccessor(const Tensor& t) : data_(t.data_ptr<T>()) {
    if (t.dim() != N) throw c10::Error(c10::str("expected ", N, " dims but tensor has ", t.dim()));
    std::copy_n(t.sizes().begin(), N, sizes_);
    std::copy_n(t.strides().begin(), N, strides_);
  }
  Index size(int i) const { return sizes_[i]; }
  Index stride(int i) const { return strides_[i]; }
  T* data() const { return data_; }
  decltype(auto) operator[](Index i) const { return TensorAccessor<T, N, Index>(data_, sizes_, strides_)[i]; }

 private:
  T* data_;
  Index sizes_[N], strides_[N];
};
template <class T, size_t N, template <class> class Pointer = DefaultPtrTraits>
using PackedTensorAccessor32 = PackedTensorAccessor<T, N, Pointer, int32_t>;
template <class T, size_t N, template <class> class Pointer = DefaultPtrTraits>
using PackedTensorAccessor64 = PackedTensorAccessor<T, N, Pointer, int64_t>;

template <class T, size_t N, template <class> class Pointer>
PackedTensorAccessor<T, N, Pointer, int32_t> Tensor::packed_accessor32() const {
  return PackedTensorAccessor<T, N, Pointer, int32_t>(*this);
}
template <class T, size_t N, template <class> class Pointer>
PackedTensorAccessor<T, N, Pointer, int64_t> Tensor::packed_accessor64() const {
  return PackedTensorAccessor<T, N, Pointer, int64_t>(*this);
}

using TensorList = ArrayRef<Tensor>;

#define CROSSCHECK_K(k, name) constexpr ScalarType k = ScalarType::name;
CROSSCHECK_K(kHalf, Half) CROSSCHECK_K(kFloat16, Half) CROSSCHECK_K(kBFloat16, BFloat16)
CROSSCHECK_K(kFloat, Float) CROSSCHECK_K(kFloat32, Float) CROSSCHECK_K(kDouble, Double)
CROSSCHECK_K(kFloat64, Double) CROSSCHECK_K(kByte, Byte) CROSSCHECK_K(kUInt8, Byte) CROSSCHECK_K(kChar, Char)
CROSSCHECK_K(kInt8, Char) CROSSCHECK_K(kShort, Short) CROSSCHECK_K(kInt16, Short) CROSSCHECK_K(kInt, Int)
CROSSCHECK_K(kInt32, Int) CROSSCHECK_K(kLong, Long) CROSSCHECK_K(kInt64, Long) CROSSCHECK_K(kBool, Bool)
CROSSCHECK_K(kFloat8_e4m3fn, Float8_e4m3fn) CROSSCHECK_K(kFloat8_e5m2, Float8_e5m2)
#undef CROSSCHECK_K

namespace cuda {
struct CUDAStream {
  operator cudaStream_t() const { return nullptr; }
  cudaStream_t stream() const { return nullptr; }
};
inline CUDAStream getCurrentCUDAStream(int = -1) { return {}; }
inline CUDAStream getDefaultCUDAStream(int = -1) { return {}; }
struct CUDAGuard {
  template <class Device> explicit CUDAGuard(const Device&) {}
  ~CUDAGuard() {}  // written, so that no compiler calls one unused
};
using OptionalCUDAGuard = CUDAGuard;
}  // namespace cuda
inline cuda::CUDAGuard device_guard(const Tensor& t) { return cuda::CUDAGuard(t.device()); }

}  // namespace at

namespace c10 {
namespace cuda {
using namespace at::cuda;
}
using at::Scalar;
}  // namespace c10
namespace torch {
using namespace at;
namespace indexing {}
}  // namespace torch

// ---- Checks ------------------------------------------------------------------------------------------------

#define CROSSCHECK_CHECK(kind, condition, ...)                                                          \
  do {                                                                                                  \
    if (!(condition)) {                                                                                 \
      const std::string told = c10::str(__VA_ARGS__);                                                   \
      throw kind(told.empty() ? "Expected " #condition " to be true, but got false." : told);           \
    }                                                                                                   \
  } while (false)
#define TORCH_CHECK(condition, ...) CROSSCHECK_CHECK(c10::Error, condition, __VA_ARGS__)
#define TORCH_CHECK_TYPE(condition, ...) CROSSCHECK_CHECK(c10::TypeError, condition, __VA_ARGS__)
#define TORCH_CHECK_VALUE(condition, ...) CROSSCHECK_CHECK(c10::Error, condition, __VA_ARGS__)
#define TORCH_INTERNAL_ASSERT(condition, ...) CROSSCHECK_CHECK(c10::Error, condition, __VA_ARGS__)
#define TORCH_CHECK_EQ(a, b) TORCH_CHECK((a) == (b), "Check failed: " #a " == " #b " (", (a), " vs. ", (b), ")")
#define TORCH_CHECK_LE(a, b) TORCH_CHECK((a) <= (b), "Check failed: " #a " <= " #b " (", (a), " vs. ", (b), ")")
#define TORCH_CHECK_LT(a, b) TORCH_CHECK((a) < (b), "Check failed: " #a " < " #b " (", (a), " vs. ", (b), ")")
#define TORCH_CHECK_GE(a, b) TORCH_CHECK((a) >= (b), "Check failed: " #a " >= " #b " (", (a), " vs. ", (b), ")")
#define TORCH_CHECK_GT(a, b) TORCH_CHECK((a) > (b), "Check failed: " #a " > " #b " (", (a), " vs. ", (b), ")")
#define TORCH_CHECK_NE(a, b) TORCH_CHECK((a) != (b), "Check failed: " #a " != " #b " (", (a), " vs. ", (b), ")")
#define AT_ASSERTM(condition, ...) CROSSCHECK_CHECK(c10::Error, condition, __VA_ARGS__)
#define AT_ASSERT(condition, ...) CROSSCHECK_CHECK(c10::Error, condition, __VA_ARGS__)
#define AT_ERROR(...) CROSSCHECK_CHECK(c10::Error, false, __VA_ARGS__)
#define TORCH_WARN(...) (std::cerr << c10::str(__VA_ARGS__) << std::endl)
#define C10_CUDA_CHECK(call)                                                                        \
  do {                                                                                              \
    const cudaError_t crosscheck_status = (call);                                                   \
    TORCH_CHECK(crosscheck_status == cudaSuccess, "CUDA error: ", cudaGetErrorString(crosscheck_status)); \
  } while (false)
#define AT_CUDA_CHECK(call) C10_CUDA_CHECK(call)
#define C10_CUDA_KERNEL_LAUNCH_CHECK() C10_CUDA_CHECK(cudaPeekAtLastError())

// ---- AT_DISPATCH -------------------------------------------------------------------------------------------

namespace crosscheck_torch {
template <class... T, class Call>
auto dispatch(c10::ScalarType type, const char* name, const Call& call) {
  using Result = std::common_type_t<decltype(call(static_cast<T*>(nullptr)))...>;
  std::optional<std::conditional_t<std::is_void<Result>::value, int, Result>> result;
  const bool known =
      ((at::CppTypeToScalarType<T>::value == type && ([&] {
          if constexpr (std::is_void<Result>::value) call(static_cast<T*>(nullptr)), result = 0;
          else result = call(static_cast<T*>(nullptr));
        }(), true)) || ...);
  if (!known) throw c10::Error(c10::str('"', name, "\" not implemented for '", type, "'"));
  if constexpr (!std::is_void<Result>::value) return *result;
}
template <c10::ScalarType type> struct TypeOf;
#define CROSSCHECK_TYPE(T, name) \
  template <> struct TypeOf<c10::ScalarType::name> { using Type = T; };
CROSSCHECK_TYPE(__half, Half) CROSSCHECK_TYPE(__nv_bfloat16, BFloat16) CROSSCHECK_TYPE(float, Float)
CROSSCHECK_TYPE(double, Double) CROSSCHECK_TYPE(uint8_t, Byte) CROSSCHECK_TYPE(int8_t, Char)
CROSSCHECK_TYPE(int16_t, Short) CROSSCHECK_TYPE(int, Int) CROSSCHECK_TYPE(int64_t, Long) CROSSCHECK_TYPE(bool, Bool)
#undef CROSSCHECK_TYPE
}  // namespace crosscheck_torch

#define CROSSCHECK_CALL(...)                                                               \
  [&](auto* crosscheck_type) {                                                             \
    using scalar_t [[maybe_unused]] = std::remove_pointer_t<decltype(crosscheck_type)>;    \
    return __VA_ARGS__();                                                                  \
  }
#define CROSSCHECK_OF(type) crosscheck_torch::TypeOf<type>::Type
#define CROSSCHECK_INTEGRAL uint8_t, int8_t, int16_t, int, int64_t
#define AT_DISPATCH_FLOATING_TYPES(type, name, ...) \
  crosscheck_torch::dispatch<float, double>(type, name, CROSSCHECK_CALL(__VA_ARGS__))
#define AT_DISPATCH_FLOATING_TYPES_AND_HALF(type, name, ...) \
  crosscheck_torch::dispatch<float, double, __half>(type, name, CROSSCHECK_CALL(__VA_ARGS__))
#define AT_DISPATCH_FLOATING_TYPES_AND(extra, type, name, ...) \
  crosscheck_torch::dispatch<float, double, CROSSCHECK_OF(extra)>(type, name, CROSSCHECK_CALL(__VA_ARGS__))
#define AT_DISPATCH_FLOATING_TYPES_AND2(extra, other, type, name, ...)                                      \
  crosscheck_torch::dispatch<float, double, CROSSCHECK_OF(extra), CROSSCHECK_OF(other)>(type, name,         \
                                                                                       CROSSCHECK_CALL(__VA_ARGS__))
#define AT_DISPATCH_REDUCED_FLOATING_TYPES(type, name, ...) \
  crosscheck_torch::dispatch<__half, __nv_bfloat16>(type, name, CROSSCHECK_CALL(__VA_ARGS__))
#define AT_DISPATCH_INTEGRAL_TYPES(type, name, ...) \
  crosscheck_torch::dispatch<CROSSCHECK_INTEGRAL>(type, name, CROSSCHECK_CALL(__VA_ARGS__))
#define AT_DISPATCH_ALL_TYPES(type, name, ...) \
  crosscheck_torch::dispatch<CROSSCHECK_INTEGRAL, float, double>(type, name, CROSSCHECK_CALL(__VA_ARGS__))
#define AT_DISPATCH_ALL_TYPES_AND2(extra, other, type, name, ...)                                             \
  crosscheck_torch::dispatch<CROSSCHECK_INTEGRAL, float, double, CROSSCHECK_OF(extra), CROSSCHECK_OF(other)>( \
      type, name, CROSSCHECK_CALL(__VA_ARGS__))
