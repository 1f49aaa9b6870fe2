// torch_on_cpu_macros.h: packed accessors, TORCH_CHECK, AT_DISPATCH. Included by torch_on_cpu.h.
#pragma once

namespace at {

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

}  // namespace at
namespace torch {
using namespace at;
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
