// torch_on_cpu_tensor.h: tensors and their methods. Included by torch_on_cpu.h.
#pragma once

// ---- Calls to Python ---------------------------------------------------------------------------------------

namespace crosscheck_torch {

// Also in cuda_reference/_torch_calls.py.
enum Kind : int { NONE, BOOL, INTEGER, REAL, TEXT, TENSOR, LIST, DTYPE, FORMAT, TUPLE };
struct RawTensor {
  int64_t handle;
  void* data;
  int dtype, ndim, cuda;
  int64_t size[64], stride[64];
};
struct Value {
  int kind;
  int64_t integer;  // also a list's or a tuple's length
  double real;
  const void* data;  // a text, a RawTensor, the Values of a list or tuple
};

using Operator = int (*)(const char* name, const Value* arguments, int count, Value* result);
inline __attribute__((visibility("hidden"))) Operator ask_python = nullptr;
struct PythonRaised {};

}  // namespace crosscheck_torch

// ---- Tensors -----------------------------------------------------------------------------------------------

namespace at {

using namespace c10;

class Tensor;

// Keeps all tensors of a call alive until it ends: a reference to sizes() may outlive its variable's tensor.
inline __attribute__((visibility("hidden"))) std::forward_list<std::shared_ptr<crosscheck_torch::RawTensor>>& known() {
  static std::forward_list<std::shared_ptr<crosscheck_torch::RawTensor>> list;
  return list;
}

class Scalar {
 public:
  Scalar(double value = 0) : real_(value), integer_(static_cast<int64_t>(value)), floating_(true) {}
  Scalar(float value) : Scalar(static_cast<double>(value)) {}
  Scalar(const Half& value) : Scalar(static_cast<float>(value)) {}
  Scalar(const BFloat16& value) : Scalar(static_cast<float>(value)) {}
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

template <class T, size_t N, class Index>
class TensorAccessor;
template <class T> struct DefaultPtrTraits { using PtrType = T*; };
template <class T, size_t N, template <class> class = DefaultPtrTraits, class Index = int64_t>
class PackedTensorAccessor;
namespace indexing {
class TensorIndex;
}

class Tensor {
 public:
  Tensor() = default;
  CROSSCHECK_COLD explicit Tensor(const crosscheck_torch::RawTensor& raw)
      : raw_(std::make_shared<crosscheck_torch::RawTensor>(raw)) {
    known().push_front(raw_);
  }
  Tensor(const Tensor&) = default;
  Tensor(Tensor&&) = default;
  Tensor& operator=(const Tensor&) = default;
  Tensor& operator=(Tensor&&) = default;
  CROSSCHECK_COLD ~Tensor() {}

  bool defined() const { return raw_ != nullptr; }
  int64_t dim() const { return raw().ndim; }
  int64_t ndimension() const { return dim(); }
  CROSSCHECK_COLD int64_t size(int64_t i) const { return raw().size[wrapped(i)]; }
  CROSSCHECK_COLD int64_t stride(int64_t i) const { return raw().stride[wrapped(i)]; }
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
  Type type() const { return {scalar_type(), is_cuda()}; }
  bool is_floating_point() const { return scalar_type() <= ScalarType::Double; }
  bool is_complex() const { return false; }
  bool is_sparse() const { return false; }
  bool requires_grad() const { return false; }
  Layout layout() const { return kStrided; }
  c10::Device device() const { return raw().cuda ? c10::Device(kCUDA, 0) : c10::Device(kCPU); }
  bool is_cuda() const { return raw().cuda; }
  bool is_cpu() const { return !is_cuda(); }
  int64_t get_device() const { return is_cuda() ? 0 : -1; }
  CROSSCHECK_COLD TensorOptions options() const { return TensorOptions(scalar_type()).device(device()); }
  // The dimensions are visited from the innermost on: from the last one, or with channels last from the second one.
  CROSSCHECK_COLD bool is_contiguous(MemoryFormat format = MemoryFormat::Contiguous) const {
    const bool last = format == MemoryFormat::ChannelsLast || format == MemoryFormat::ChannelsLast3d;
    if (last && dim() != (format == MemoryFormat::ChannelsLast ? 4 : 5)) return false;
    int64_t expected = 1;
    for (int64_t inner = 0; inner < dim(); ++inner) {
      const int64_t plain = dim() - 1 - inner;
      const int64_t i = !last ? plain : inner == 0 ? 1 : plain == 0 ? 0 : plain + 1;
      if (size(i) != 1 && stride(i) != expected) return numel() == 0;
      expected *= size(i);
    }
    return true;
  }
  CROSSCHECK_COLD bool is_non_overlapping_and_dense() const {
    std::vector<int64_t> inner;
    for (int64_t i = 0; i < dim(); ++i)
      if (size(i) != 1) inner.push_back(i);
    std::sort(inner.begin(), inner.end(), [this](int64_t a, int64_t b) { return stride(a) < stride(b); });
    int64_t expected = 1;
    for (int64_t i : inner) {
      if (stride(i) != expected) return numel() == 0;
      expected *= size(i);
    }
    return true;
  }
  bool is_same(const Tensor& other) const { return raw_ == other.raw_ || raw().handle == other.raw().handle; }

