// torch_on_cpu_macros.h: packed accessors, TORCH_CHECK, AT_DISPATCH. Included by torch_on_cpu.h.
#pragma once

namespace at {

// ---- Packed accessors --------------------------------------------------------------------------------------

template <class T> struct RestrictPtrTraits { using PtrType = T* __restrict__; };

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

template <class T, size_t N>
TensorAccessor<T, N, int64_t> Tensor::accessor() const {
  if (dim() != N) throw c10::Error(c10::str("expected ", N, " dims but tensor has ", dim()));
  return {data_ptr<T>(), raw().size, raw().stride};
}
template <class T, size_t N, template <class> class Pointer, class Index>
PackedTensorAccessor<T, N, Pointer, Index> Tensor::packed_accessor() const {
  return PackedTensorAccessor<T, N, Pointer, Index>(*this);
}
template <class T, size_t N, template <class> class Pointer>
PackedTensorAccessor<T, N, Pointer, int32_t> Tensor::packed_accessor32() const {
  return PackedTensorAccessor<T, N, Pointer, int32_t>(*this);
}
template <class T, size_t N, template <class> class Pointer>
PackedTensorAccessor<T, N, Pointer, int64_t> Tensor::packed_accessor64() const {
  return PackedTensorAccessor<T, N, Pointer, int64_t>(*this);
}

}  // namespace at
namespace torch {
using namespace at;
}  // namespace torch

// ---- Checks ------------------------------------------------------------------------------------------------

// As in torch, a statement that needs no semicolon after it.
#define CROSSCHECK_CHECK(kind, condition, ...)                                                          \
  if (!(condition)) {                                                                                   \
    const std::string told = c10::str(__VA_ARGS__);                                                     \
    throw kind(told.empty() ? "Expected " #condition " to be true, but got false." : told);             \
  }
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
#define AT_ASSERTM(condition, ...) do { TORCH_CHECK(condition, __VA_ARGS__) } while (false)
#define AT_ASSERT(condition, ...) do { TORCH_CHECK(condition, __VA_ARGS__) } while (false)
#define AT_ERROR(...) do { TORCH_CHECK(false, __VA_ARGS__) } while (false)
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
template <c10::ScalarType type> struct TypeOf;
#define CROSSCHECK_TYPE(T, name) \
  template <> struct TypeOf<c10::ScalarType::name> { using Type = T; };
CROSSCHECK_TYPE(c10::Half, Half) CROSSCHECK_TYPE(c10::BFloat16, BFloat16) CROSSCHECK_TYPE(float, Float)
CROSSCHECK_TYPE(double, Double) CROSSCHECK_TYPE(uint8_t, Byte) CROSSCHECK_TYPE(int8_t, Char)
CROSSCHECK_TYPE(int16_t, Short) CROSSCHECK_TYPE(int, Int) CROSSCHECK_TYPE(int64_t, Long) CROSSCHECK_TYPE(bool, Bool)
#undef CROSSCHECK_TYPE
}  // namespace crosscheck_torch

#define AT_DISPATCH_SWITCH(type, name, ...)                                                          \
  [&] {                                                                                              \
    const c10::ScalarType crosscheck_type = type;                                                    \
    switch (crosscheck_type) {                                                                       \
      __VA_ARGS__                                                                                    \
      default: throw c10::Error(c10::str('"', name, "\" not implemented for '", crosscheck_type, "'")); \
    }                                                                                                \
  }()
#define AT_PRIVATE_CASE_TYPE_USING_HINT(type, hint, ...)                              \
  case type: {                                                                        \
    using hint [[maybe_unused]] = crosscheck_torch::TypeOf<type>::Type;               \
    return __VA_ARGS__();                                                             \
  }
#define AT_DISPATCH_CASE(type, ...) AT_PRIVATE_CASE_TYPE_USING_HINT(type, scalar_t, __VA_ARGS__)
#define AT_DISPATCH_CASE_FLOATING_TYPES(...) \
  AT_DISPATCH_CASE(c10::ScalarType::Double, __VA_ARGS__) AT_DISPATCH_CASE(c10::ScalarType::Float, __VA_ARGS__)
#define AT_DISPATCH_CASE_REDUCED_FLOATING_TYPES(...) \
  AT_DISPATCH_CASE(c10::ScalarType::Half, __VA_ARGS__) AT_DISPATCH_CASE(c10::ScalarType::BFloat16, __VA_ARGS__)
#define AT_DISPATCH_CASE_INTEGRAL_TYPES(...)                                                                    \
  AT_DISPATCH_CASE(c10::ScalarType::Byte, __VA_ARGS__) AT_DISPATCH_CASE(c10::ScalarType::Char, __VA_ARGS__)     \
  AT_DISPATCH_CASE(c10::ScalarType::Int, __VA_ARGS__) AT_DISPATCH_CASE(c10::ScalarType::Long, __VA_ARGS__)      \
  AT_DISPATCH_CASE(c10::ScalarType::Short, __VA_ARGS__)
#define AT_DISPATCH_CASE_ALL_TYPES(...) \
  AT_DISPATCH_CASE_INTEGRAL_TYPES(__VA_ARGS__) AT_DISPATCH_CASE_FLOATING_TYPES(__VA_ARGS__)
#define CROSSCHECK_CASES_AND(CASES, a, ...) CASES(__VA_ARGS__) AT_DISPATCH_CASE(a, __VA_ARGS__)
#define CROSSCHECK_CASES_AND2(CASES, a, b, ...) \
  CROSSCHECK_CASES_AND(CASES, a, __VA_ARGS__) AT_DISPATCH_CASE(b, __VA_ARGS__)
#define CROSSCHECK_CASES_AND3(CASES, a, b, c, ...) \
  CROSSCHECK_CASES_AND2(CASES, a, b, __VA_ARGS__) AT_DISPATCH_CASE(c, __VA_ARGS__)

