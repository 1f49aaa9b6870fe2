// torch_on_cpu_functions.h: functions of torch that make tensors, or differ from the method of the same name. Included
// by torch_on_cpu.h.
#pragma once

namespace at {

#define CROSSCHECK_NEW(name)                                                                          \
  inline Tensor name(IntArrayRef sizes, const TensorOptions& options = {}) {                          \
    return ask_tensor(crosscheck_torch::ask(#name, sizes, options));                                  \
  }                                                                                                   \
  inline Tensor name##_like(const Tensor& like, const TensorOptions& options = {}) {                  \
    return ask_tensor(crosscheck_torch::ask(#name "_like", like, options.or_else(like.options())));   \
  }
CROSSCHECK_NEW(empty)
CROSSCHECK_NEW(zeros)
CROSSCHECK_NEW(ones)
#undef CROSSCHECK_NEW
inline Tensor empty(IntArrayRef sizes, const TensorOptions& options, MemoryFormat format) {
  return empty(sizes, options.memory_format(format));
}
inline Tensor full(IntArrayRef sizes, const Scalar& value, const TensorOptions& options = {}) {
  return ask_tensor(crosscheck_torch::ask("full", sizes, value, options));
}
inline Tensor full_like(const Tensor& like, const Scalar& value, const TensorOptions& options = {}) {
  return ask_tensor(crosscheck_torch::ask("full_like", like, value, options.or_else(like.options())));
}
inline Tensor arange(const Scalar& start, const Scalar& end, const Scalar& step, const TensorOptions& options = {}) {
  const bool floating = start.isFloatingPoint() || end.isFloatingPoint() || step.isFloatingPoint();
  const ScalarType type = floating ? ScalarType::Float : ScalarType::Long;
  return ask_tensor(crosscheck_torch::ask("arange", start, end, step, options.or_else(type)));
}
inline Tensor arange(const Scalar& start, const Scalar& end, const TensorOptions& options = {}) {
  return arange(start, end, 1, options);
}
inline Tensor arange(const Scalar& end, const TensorOptions& options = {}) { return arange(0, end, options); }
inline Tensor linspace(const Scalar& start, const Scalar& end, int64_t steps, const TensorOptions& options = {}) {
  return ask_tensor(crosscheck_torch::ask("linspace", start, end, steps, options));
}
inline Tensor eye(int64_t n, const TensorOptions& options = {}) {
  return ask_tensor(crosscheck_torch::ask("eye", n, options));
}
inline Tensor rand(IntArrayRef sizes, const TensorOptions& options = {}) {
  return ask_tensor(crosscheck_torch::ask("rand", sizes, options));
}
inline Tensor randn(IntArrayRef sizes, const TensorOptions& options = {}) {
  return ask_tensor(crosscheck_torch::ask("randn", sizes, options));
}
inline Tensor scalar_tensor(const Scalar& value, const TensorOptions& options = {}) {
  return ask_tensor(crosscheck_torch::ask("full", IntArrayRef(), value, options));
}
template <class T>
Tensor tensor(ArrayRef<T> values, const TensorOptions& options = {}) {
  constexpr bool floating = std::is_floating_point<T>::value;
  constexpr ScalarType type = std::is_same<T, bool>::value ? ScalarType::Bool : floating ? ScalarType::Float : ScalarType::Long;
  return ask_tensor(crosscheck_torch::ask("tensor", values, options.or_else(type)));
}
template <class T>
Tensor tensor(std::initializer_list<T> values, const TensorOptions& options = {}) {
  return tensor(ArrayRef<T>(values), options);
}
template <class T>
Tensor tensor(const std::vector<T>& values, const TensorOptions& options = {}) {
  return tensor(ArrayRef<T>(values), options);
}
inline std::vector<Tensor> chunk(const Tensor& x, int64_t count, int64_t dim = 0) { return x.chunk(count, dim); }
inline std::vector<Tensor> split(const Tensor& x, int64_t size, int64_t dim = 0) { return x.split(size, dim); }
inline std::vector<Tensor> unbind(const Tensor& x, int64_t dim = 0) { return x.unbind(dim); }
template <class... Argument> auto max(const Tensor& x, Argument... dim) { return x.max(dim...); }
template <class... Argument> auto min(const Tensor& x, Argument... dim) { return x.min(dim...); }
template <class... Argument> auto sort(const Tensor& x, Argument... dim) { return x.sort(dim...); }
template <class... Argument> auto topk(const Tensor& x, Argument... k) { return x.topk(k...); }
inline Tensor cat(ArrayRef<Tensor> tensors, int64_t dim = 0) {
  return ask_tensor(crosscheck_torch::ask("cat", tensors, dim));
}
inline Tensor stack(ArrayRef<Tensor> tensors, int64_t dim = 0) {
  return ask_tensor(crosscheck_torch::ask("stack", tensors, dim));
}
inline Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {}) {
  const Tensor product = x.matmul(weight.transpose(-2, -1));
  return bias.defined() ? product.add(bias) : product;
}

// ---- Checks of arguments, with their names and places --------------------------------------------------------

using CheckedFrom = const char*;
struct TensorArg {
  Tensor tensor;
  const char* name;
  int pos;
  const Tensor* operator->() const { return &tensor; }
  const Tensor& operator*() const { return tensor; }
};
using TensorGeometryArg = TensorArg;
CROSSCHECK_COLD inline std::ostream& operator<<(std::ostream& out, const TensorArg& t) {
  return out << "argument #" << t.pos << " '" << t.name << "'";
}
template <class... Text>
CROSSCHECK_COLD void checked(CheckedFrom c, bool right, const Text&... text) {
  if (!right) throw c10::Error(c10::str(text..., " (while checking arguments for ", c, ")"));
}
inline void checkDefined(CheckedFrom c, const TensorArg& t) {
  checked(c, t->defined(), "Expected tensor for ", t, " to be non-null, but it was undefined ");
}
inline void checkDim(CheckedFrom c, const TensorArg& t, int64_t dim) {
  checked(c, t->dim() == dim, "Expected ", dim, "-dimensional tensor, but got ", t->dim(), "-dimensional tensor for ", t);
}
inline void checkDimRange(CheckedFrom c, const TensorArg& t, int64_t from, int64_t end) {
  checked(c, t->dim() >= from && t->dim() < end, "Expected ", from, " to ", end - 1, " dimensions, but got ", t->dim(),
          "-dimensional tensor for ", t);
}
inline void checkContiguous(CheckedFrom c, const TensorArg& t) {
  checked(c, t->is_contiguous(), "Expected contiguous tensor, but got non-contiguous tensor for ", t);
}
inline void checkNumel(CheckedFrom c, const TensorArg& t, int64_t numel) {
  checked(c, t->numel() == numel, "Expected tensor for ", t, " to have ", numel, " elements; but it actually has ",
          t->numel(), " elements");
}
inline void checkSize(CheckedFrom c, const TensorArg& t, IntArrayRef sizes) {
  checkDim(c, t, sizes.size());
  checked(c, t->sizes() == sizes, "Expected tensor of size ", sizes, ", but got tensor of size ", t->sizes(), " for ", t);
}
inline void checkSize(CheckedFrom c, const TensorArg& t, int64_t dim, int64_t size) {
  checked(c, t->size(dim) == size, "Expected tensor to have size ", size, " at dimension ", dim, ", but got size ",
          t->size(dim), " for ", t);
}
inline void checkScalarType(CheckedFrom c, const TensorArg& t, ScalarType type) {
  checked(c, t->scalar_type() == type, "Expected tensor for ", t, " to have scalar type ", type, "; but got ",
          t->scalar_type(), " instead");
}
inline void checkSameSize(CheckedFrom c, const TensorArg& a, const TensorArg& b) {
  checked(c, a->sizes() == b->sizes(), "Expected tensor for ", a, " to have same size as tensor for ", b, "; but ",
          a->sizes(), " does not equal ", b->sizes());
}
inline void checkSameType(CheckedFrom c, const TensorArg& a, const TensorArg& b) {
  checked(c, a->scalar_type() == b->scalar_type(), "Expected tensor for ", a, " to have the same type as tensor for ", b,
          "; but type ", a->scalar_type(), " does not equal ", b->scalar_type());
}
inline void checkSameGPU(CheckedFrom c, const TensorArg& a, const TensorArg& b) {
  for (const TensorArg* t : {&a, &b})
    checked(c, (*t)->is_cuda(), "Expected tensor for ", *t, " to be on the GPU, but it is on the CPU");
}
#define CROSSCHECK_ALL(name, check)                                                                        \
  inline void name(CheckedFrom c, ArrayRef<TensorArg> tensors) {                                           \
    for (const TensorArg& t : tensors) check(c, tensors.front(), t);                                        \
  }
CROSSCHECK_ALL(checkAllSameGPU, checkSameGPU)
CROSSCHECK_ALL(checkAllSameType, checkSameType)
CROSSCHECK_ALL(checkAllSameSize, checkSameSize)
CROSSCHECK_ALL(checkAllContiguous, [](CheckedFrom of, const TensorArg&, const TensorArg& t) { checkContiguous(of, t); })
CROSSCHECK_ALL(checkAllDefined, [](CheckedFrom of, const TensorArg&, const TensorArg& t) { checkDefined(of, t); })
#undef CROSSCHECK_ALL

// torch's settings, as Python has them.
struct Context {
  bool deterministicAlgorithms() const { return crosscheck_torch::ask("are_deterministic_algorithms_enabled").integer; }
  void alertNotDeterministic(c10::string_view) const {}  // on the CPU blocks run one after the other
};
inline Context& globalContext() {
  static Context context;
  return context;
}

}  // namespace at
namespace torch {
using namespace at;
}  // namespace torch
