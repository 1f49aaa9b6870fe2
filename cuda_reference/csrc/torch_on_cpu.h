// torch_on_cpu.h: what wrappers in the manner of torch.utils.cpp_extension need of torch's C++ headers, for the host
// target. Included where a source includes torch/extension.h, ATen, c10 or pybind11. Nothing of torch is compiled:
// a tensor is a number that Python knows, with its address, sizes and strides, and what a wrapper asks of torch
// beyond these is asked of Python.
//   torch_on_cpu_types.h      errors, dtypes, devices, lists, options
//   torch_on_cpu_tensor.h     tensors
//   torch_on_cpu_functions.h  torch::zeros and its kin
//   torch_on_cpu_indexing.h   their parts by slices and indices
//   torch_on_cpu_cuda.h       streams, guards, properties of the device, helpers of kernels
//   torch_on_cpu_macros.h     packed accessors, TORCH_CHECK, AT_DISPATCH
//   torch_on_cpu_module.h     PYBIND11_MODULE, TORCH_LIBRARY: the functions that Python calls
// Tensors say that they are on the GPU, where the same source would have them.
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
