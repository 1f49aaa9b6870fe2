// cuda_on_cpu_runtime.h: functions of CUDA's runtime that launchers and wrappers call, other than the launch itself.
// Launches are synchronous here; streams and events do nothing. Included by cuda_on_cpu.h.
#pragma once

// Hidden: a process may also hold the real libcudart, with which these must not be confused.
#define CUDA_ON_CPU_RUNTIME CUDA_ON_CPU_ONCE __attribute__((visibility("hidden")))

extern "C" {
CUDA_ON_CPU_RUNTIME cudaError_t cudaPeekAtLastError() { return cuda_on_cpu::last_error; }
CUDA_ON_CPU_RUNTIME cudaError_t cudaGetLastError() {
  const cudaError_t error = cuda_on_cpu::last_error;
  cuda_on_cpu::last_error = cudaSuccess;
  return error;
}
CUDA_ON_CPU_RUNTIME const char* cudaGetErrorString(cudaError_t error) {
  if (error == cudaSuccess) return "no error";
  if (error == cuda_on_cpu::told_error) return cuda_on_cpu::told.chars;
  if (error == cudaErrorInvalidValue) return "invalid argument";
  return "an error that the host target did not raise";
}
CUDA_ON_CPU_RUNTIME cudaError_t cudaDeviceSynchronize() { return cudaPeekAtLastError(); }
CUDA_ON_CPU_RUNTIME cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaPeekAtLastError(); }
CUDA_ON_CPU_RUNTIME cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
CUDA_ON_CPU_RUNTIME cudaError_t cudaSetDevice(int) { return cudaSuccess; }
// The attributes of an H100, against which launches are checked.
CUDA_ON_CPU_RUNTIME cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount: *value = 132; break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrMaxThreadsPerBlock: *value = 1024; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = 2048; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = 48 * 1024; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = 227 * 1024; break;
    case cudaDevAttrComputeCapabilityMajor: *value = 9; break;
    case cudaDevAttrComputeCapabilityMinor: *value = 0; break;
    default: return cudaErrorInvalidValue;
  }
  return cudaSuccess;
}
CUDA_ON_CPU_RUNTIME cudaError_t cudaGetDeviceProperties(cudaDeviceProp* of, int) {
  *of = cudaDeviceProp();
  strcpy(of->name, "the CPU, in the manner of an H100");
  of->major = 9;
  of->multiProcessorCount = 132;
  of->warpSize = 32;
  of->maxThreadsPerBlock = 1024;
  of->maxThreadsPerMultiProcessor = 2048;
  of->sharedMemPerBlock = 48 * 1024;
  of->sharedMemPerBlockOptin = 227 * 1024;
  of->sharedMemPerMultiprocessor = 228 * 1024;
  of->regsPerBlock = of->regsPerMultiprocessor = 65536;
  of->l2CacheSize = 50 << 20;
  of->totalGlobalMem = size_t(80) << 30;
  of->maxGridSize[0] = 0x7FFFFFFF;
  of->maxGridSize[1] = of->maxGridSize[2] = 65535;
  of->maxThreadsDim[0] = of->maxThreadsDim[1] = 1024;
  of->maxThreadsDim[2] = 64;
  return cudaSuccess;
}
CUDA_ON_CPU_RUNTIME cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
CUDA_ON_CPU_RUNTIME const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaSuccess ? "cudaSuccess" : cudaGetErrorString(error);
}
CUDA_ON_CPU_RUNTIME cudaError_t cudaDeviceReset() { return cudaSuccess; }
CUDA_ON_CPU_RUNTIME cudaError_t cudaProfilerStart() { return cudaSuccess; }
CUDA_ON_CPU_RUNTIME cudaError_t cudaProfilerStop() { return cudaSuccess; }
CUDA_ON_CPU_RUNTIME cudaError_t cudaSetDeviceFlags(unsigned) { return cudaSuccess; }
CUDA_ON_CPU_RUNTIME cudaError_t cudaDeviceSetLimit(cudaLimit, size_t) { return cudaSuccess; }
CUDA_ON_CPU_RUNTIME cudaError_t cudaDeviceSetCacheConfig(cudaFuncCache) { return cudaSuccess; }
CUDA_ON_CPU_RUNTIME cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
CUDA_ON_CPU_RUNTIME cudaError_t cudaRuntimeGetVersion(int* version) { return cudaDriverGetVersion(version); }
// Streams and events are null; the time between events is 0.
CUDA_ON_CPU_RUNTIME cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  *stream = nullptr;
  return cudaSuccess;
}
CUDA_ON_CPU_RUNTIME cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  return cudaStreamCreate(stream);
}
CUDA_ON_CPU_RUNTIME cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  return cudaStreamCreate(stream);
}
CUDA_ON_CPU_RUNTIME cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = *greatest = 0;
  return cudaSuccess;
}
CUDA_ON_CPU_RUNTIME cudaError_t cudaStreamQuery(cudaStream_t) { return cudaPeekAtLastError(); }
CUDA_ON_CPU_RUNTIME cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
CUDA_ON_CPU_RUNTIME cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }
CUDA_ON_CPU_RUNTIME cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = nullptr;
  return cudaSuccess;
}
CUDA_ON_CPU_RUNTIME cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) { return cudaEventCreate(event); }
CUDA_ON_CPU_RUNTIME cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
CUDA_ON_CPU_RUNTIME cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
CUDA_ON_CPU_RUNTIME cudaError_t cudaEventQuery(cudaEvent_t) { return cudaPeekAtLastError(); }
CUDA_ON_CPU_RUNTIME cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaPeekAtLastError(); }
CUDA_ON_CPU_RUNTIME cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
  *milliseconds = 0;
  return cudaSuccess;
}
CUDA_ON_CPU_RUNTIME cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  *pointer = nullptr;
  return bytes == 0 || posix_memalign(pointer, 256, bytes) == 0 ? cudaSuccess : cudaErrorMemoryAllocation;
}
CUDA_ON_CPU_RUNTIME cudaError_t cudaFree(void* pointer) {
  free(pointer);
  return cudaSuccess;
}
CUDA_ON_CPU_RUNTIME cudaError_t cudaMallocHost(void** pointer, size_t bytes) { return cudaMalloc(pointer, bytes); }
CUDA_ON_CPU_RUNTIME cudaError_t cudaFreeHost(void* pointer) { return cudaFree(pointer); }
CUDA_ON_CPU_RUNTIME cudaError_t cudaMallocManaged(void** pointer, size_t bytes, unsigned) {
  return cudaMalloc(pointer, bytes);
}
// The host's memory is the device's.
CUDA_ON_CPU_RUNTIME cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned) {
  return cudaMalloc(pointer, bytes);
}
CUDA_ON_CPU_RUNTIME cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned) {
  *device = host;
  return cudaSuccess;
}
CUDA_ON_CPU_RUNTIME cudaError_t cudaHostRegister(void*, size_t, unsigned) { return cudaSuccess; }
CUDA_ON_CPU_RUNTIME cudaError_t cudaHostUnregister(void*) { return cudaSuccess; }
CUDA_ON_CPU_RUNTIME cudaError_t cudaStreamAttachMemAsync(cudaStream_t, void*, size_t, unsigned) { return cudaSuccess; }
#if CUDART_VERSION >= 13000
CUDA_ON_CPU_RUNTIME cudaError_t cudaMemPrefetchAsync(const void*, size_t, cudaMemLocation, unsigned, cudaStream_t) {
  return cudaSuccess;
}
CUDA_ON_CPU_RUNTIME cudaError_t cudaMemAdvise(const void*, size_t, cudaMemoryAdvise, cudaMemLocation) {
  return cudaSuccess;
}
#else
CUDA_ON_CPU_RUNTIME cudaError_t cudaMemPrefetchAsync(const void*, size_t, int, cudaStream_t) { return cudaSuccess; }
CUDA_ON_CPU_RUNTIME cudaError_t cudaMemAdvise(const void*, size_t, cudaMemoryAdvise, int) { return cudaSuccess; }
#endif
CUDA_ON_CPU_RUNTIME cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *free = *total = size_t(80) << 30;
  return cudaSuccess;
}
CUDA_ON_CPU_RUNTIME cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  memcpy(to, from, bytes);
  return cudaSuccess;
}
CUDA_ON_CPU_RUNTIME cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                                                cudaStream_t) {
  memcpy(to, from, bytes);
  return cudaSuccess;
}
CUDA_ON_CPU_RUNTIME cudaError_t cudaMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                                             size_t width, size_t height, cudaMemcpyKind) {
  if (width > to_pitch || width > from_pitch) return cudaErrorInvalidPitchValue;
  for (size_t row = 0; row < height; ++row)
    memcpy(static_cast<char*>(to) + row * to_pitch, static_cast<const char*>(from) + row * from_pitch, width);
  return cudaSuccess;
}
CUDA_ON_CPU_RUNTIME cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                                                  size_t width, size_t height, cudaMemcpyKind kind, cudaStream_t) {
  return cudaMemcpy2D(to, to_pitch, from, from_pitch, width, height, kind);
}
CUDA_ON_CPU_RUNTIME cudaError_t cudaMallocPitch(void** pointer, size_t* pitch, size_t width, size_t height) {
  *pitch = (width + 511) / 512 * 512;
  return cudaMalloc(pointer, *pitch * height);
}
CUDA_ON_CPU_RUNTIME cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  memset(to, value, bytes);
  return cudaSuccess;
}
CUDA_ON_CPU_RUNTIME cudaError_t cudaMemset2D(void* to, size_t pitch, int value, size_t width, size_t height) {
  for (size_t row = 0; row < height; ++row) memset(static_cast<char*>(to) + row * pitch, value, width);
  return cudaSuccess;
}
CUDA_ON_CPU_RUNTIME cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t) {
  memset(to, value, bytes);
  return cudaSuccess;
}
}

