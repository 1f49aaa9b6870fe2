// torch_on_cpu.h: replaces torch's C++ headers on the host target, for sources as for torch.utils.cpp_extension. It is
// included where a source includes torch/extension.h, ATen, c10 or pybind11. Nothing of torch is compiled: a tensor is
// a handle that Python knows, with its address, sizes and strides. All other functions of torch are calls to Python.
//   torch_on_cpu_types.h      errors, dtypes, devices, lists, options
//   torch_on_cpu_tensor.h     tensors
//   torch_on_cpu_functions.h  torch::zeros and similar functions
//   torch_on_cpu_indexing.h   slices and indices of tensors
//   torch_on_cpu_cuda.h       streams, guards, properties of the device, helpers of kernels
//   torch_on_cpu_macros.h     packed accessors, TORCH_CHECK, AT_DISPATCH
//   torch_on_cpu_module.h     PYBIND11_MODULE, TORCH_LIBRARY: the functions that Python calls
// Tensors claim to be on the GPU, because the same source expects them there.
#pragma once

#include "crosscheck.cuh"

#include <array>
#include <cassert>
#include <deque>
#include <forward_list>
#include <functional>
#include <initializer_list>
#include <iostream>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "torch_on_cpu_types.h"
#include "torch_on_cpu_tensor.h"
#include "torch_on_cpu_functions.h"
#include "torch_on_cpu_indexing.h"
#include "torch_on_cpu_cuda.h"
#include "torch_on_cpu_macros.h"
#include "torch_on_cpu_module.h"