  CROSSCHECK_COLD void* data_ptr() const { return raw().data; }
  void* mutable_data_ptr() const { return data_ptr(); }
  const void* const_data_ptr() const { return data_ptr(); }
  template <class T>
  CROSSCHECK_COLD T* data_ptr() const {
    constexpr ScalarType expected = CppTypeToScalarType<std::remove_const_t<T>>::value;
    if (scalar_type() != expected)
      throw c10::Error(c10::str("expected scalar type ", expected, " but found ", scalar_type()));
    return static_cast<T*>(data_ptr());
  }
  template <class T> T* mutable_data_ptr() const { return data_ptr<T>(); }
  template <class T> const T* const_data_ptr() const { return data_ptr<T>(); }
  template <class T> T* data() const { return data_ptr<T>(); }

  template <class T, size_t N>
  TensorAccessor<T, N, int64_t> accessor() const;
  template <class T, size_t N, template <class> class Pointer = DefaultPtrTraits, class Index = int64_t>
  PackedTensorAccessor<T, N, Pointer, Index> packed_accessor() const;
  template <class T, size_t N, template <class> class Pointer = DefaultPtrTraits>
  PackedTensorAccessor<T, N, Pointer, int32_t> packed_accessor32() const;
  template <class T, size_t N, template <class> class Pointer = DefaultPtrTraits>
  PackedTensorAccessor<T, N, Pointer, int64_t> packed_accessor64() const;

  const crosscheck_torch::RawTensor& raw() const {
    if (!raw_) throw c10::Error("a tensor that is not defined was asked for its properties");
    return *raw_;
  }