template <class T>
cudaError_t cudaMalloc(T** pointer, size_t bytes) {
  return cudaMalloc(reinterpret_cast<void**>(pointer), bytes);
}
template <class T>
cudaError_t cudaMallocHost(T** pointer, size_t bytes, unsigned = 0) {
  return cudaMalloc(reinterpret_cast<void**>(pointer), bytes);
}
template <class T>
cudaError_t cudaHostAlloc(T** pointer, size_t bytes, unsigned) {
  return cudaMalloc(reinterpret_cast<void**>(pointer), bytes);
}
template <class T>
cudaError_t cudaHostGetDevicePointer(T** device, void* host, unsigned flags) {
  return cudaHostGetDevicePointer(reinterpret_cast<void**>(device), host, flags);
}
template <class T>
cudaError_t cudaMallocPitch(T** pointer, size_t* pitch, size_t width, size_t height) {
  return cudaMallocPitch(reinterpret_cast<void**>(pointer), pitch, width, height);
}
template <class T>
cudaError_t cudaStreamAttachMemAsync(cudaStream_t, T*, size_t = 0, unsigned = 0) {
  return cudaSuccess;
}
#if CUDART_VERSION >= 13000  // sources from before that give a device's number
inline cudaError_t cudaMemPrefetchAsync(const void*, size_t, int, cudaStream_t = nullptr) { return cudaSuccess; }
inline cudaError_t cudaMemAdvise(const void*, size_t, cudaMemoryAdvise, int) { return cudaSuccess; }
#endif
template <class T>
cudaError_t cudaMallocManaged(T** pointer, size_t bytes, unsigned = 0) {
  return cudaMalloc(reinterpret_cast<void**>(pointer), bytes);
}
template <class T>
cudaError_t cudaMallocAsync(T** pointer, size_t bytes, cudaStream_t) {
  return cudaMalloc(reinterpret_cast<void**>(pointer), bytes);
}
inline cudaError_t cudaFreeAsync(void* pointer, cudaStream_t) { return cudaFree(pointer); }
// A __constant__ or __device__ variable is an ordinary one here.
template <class T>
cudaError_t cudaMemcpyToSymbol(T& symbol, const void* from, size_t bytes, size_t offset = 0,
                               cudaMemcpyKind = cudaMemcpyHostToDevice) {
  memcpy(reinterpret_cast<char*>(&symbol) + offset, from, bytes);
  return cudaSuccess;
}
template <class T>
cudaError_t cudaMemcpyFromSymbol(void* to, const T& symbol, size_t bytes, size_t offset = 0,
                                 cudaMemcpyKind = cudaMemcpyDeviceToHost) {
  memcpy(to, reinterpret_cast<const char*>(&symbol) + offset, bytes);
  return cudaSuccess;
}
// As many blocks as threads and shared memory allow; registers are unknown here.
template <class Kernel>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, Kernel, int threads, size_t shared) {
  *blocks = std::min<size_t>({2048u / std::max(threads, 1), 32, 228 * 1024 / (shared + 1024)});
  return cudaSuccess;
}
template <class Kernel>
cudaError_t cudaOccupancyMaxPotentialBlockSize(int* grid, int* threads, Kernel, size_t = 0, int limit = 0) {
  *threads = limit ? std::min(limit, 1024) : 1024;
  *grid = 132 * (2048 / *threads);
  return cudaSuccess;
}
// kernel<<<...>>>() by the addresses of its arguments. A cooperative one cannot do more here.
template <class... T, size_t... I>
cudaError_t crosscheck_launch(void (*kernel)(T...), dim3 grid, dim3 block, void** arguments, size_t bytes,
                              std::index_sequence<I...>) {
  static_cast<void>(arguments);
  cuda_on_cpu::launch("cudaLaunchKernel", grid, block, bytes, nullptr,
                      cuda_on_cpu::Body([=] { kernel(*static_cast<std::remove_reference_t<T>*>(arguments[I])...); }));
  return cudaPeekAtLastError();
}
template <class... T>
cudaError_t cudaLaunchKernel(void (*kernel)(T...), dim3 grid, dim3 block, void** arguments, size_t bytes = 0,
                             cudaStream_t = nullptr) {
  return crosscheck_launch(kernel, grid, block, arguments, bytes, std::index_sequence_for<T...>());
}
template <class... T>
cudaError_t cudaLaunchCooperativeKernel(void (*kernel)(T...), dim3 grid, dim3 block, void** arguments, size_t bytes = 0,
                                        cudaStream_t = nullptr) {
  return cudaLaunchKernel(kernel, grid, block, arguments, bytes);
}
// The limit of shared memory is checked at the launch.
template <class Kernel>
cudaError_t cudaFuncSetAttribute(Kernel*, cudaFuncAttribute, int) {
  return cudaSuccess;
}
template <class Kernel>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* of, Kernel*) {
  *of = cudaFuncAttributes();
  of->maxThreadsPerBlock = 1024;
  of->binaryVersion = of->ptxVersion = 90;
  return cudaSuccess;
}
template <class Kernel>
cudaError_t cudaFuncSetCacheConfig(Kernel*, cudaFuncCache) {
  return cudaSuccess;
}
