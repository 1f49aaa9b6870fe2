// cuda_on_cpu_runtime.h: the functions of CUDA's runtime that launchers and wrappers call beside the launch itself.
// Launches are synchronous here, streams and events nothing. Included by cuda_on_cpu.h.
#pragma once

// Hidden: a process may hold the real libcudart too, and these must not meet it.
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
// Of an H100, whose limits a launch is checked against.
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
CUDA_ON_CPU_RUNTIME cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  *pointer = nullptr;
  return bytes == 0 || posix_memalign(pointer, 256, bytes) == 0 ? cudaSuccess : cudaErrorMemoryAllocation;
}
CUDA_ON_CPU_RUNTIME cudaError_t cudaFree(void* pointer) {
  free(pointer);
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
CUDA_ON_CPU_RUNTIME cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  memset(to, value, bytes);
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
// How much shared memory a kernel may have is checked at its launch.
template <class Kernel>
cudaError_t cudaFuncSetAttribute(Kernel*, cudaFuncAttribute, int) {
  return cudaSuccess;
}
template <class Kernel>
cudaError_t cudaFuncSetCacheConfig(Kernel*, cudaFuncCache) {
  return cudaSuccess;
}
