// torch_on_cpu_cuda.h: the parts of ATen/cuda and c10/cuda without tensors: streams, guards, properties of the device,
// helpers of kernels. Included by torch_on_cpu.h.
#pragma once

namespace at {

inline std::optional<c10::Device> device_of(const Tensor& t) {
  return t.defined() ? std::make_optional(t.device()) : std::nullopt;
}

// The type of a kernel's accumulator.
template <class T, bool> struct AccumulateType { using type = std::conditional_t<std::is_integral<T>::value, int64_t, T>; };
template <bool gpu> struct AccumulateType<c10::Half, gpu> { using type = float; };
template <bool gpu> struct AccumulateType<c10::BFloat16, gpu> { using type = float; };
template <> struct AccumulateType<float, false> { using type = double; };
template <class T, bool gpu> using acc_type = typename AccumulateType<T, gpu>::type;
template <class T> struct OpMathType { using type = T; };
template <> struct OpMathType<c10::Half> { using type = float; };
template <> struct OpMathType<c10::BFloat16> { using type = float; };
template <class T> using opmath_type = typename OpMathType<T>::type;

template <class T>
struct numeric_limits {
  static T lowest() { return std::numeric_limits<T>::lowest(); }
  static T max() { return std::numeric_limits<T>::max(); }
  static T lower_bound() { return std::is_integral<T>::value ? lowest() : T(-std::numeric_limits<T>::infinity()); }
  static T upper_bound() { return std::is_integral<T>::value ? max() : T(std::numeric_limits<T>::infinity()); }
};

template <class T> T ceil_div(T a, T b) { return (a + b - 1) / b; }

namespace cuda {
struct CUDAStream {
  operator cudaStream_t() const { return nullptr; }
  cudaStream_t stream() const { return nullptr; }
};
inline CUDAStream getCurrentCUDAStream(int = -1) { return {}; }
inline CUDAStream getDefaultCUDAStream(int = -1) { return {}; }
inline CUDAStream getStreamFromPool(bool = false, int = -1) { return {}; }
struct CUDAGuard {
  template <class Device> explicit CUDAGuard(const Device&) {}
  ~CUDAGuard() {}  // a user-provided destructor prevents warnings about unused variables
};
using OptionalCUDAGuard = CUDAGuard;
inline int current_device() { return 0; }
inline int device_count() { return 1; }
inline int MaybeSetDevice(int) { return 0; }
inline int ExchangeDevice(int) { return 0; }
inline cudaDeviceProp* getDeviceProperties(int device) {
  static cudaDeviceProp properties;
  cudaGetDeviceProperties(&properties, device);
  return &properties;
}
inline cudaDeviceProp* getCurrentDeviceProperties() { return getDeviceProperties(0); }
namespace detail {
inline bool canUse32BitIndexMath(const Tensor& t, int64_t most = 0x7FFFFFFF) { return t.numel() <= most; }
// A tensor for kernels that compute an element's offset from its linear index.
template <class T, class Index>
struct TensorInfo {
  T* data;
  Index sizes[25], strides[25];
  int dims;
};
template <class T, class Index>
TensorInfo<T, Index> getTensorInfo(const Tensor& t) {
  TensorInfo<T, Index> info{t.data_ptr<T>(), {}, {}, static_cast<int>(t.dim())};
  std::copy(t.sizes().begin(), t.sizes().end(), info.sizes);
  std::copy(t.strides().begin(), t.strides().end(), info.strides);
  return info;
}
template <class T, class Index, int>
struct IndexToOffset {
  static Index get(Index linear, const TensorInfo<T, Index>& info) {
    Index offset = 0;
    for (int i = info.dims - 1; i >= 0; --i) {
      offset += linear % info.sizes[i] * info.strides[i];
      linear /= info.sizes[i];
    }
    return offset;
  }
};
}  // namespace detail
inline int warp_size() { return 32; }
template <class T> T ATenCeilDiv(T a, T b) { return ceil_div(a, b); }
}  // namespace cuda
using DeviceGuard = cuda::CUDAGuard;
using OptionalDeviceGuard = cuda::CUDAGuard;
inline cuda::CUDAGuard device_guard(const Tensor& t) { return cuda::CUDAGuard(t.device()); }

struct NoGradGuard {
  ~NoGradGuard() {}
};

}  // namespace at

namespace c10 {
using at::DeviceGuard;
using at::OptionalDeviceGuard;
namespace cuda {
using namespace at::cuda;
}
}  // namespace c10
namespace torch {
using at::DeviceGuard;
using at::NoGradGuard;
template <class Function> Function wrap_pybind_function(Function function) { return function; }
}

// ---- Helpers of kernels ------------------------------------------------------------------------------------

#define C10_HOST_DEVICE
#define C10_DEVICE
#define C10_HOST
#define C10_RESTRICT __restrict__
#define C10_LAUNCH_BOUNDS_0
#define C10_LAUNCH_BOUNDS_1(...)
#define C10_LAUNCH_BOUNDS_2(...)
#define C10_WARP_SIZE 32
#define CUDA_KERNEL_LOOP_TYPE(i, n, type)                                                \
  int64_t crosscheck_next = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;              \
  for (type i = crosscheck_next; crosscheck_next < (n);                                  \
       crosscheck_next += int64_t(blockDim.x) * gridDim.x, i = crosscheck_next)
#define CUDA_KERNEL_LOOP(i, n) CUDA_KERNEL_LOOP_TYPE(i, n, int)

template <class T, class V> T gpuAtomicAdd(T* address, V value) { return atomicAdd(address, value); }
template <class T, class V> void gpuAtomicAddNoReturn(T* address, V value) { atomicAdd(address, value); }
template <class T, class V> T gpuAtomicMax(T* address, V value) { return atomicMax(address, value); }
template <class T, class V> T gpuAtomicMin(T* address, V value) { return atomicMin(address, value); }

template <class T>
T WARP_SHFL(T value, int source, int width = 32, unsigned mask = 0xFFFFFFFFu, CUDA_ON_CPU_LINE) {
  return __shfl_sync(mask, value, source, width, line);
}
template <class T>
T WARP_SHFL_XOR(T value, int bits, int width = 32, unsigned mask = 0xFFFFFFFFu, CUDA_ON_CPU_LINE) {
  return __shfl_xor_sync(mask, value, bits, width, line);
}
template <class T>
T WARP_SHFL_UP(T value, unsigned delta, int width = 32, unsigned mask = 0xFFFFFFFFu, CUDA_ON_CPU_LINE) {
  return __shfl_up_sync(mask, value, delta, width, line);
}
template <class T>
T WARP_SHFL_DOWN(T value, unsigned delta, int width = 32, unsigned mask = 0xFFFFFFFFu, CUDA_ON_CPU_LINE) {
  return __shfl_down_sync(mask, value, delta, width, line);
}
inline unsigned WARP_BALLOT(int p, unsigned mask = 0xFFFFFFFFu, CUDA_ON_CPU_LINE) { return __ballot_sync(mask, p, line); }