#define CROSSCHECK_CASES_AND4(CASES, a, b, c, d, ...) \
  CROSSCHECK_CASES_AND3(CASES, a, b, c, __VA_ARGS__) AT_DISPATCH_CASE(d, __VA_ARGS__)

#define AT_DISPATCH_FLOATING_TYPES(type, name, ...) \
  AT_DISPATCH_SWITCH(type, name, AT_DISPATCH_CASE_FLOATING_TYPES(__VA_ARGS__))
#define AT_DISPATCH_REDUCED_FLOATING_TYPES(type, name, ...) \
  AT_DISPATCH_SWITCH(type, name, AT_DISPATCH_CASE_REDUCED_FLOATING_TYPES(__VA_ARGS__))
#define AT_DISPATCH_INTEGRAL_TYPES(type, name, ...) \
  AT_DISPATCH_SWITCH(type, name, AT_DISPATCH_CASE_INTEGRAL_TYPES(__VA_ARGS__))
#define AT_DISPATCH_ALL_TYPES(type, name, ...) \
  AT_DISPATCH_SWITCH(type, name, AT_DISPATCH_CASE_ALL_TYPES(__VA_ARGS__))
#define AT_DISPATCH_FLOATING_TYPES_AND_HALF(type, name, ...) \
  AT_DISPATCH_FLOATING_TYPES_AND(c10::ScalarType::Half, type, name, __VA_ARGS__)
#define AT_DISPATCH_FLOATING_TYPES_AND(a, type, name, ...) \
  AT_DISPATCH_SWITCH(type, name, CROSSCHECK_CASES_AND(AT_DISPATCH_CASE_FLOATING_TYPES, a, __VA_ARGS__))
#define AT_DISPATCH_FLOATING_TYPES_AND2(a, b, type, name, ...) \
  AT_DISPATCH_SWITCH(type, name, CROSSCHECK_CASES_AND2(AT_DISPATCH_CASE_FLOATING_TYPES, a, b, __VA_ARGS__))
#define AT_DISPATCH_FLOATING_TYPES_AND3(a, b, c, type, name, ...) \
  AT_DISPATCH_SWITCH(type, name, CROSSCHECK_CASES_AND3(AT_DISPATCH_CASE_FLOATING_TYPES, a, b, c, __VA_ARGS__))
#define AT_DISPATCH_ALL_TYPES_AND(a, type, name, ...) \
  AT_DISPATCH_SWITCH(type, name, CROSSCHECK_CASES_AND(AT_DISPATCH_CASE_ALL_TYPES, a, __VA_ARGS__))
#define AT_DISPATCH_ALL_TYPES_AND2(a, b, type, name, ...) \
  AT_DISPATCH_SWITCH(type, name, CROSSCHECK_CASES_AND2(AT_DISPATCH_CASE_ALL_TYPES, a, b, __VA_ARGS__))
#define AT_DISPATCH_ALL_TYPES_AND3(a, b, c, type, name, ...) \
  AT_DISPATCH_SWITCH(type, name, CROSSCHECK_CASES_AND3(AT_DISPATCH_CASE_ALL_TYPES, a, b, c, __VA_ARGS__))
#define AT_DISPATCH_FLOATING_TYPES_AND4(a, b, c, d, type, name, ...) \
  AT_DISPATCH_SWITCH(type, name, CROSSCHECK_CASES_AND4(AT_DISPATCH_CASE_FLOATING_TYPES, a, b, c, d, __VA_ARGS__))
#define AT_DISPATCH_ALL_TYPES_AND4(a, b, c, d, type, name, ...) \
  AT_DISPATCH_SWITCH(type, name, CROSSCHECK_CASES_AND4(AT_DISPATCH_CASE_ALL_TYPES, a, b, c, d, __VA_ARGS__))
// There are no complex tensors here, so these dispatch on the other types only.
#define AT_DISPATCH_FLOATING_AND_COMPLEX_TYPES(...) AT_DISPATCH_FLOATING_TYPES(__VA_ARGS__)
#define AT_DISPATCH_FLOATING_AND_COMPLEX_TYPES_AND1(...) AT_DISPATCH_FLOATING_TYPES_AND(__VA_ARGS__)
#define AT_DISPATCH_FLOATING_AND_COMPLEX_TYPES_AND2(...) AT_DISPATCH_FLOATING_TYPES_AND2(__VA_ARGS__)
#define AT_DISPATCH_FLOATING_AND_COMPLEX_TYPES_AND3(...) AT_DISPATCH_FLOATING_TYPES_AND3(__VA_ARGS__)
#define AT_DISPATCH_ALL_TYPES_AND_COMPLEX(...) AT_DISPATCH_ALL_TYPES(__VA_ARGS__)
#define AT_DISPATCH_ALL_TYPES_AND_COMPLEX_AND(...) AT_DISPATCH_ALL_TYPES_AND(__VA_ARGS__)
#define AT_DISPATCH_ALL_TYPES_AND_COMPLEX_AND2(...) AT_DISPATCH_ALL_TYPES_AND2(__VA_ARGS__)
#define AT_DISPATCH_ALL_TYPES_AND_COMPLEX_AND3(...) AT_DISPATCH_ALL_TYPES_AND3(__VA_ARGS__)
#define AT_DISPATCH_INDEX_TYPES(type, name, ...)                                          \
  AT_DISPATCH_SWITCH(type, name,                                                          \
                     AT_PRIVATE_CASE_TYPE_USING_HINT(c10::ScalarType::Int, index_t, __VA_ARGS__) \
                         AT_PRIVATE_CASE_TYPE_USING_HINT(c10::ScalarType::Long, index_t, __VA_ARGS__))