  // The following methods are calls to torch, through Python.
// Those of CROSSCHECK_METHODS_ are also functions of torch.
#define CROSSCHECK_METHODS_(_)                                                                                  \
  _(clone) _(detach) _(t) _(transpose) _(unsqueeze) _(squeeze) _(flatten) _(select) _(narrow)    \
  _(sum) _(mean) _(prod) _(norm) _(var) _(cumsum) _(any) _(all) _(argmax) _(argmin) _(nonzero) _(softmax)        \
  _(log_softmax) _(abs) _(exp) _(log) _(sqrt) _(rsqrt) _(neg) _(sigmoid) _(tanh) _(relu) _(floor) _(ceil)        \
  _(round) _(clamp) _(clamp_min) _(clamp_max) _(add) _(sub) _(mul) _(div) _(pow) _(maximum) _(minimum) _(eq)     \
  _(ne) _(lt) _(le) _(gt) _(ge) _(logical_not) _(logical_and) _(where) _(isnan) _(mm) _(bmm) _(matmul) _(addmm)   \
  _(gather) _(scatter) _(index_select) _(masked_fill) _(masked_select) _(bernoulli) _(triu) _(tril) _(flip) _(roll)            \
  _(sin) _(cos) _(erf) _(expm1) _(log1p) _(reciprocal) _(square) _(sign) _(trunc) _(std) _(amax) _(amin)           \
  _(logsumexp) _(cumprod) _(diagonal) _(swapaxes) _(mv) _(dot) _(outer) _(baddbmm) _(addcmul) _(logical_or)        \
  _(bitwise_and) _(bitwise_or) _(remainder) _(fmod) _(floor_divide) _(repeat_interleave) _(bincount) _(take)
#define CROSSCHECK_METHODS(_)                                                                                   \
  CROSSCHECK_METHODS_(_)                                                                                        \
  _(contiguous) _(cpu) _(cuda) _(to) _(slice) _(expand_as) _(view_as) _(reshape_as) _(type_as) _(zero_) _(fill_) \
  _(copy_) _(add_) _(sub_) _(mul_) _(div_) _(true_divide_) _(clamp_) _(neg_) _(exp_) _(sqrt_) _(relu_) _(masked_fill_)           \
  _(index_add_) _(index_copy_) _(scatter_) _(scatter_add_) _(addmm_) _(sigmoid_) _(tanh_)
#define CROSSCHECK_METHOD(name) \
  template <class... Argument>  \
  Tensor name(const Argument&... arguments) const;
  CROSSCHECK_METHODS(CROSSCHECK_METHOD)
#undef CROSSCHECK_METHOD
// These change the tensor's own shape, of all its copies.
#define CROSSCHECK_RESHAPING(_) _(squeeze_) _(unsqueeze_) _(transpose_) _(swapaxes_) _(t_)
#define CROSSCHECK_METHOD(name) \
  template <class... Argument>  \
  const Tensor& name(const Argument&... arguments) const;
  CROSSCHECK_RESHAPING(CROSSCHECK_METHOD)
#undef CROSSCHECK_METHOD
  const Tensor& resize_(IntArrayRef sizes) const;
  // For functions with an out: it gets the result's shape and values.
  const Tensor& become(const Tensor& result) const;
  Tensor to(const TensorOptions& options) const;
  template <class... Argument> std::tuple<Tensor, Tensor> sort(const Argument&... arguments) const;
  template <class... Argument> std::tuple<Tensor, Tensor> topk(const Argument&... arguments) const;
#define CROSSCHECK_OVER(_) _(sum) _(mean) _(amax) _(amin)
#define CROSSCHECK_METHOD(name) Tensor name(IntArrayRef dims, bool keepdim = false) const;
  CROSSCHECK_OVER(CROSSCHECK_METHOD)
#undef CROSSCHECK_METHOD
  Tensor flip(IntArrayRef dims) const;
  std::vector<Tensor> chunk(int64_t count, int64_t dim = 0) const;
  std::vector<Tensor> split(int64_t size, int64_t dim = 0) const;
  std::vector<Tensor> split(IntArrayRef sizes, int64_t dim = 0) const;
  std::vector<Tensor> unbind(int64_t dim = 0) const;
  std::tuple<Tensor, Tensor> max(int64_t dim, bool keepdim = false) const;
  std::tuple<Tensor, Tensor> min(int64_t dim, bool keepdim = false) const;
  Tensor repeat(IntArrayRef times) const;
  Tensor new_empty(IntArrayRef sizes, const TensorOptions& options = {}) const;
  Tensor new_zeros(IntArrayRef sizes, const TensorOptions& options = {}) const;
  Tensor index(const std::vector<indexing::TensorIndex>& at) const;
  Tensor index_put_(const std::vector<indexing::TensorIndex>& at, const Tensor& values) const;
  MemoryFormat suggest_memory_format() const {
    const bool last = is_contiguous(MemoryFormat::ChannelsLast) && !is_contiguous();
    return last ? MemoryFormat::ChannelsLast : MemoryFormat::Contiguous;
  }
  Tensor toType(ScalarType type) const;
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
inline Value value_of(const c10::Half& x) { return value(REAL, 0, float(x)); }
inline Value value_of(const c10::BFloat16& x) { return value(REAL, 0, float(x)); }
template <class T, class = std::enable_if_t<std::is_integral<T>::value>>
Value value_of(T x) {
  return value(INTEGER, x);
}
inline Value value_of(const at::Scalar& x) {
  return x.isFloatingPoint() ? value_of(x.toDouble()) : value_of(x.toLong());
}
inline Value value_of(c10::MemoryFormat format) { return value(FORMAT, static_cast<int>(format)); }
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
    if (options.memory_format_opt()) add(*options.memory_format_opt());
  }
  template <class T>
  void add(c10::ArrayRef<T> list) {
    values_.push_back(list_of(list));
  }
  template <class T>
  void add(const std::vector<T>& list) {
    values_.push_back(list_of(c10::ArrayRef<T>(list)));
  }
  Value ask(const char* name) const {
    Value result{};
    if (ask_python(name, values_.data(), static_cast<int>(values_.size()), &result)) throw PythonRaised();
    return result;
  }

