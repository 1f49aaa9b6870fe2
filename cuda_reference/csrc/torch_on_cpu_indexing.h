// torch_on_cpu_indexing.h: indexing, as in x.index({Slice(1, 3), 0}). Included by torch_on_cpu.h.
#pragma once

namespace at {

namespace indexing {
constexpr std::nullopt_t None = std::nullopt;
constexpr const char* Ellipsis = "...";
using Bound = std::optional<int64_t>;
struct Slice {
  Bound start, stop, step;
  Slice(Bound from = {}, Bound to = {}, Bound by = {}) : start(from), stop(to), step(by) {}
};
class TensorIndex {
 public:
  TensorIndex(std::nullopt_t) {}
  TensorIndex(const char* ellipsis) : text(ellipsis) {}
  TensorIndex(const Slice& of) : slice(of) {}
  TensorIndex(const Tensor& where) : tensor(where) {}
  template <class T, class = std::enable_if_t<std::is_integral<T>::value>>
  TensorIndex(T at) : number(at) {}
  const char* text = nullptr;
  std::optional<Slice> slice;
  Bound number;
  Tensor tensor;
};
}  // namespace indexing

}  // namespace at

namespace crosscheck_torch {

template <>
CROSSCHECK_COLD inline Value Arguments::element(const at::indexing::TensorIndex& index) {
  if (index.text) return value_of(index.text);
  if (index.number) return value_of(*index.number);
  if (!index.slice) return value_of(index.tensor);
  std::vector<Value> bounds;
  for (const auto& bound : {index.slice->start, index.slice->stop, index.slice->step})
    bounds.push_back(bound ? value_of(*bound) : value(NONE));
  lists_.push_front(std::move(bounds));
  return value(LIST, 3, 0, lists_.front().data());
}

}  // namespace crosscheck_torch

namespace at {

inline Tensor Tensor::index(const std::vector<indexing::TensorIndex>& at) const {
  return ask_tensor(crosscheck_torch::ask("index", *this, at));
}
inline Tensor Tensor::index_put_(const std::vector<indexing::TensorIndex>& at, const Tensor& values) const {
  return ask_tensor(crosscheck_torch::ask("index_put_", *this, at, values));
}

}  // namespace at