 private:
  template <class T>
  Value list_of(c10::ArrayRef<T> list) {
    std::vector<Value> values;
    for (const T& x : list) values.push_back(element(x));
    lists_.push_front(std::move(values));
    return value(LIST, list.size(), 0, lists_.front().data());
  }
  template <class T>
  Value element(const T& x) {
    return value_of(x);
  }
  std::vector<Value> values_;
  std::forward_list<std::vector<Value>> lists_;
};

template <class... Argument>
CROSSCHECK_COLD Value ask(const char* name, const Argument&... argument) {
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

inline std::vector<at::Tensor> list_of(const Value& value) {
  std::vector<at::Tensor> list;
  for (int64_t i = 0; i < value.integer; ++i) list.push_back(tensor_of(static_cast<const Value*>(value.data)[i]));
  return list;
}

}  // namespace crosscheck_torch

namespace at {

#define CROSSCHECK_METHOD(name)                                                             \
  template <class... Argument>                                                              \
  Tensor Tensor::name(const Argument&... arguments) const {                                 \
    return crosscheck_torch::tensor_of(crosscheck_torch::ask(#name, *this, arguments...)); \
  }
#define CROSSCHECK_FUNCTION(name)                                  \
  template <class... Argument>                                     \
  Tensor name(const Tensor& t, const Argument&... arguments) {     \
    return t.name(arguments...);                                   \
  }                                                                \
  template <class... Argument>                                     \
  const Tensor& name##_out(const Tensor& out, const Tensor& t, const Argument&... arguments) { \
    return out.become(t.name(arguments...));                       \
  }
CROSSCHECK_METHODS(CROSSCHECK_METHOD)
CROSSCHECK_METHODS_(CROSSCHECK_FUNCTION)
#undef CROSSCHECK_METHOD
#undef CROSSCHECK_FUNCTION
#undef CROSSCHECK_METHODS
#undef CROSSCHECK_METHODS_

#define CROSSCHECK_METHOD(name)                                                                            \
  template <class... Argument>                                                                             \
  const Tensor& Tensor::name(const Argument&... arguments) const {                                         \
    *raw_ = crosscheck_torch::tensor_of(crosscheck_torch::ask(#name, *this, arguments...)).raw();          \
    return *this;                                                                                          \
  }
CROSSCHECK_RESHAPING(CROSSCHECK_METHOD)
#undef CROSSCHECK_METHOD
#undef CROSSCHECK_RESHAPING
inline const Tensor& Tensor::resize_(IntArrayRef sizes) const {
  *raw_ = crosscheck_torch::tensor_of(crosscheck_torch::ask("resize_", *this, sizes)).raw();
  return *this;
}

inline const Tensor& Tensor::become(const Tensor& result) const {
  if (sizes() != result.sizes()) resize_(result.sizes());
  copy_(result);
  return *this;
}

#define CROSSCHECK_METHOD(name)                                                                           \
  inline Tensor Tensor::name(IntArrayRef dims, bool keepdim) const {                                       \
    return crosscheck_torch::tensor_of(crosscheck_torch::ask(#name, *this, dims, keepdim));               \
  }                                                                                                       \
  inline Tensor name(const Tensor& t, IntArrayRef dims, bool keepdim = false) { return t.name(dims, keepdim); }
CROSSCHECK_OVER(CROSSCHECK_METHOD)
#undef CROSSCHECK_METHOD
#undef CROSSCHECK_OVER
inline Tensor Tensor::flip(IntArrayRef dims) const {
  return crosscheck_torch::tensor_of(crosscheck_torch::ask("flip", *this, dims));
}

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
inline Tensor Tensor::to(const TensorOptions& options) const {
  if (options.has_dtype() && options.has_device()) return to(options.device(), options.dtype());
  return options.has_dtype() ? to(options.dtype()) : to(options.device());
}
inline Tensor Tensor::toType(ScalarType type) const { return to(type); }
inline Tensor Tensor::repeat(IntArrayRef times) const {
  return ask_tensor(crosscheck_torch::ask("repeat", *this, times));
}
inline Tensor Tensor::new_empty(IntArrayRef sizes, const TensorOptions& others) const {
  return ask_tensor(crosscheck_torch::ask("empty", sizes, others.or_else(options())));
}
inline Tensor Tensor::new_zeros(IntArrayRef sizes, const TensorOptions& others) const {
  return ask_tensor(crosscheck_torch::ask("zeros", sizes, others.or_else(options())));
}
template <class... Argument>
std::tuple<Tensor, Tensor> Tensor::sort(const Argument&... arguments) const {
  return crosscheck_torch::pair_of(crosscheck_torch::ask("sort", *this, arguments...));
}
template <class... Argument>
std::tuple<Tensor, Tensor> Tensor::topk(const Argument&... arguments) const {
  return crosscheck_torch::pair_of(crosscheck_torch::ask("topk", *this, arguments...));
}
inline std::vector<Tensor> Tensor::chunk(int64_t count, int64_t dim) const {
  return crosscheck_torch::list_of(crosscheck_torch::ask("chunk", *this, count, dim));
}
inline std::vector<Tensor> Tensor::split(int64_t size, int64_t dim) const {
  return crosscheck_torch::list_of(crosscheck_torch::ask("split", *this, size, dim));
}
inline std::vector<Tensor> Tensor::split(IntArrayRef sizes, int64_t dim) const {
  return crosscheck_torch::list_of(crosscheck_torch::ask("split", *this, sizes, dim));
}
inline std::vector<Tensor> Tensor::unbind(int64_t dim) const {
  return crosscheck_torch::list_of(crosscheck_torch::ask("unbind", *this, dim));
}
inline std::tuple<Tensor, Tensor> Tensor::max(int64_t dim, bool keepdim) const {
  return crosscheck_torch::pair_of(crosscheck_torch::ask("max", *this, dim, keepdim));
}
inline std::tuple<Tensor, Tensor> Tensor::min(int64_t dim, bool keepdim) const {
  return crosscheck_torch::pair_of(crosscheck_torch::ask("min", *this, dim, keepdim));
}
inline Tensor Tensor::max() const { return ask_tensor(crosscheck_torch::ask("amax", *this)); }
inline Tensor Tensor::min() const { return ask_tensor(crosscheck_torch::ask("amin", *this)); }
inline Tensor Tensor::operator[](int64_t index) const { return select(int64_t(0), index); }
inline Scalar Tensor::item() const {
  const crosscheck_torch::Value value = crosscheck_torch::ask("item", *this);
  return value.kind == crosscheck_torch::REAL ? Scalar(value.real) : Scalar(value.integer);
}

inline Tensor operator-(const Tensor& a) { return a.neg(); }
#define CROSSCHECK_OPERATOR(op, name)                                                                  \
  inline Tensor operator op(const Tensor& a, const Tensor& b) { return a.name(b); }                    \
  inline Tensor operator op(const Tensor& a, const Scalar& b) { return a.name(b); }
CROSSCHECK_OPERATOR(+, add) CROSSCHECK_OPERATOR(-, sub) CROSSCHECK_OPERATOR(*, mul) CROSSCHECK_OPERATOR(/, div)
CROSSCHECK_OPERATOR(==, eq) CROSSCHECK_OPERATOR(!=, ne) CROSSCHECK_OPERATOR(<, lt) CROSSCHECK_OPERATOR(<=, le)
CROSSCHECK_OPERATOR(>, gt) CROSSCHECK_OPERATOR(>=, ge)
#undef CROSSCHECK_OPERATOR
#define CROSSCHECK_OPERATOR(op, name)                                                        \
  inline const Tensor& operator op(const Tensor& a, const Tensor& b) { a.name(b); return a; } \
  inline const Tensor& operator op(const Tensor& a, const Scalar& b) { a.name(b); return a; }
CROSSCHECK_OPERATOR(+=, add_) CROSSCHECK_OPERATOR(-=, sub_) CROSSCHECK_OPERATOR(*=, mul_) CROSSCHECK_OPERATOR(/=, div_)
#undef CROSSCHECK_OPERATOR
inline Tensor operator+(const Scalar& a, const Tensor& b) { return b.add(a); }
inline Tensor operator*(const Scalar& a, const Tensor& b) { return b.mul(a); }
inline Tensor operator-(const Scalar& a, const Tensor& b) { return b.neg().add(a); }
inline Tensor operator~(const Tensor& a) { return a.logical_not(); }
inline Tensor operator!(const Tensor& a) { return a.logical_not(); }

inline TensorOptions dtype(ScalarType type) { return TensorOptions(type); }
inline TensorOptions device(const c10::Device& device) { return TensorOptions(device); }

using TensorList = ArrayRef<Tensor>;

#define CROSSCHECK_K(k, name) constexpr ScalarType k = ScalarType::name;
CROSSCHECK_K(kHalf, Half) CROSSCHECK_K(kFloat16, Half) CROSSCHECK_K(kBFloat16, BFloat16)
CROSSCHECK_K(kFloat, Float) CROSSCHECK_K(kFloat32, Float) CROSSCHECK_K(kDouble, Double)
CROSSCHECK_K(kFloat64, Double) CROSSCHECK_K(kByte, Byte) CROSSCHECK_K(kUInt8, Byte) CROSSCHECK_K(kChar, Char)
CROSSCHECK_K(kInt8, Char) CROSSCHECK_K(kShort, Short) CROSSCHECK_K(kInt16, Short) CROSSCHECK_K(kInt, Int)
CROSSCHECK_K(kInt32, Int) CROSSCHECK_K(kLong, Long) CROSSCHECK_K(kInt64, Long) CROSSCHECK_K(kBool, Bool)
CROSSCHECK_K(kFloat8_e4m3fn, Float8_e4m3fn) CROSSCHECK_K(kFloat8_e5m2, Float8_e5m2)
#undef CROSSCHECK_K

}  // namespace at

namespace c10 {
using at::Scalar;
}  // namespace c10
namespace torch {
using namespace at;
namespace nn::functional {
struct PadFuncOptions {
  std::vector<int64_t> pad_;
  at::Scalar value_;
  explicit PadFuncOptions(std::vector<int64_t> pad) : pad_(std::move(pad)) {}
  PadFuncOptions& value(double x) {
    value_ = x;
    return *this;
  }
};
inline at::Tensor pad(const at::Tensor& x, const PadFuncOptions& options) {
  return at::ask_tensor(crosscheck_torch::ask("constant_pad_nd", x, options.pad_, options.value_));
}
}  // namespace nn::functional
}  // namespace torch
