// torch_on_cpu_module.h: the functions that PYBIND11_MODULE and TORCH_LIBRARY export, and how Python calls them.
// Included by torch_on_cpu.h.
#pragma once

namespace crosscheck_torch {

// ---- Arguments and results ---------------------------------------------------------------------------------

struct Mismatch : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A parameter of type T: the type's name for messages, and the conversion of a value from Python.
template <class T, class = void>
struct Parameter {
  static_assert(sizeof(T) == 0, "no such parameter on the CPU: Tensor, numbers, bool, std::string, std::vector, "
                                "std::optional and ScalarType are known");
};

[[noreturn]] inline void mismatch(const char* expected) { throw Mismatch(expected); }

template <> struct Parameter<at::Tensor> {
  static std::string name() { return "Tensor"; }
  static at::Tensor from(const Value& v) {
    if (v.kind == NONE) return {};
    if (v.kind != TENSOR) mismatch("a tensor");
    return tensor_of(v);
  }
};
template <> struct Parameter<bool> {
  static std::string name() { return "bool"; }
  static bool from(const Value& v) {
    if (v.kind != BOOL) mismatch("a bool");
    return v.integer;
  }
};
template <class T> struct Parameter<T, std::enable_if_t<std::is_integral<T>::value && !std::is_same<T, bool>::value>> {
  static std::string name() { return "int"; }
  static T from(const Value& v) {
    if (v.kind != INTEGER && v.kind != BOOL) mismatch("an int");
    if (static_cast<int64_t>(static_cast<T>(v.integer)) != v.integer) mismatch("an int that fits");
    return static_cast<T>(v.integer);
  }
};
template <class T> struct Parameter<T, std::enable_if_t<std::is_floating_point<T>::value>> {
  static std::string name() { return "float"; }
  static T from(const Value& v) {
    if (v.kind != REAL && v.kind != INTEGER) mismatch("a float");
    return v.kind == REAL ? T(v.real) : T(v.integer);
  }
};
template <> struct Parameter<at::Scalar> {
  static std::string name() { return "Scalar"; }
  static at::Scalar from(const Value& v) {
    if (v.kind == REAL) return v.real;
    if (v.kind != INTEGER && v.kind != BOOL) mismatch("a number");
    return v.integer;
  }
};
template <> struct Parameter<std::string> {
  static std::string name() { return "str"; }
  static std::string from(const Value& v) {
    if (v.kind != TEXT) mismatch("a str");
    return static_cast<const char*>(v.data);
  }
};
template <> struct Parameter<std::string_view> : Parameter<std::string> {
  static std::string_view from(const Value& v) {
    if (v.kind != TEXT) mismatch("a str");
    return static_cast<const char*>(v.data);
  }
};
template <> struct Parameter<c10::ScalarType> {
  static std::string name() { return "dtype"; }
  static c10::ScalarType from(const Value& v) {
    if (v.kind != DTYPE) mismatch("a torch.dtype");
    return static_cast<c10::ScalarType>(v.integer);
  }
};
template <class T> struct Parameter<std::optional<T>> {
  static std::string name() { return "Optional[" + Parameter<T>::name() + "]"; }
  static std::optional<T> from(const Value& v) {
    if (v.kind == NONE) return std::nullopt;
    return Parameter<T>::from(v);
  }
};
template <class T> struct Parameter<std::vector<T>> {
  static std::string name() { return "List[" + Parameter<T>::name() + "]"; }
  static std::vector<T> from(const Value& v) {
    if (v.kind != LIST) mismatch("a list");
    std::vector<T> list;
    const Value* values = static_cast<const Value*>(v.data);
    for (int64_t i = 0; i < v.integer; ++i) list.push_back(Parameter<T>::from(values[i]));
    return list;
  }
};
template <class T> struct Parameter<c10::ArrayRef<T>> : Parameter<std::vector<T>> {};
template <class T, size_t N> struct Parameter<std::array<T, N>> {
  static std::string name() { return Parameter<std::vector<T>>::name(); }
  static std::array<T, N> from(const Value& v) {
    const std::vector<T> list = Parameter<std::vector<T>>::from(v);
    if (list.size() != N) mismatch(("a list of " + std::to_string(N)).c_str());
    std::array<T, N> result{};
    std::copy(list.begin(), list.end(), result.begin());
    return result;
  }
};
template <class... T> struct Parameter<std::tuple<T...>> {
  static std::string name() {  // without blanks: ", " stands between parameters
    std::string names;
    ((names += (names.empty() ? "" : ",") + Parameter<T>::name()), ...);
    return "Tuple[" + names + "]";
  }
  static std::tuple<T...> from(const Value& v) {
    if (v.kind != LIST || v.integer != sizeof...(T)) mismatch(("a tuple of " + std::to_string(sizeof...(T))).c_str());
    const Value* next = static_cast<const Value*>(v.data);
    return std::tuple<T...>{Parameter<T>::from(*next++)...};
  }
};
template <class A, class B> struct Parameter<std::pair<A, B>> : Parameter<std::tuple<A, B>> {
  static std::pair<A, B> from(const Value& v) {
    const std::tuple<A, B> both = Parameter<std::tuple<A, B>>::from(v);
    return {std::get<0>(both), std::get<1>(both)};
  }
};

// Keep results alive until the next call.
inline thread_local __attribute__((visibility("hidden"))) std::forward_list<std::vector<Value>> result_lists;
inline thread_local __attribute__((visibility("hidden"))) std::forward_list<std::string> result_texts;

template <class T> Value result_of(const std::vector<T>& list);
template <class T, size_t N> Value result_of(const std::array<T, N>& list);
template <class... T> Value result_of(const std::tuple<T...>& tuple);
template <class A, class B> Value result_of(const std::pair<A, B>& pair);
inline Value result_of(const std::string& text) {
  result_texts.push_front(text);
  return value_of(result_texts.front().c_str());
}
template <class T> auto result_of(const T& x) -> decltype(value_of(x)) { return value_of(x); }
template <class T> Value result_of(const std::optional<T>& x) { return x ? result_of(*x) : value(NONE); }
inline Value list_of(std::vector<Value> values, int kind = LIST) {
  result_lists.push_front(std::move(values));
  return value(kind, result_lists.front().size(), 0, result_lists.front().data());
}
template <class T> Value result_of(const std::vector<T>& list) {
  std::vector<Value> values;
  for (const T& x : list) values.push_back(result_of(x));
  return list_of(std::move(values));
}
template <class T, size_t N> Value result_of(const std::array<T, N>& list) {
  return result_of(std::vector<T>(list.begin(), list.end()));
}
template <class... T> Value result_of(const std::tuple<T...>& tuple) {
  return std::apply([](const auto&... x) { return list_of({result_of(x)...}, TUPLE); }, tuple);
}
template <class A, class B> Value result_of(const std::pair<A, B>& pair) {
  return result_of(std::tuple<A, B>(pair));
}

// The number of tensors that a function returns; -1 for a list.
template <class T> struct Tensors : std::integral_constant<int, 0> {};
template <> struct Tensors<at::Tensor> : std::integral_constant<int, 1> {};
template <class T> struct Tensors<std::optional<T>> : Tensors<T> {};
template <class T> struct Tensors<std::vector<T>> : std::integral_constant<int, Tensors<T>::value ? -1 : 0> {};
template <class T, size_t N> struct Tensors<std::array<T, N>> : Tensors<std::vector<T>> {};
template <class... T>
struct Tensors<std::tuple<T...>> : std::integral_constant<int, (0 + ... + Tensors<std::decay_t<T>>::value)> {};
template <class A, class B> struct Tensors<std::pair<A, B>> : Tensors<std::tuple<A, B>> {};
// A result's type in the schema of an operator.
template <class T> struct Returned {
  static std::string name() { return Parameter<T>::name(); }
};
template <> struct Returned<void> {
  static std::string name() { return "()"; }
};
template <> struct Returned<const char*> : Returned<std::string> {};
template <> struct Returned<c10::Device> : Returned<std::string> {};
template <class T, size_t N> struct Returned<std::array<T, N>> : Returned<std::vector<T>> {};
template <class... T> struct Returned<std::tuple<T...>> {
  static std::string name() {
    std::string names;
    ((names += (names.empty() ? "" : ", ") + Returned<std::decay_t<T>>::name()), ...);
    return "(" + names + ")";
  }
};
template <class A, class B> struct Returned<std::pair<A, B>> : Returned<std::tuple<A, B>> {};

// ---- Functions ---------------------------------------------------------------------------------------------

struct Function {
  std::string library, key, name, types, names, doc, tensors, returns;  // types and names are comma-separated
  std::vector<std::optional<Value>> defaults;
  bool missing = false;  // declared, but not defined
  int count = 0;
  std::function<Value(const Value*)> call;
};

// Pointers that are never deleted: libraries stay loaded until the process ends, and code that moves and destroys entries
// would take the compiler a second.
inline __attribute__((visibility("hidden"))) std::vector<Function*>& functions() {
  static std::vector<Function*> list;
  return list;
}
// Other exports of a module: ("schema", an operator's schema with its library), and attributes such as __doc__.
inline __attribute__((visibility("hidden"))) std::vector<std::pair<const char*, Value>>& said() {
  static std::vector<std::pair<const char*, Value>> list;
  return list;
}

// The type in which an argument is kept during the call: a vector for an ArrayRef, which only refers to its elements.
template <class T> struct KeptAs { using Type = T; };
template <class T> struct KeptAs<c10::ArrayRef<T>> { using Type = std::vector<T>; };
template <class T> using Kept = typename KeptAs<std::decay_t<T>>::Type;

template <class T> CROSSCHECK_COLD T nth(const Value* arguments, int i, const char* type) {
  try {
    return Parameter<T>::from(arguments[i]);
  } catch (const Mismatch& expected) {
    throw Mismatch("argument " + std::to_string(i) + " (" + type + ") must be " + expected.what());
  }
}

template <class Result, class... T, size_t... I>
CROSSCHECK_COLD Value called(Result (*function)(T...), const Value* arguments, std::index_sequence<I...>) {
  // Braces evaluate from left to right. The tuple holds values, to which the function's references can refer.
  std::tuple<Kept<T>...> values{nth<Kept<T>>(arguments, I, Parameter<Kept<T>>::name().c_str())...};
  static_cast<void>(arguments);
  if constexpr (std::is_void<Result>::value) {
    function(static_cast<T>(std::get<I>(values))...);
    return value(NONE);
  } else {
    return result_of(function(static_cast<T>(std::get<I>(values))...));
  }
}

template <class Result, class... T>
CROSSCHECK_COLD Function& described(Result (*function)(T...)) {
  Function& f = *new Function;
  functions().push_back(&f);
  f.count = sizeof...(T);
  ((f.types += (f.types.empty() ? "" : ", ") + Parameter<std::decay_t<T>>::name()), ...);
  f.missing = function == nullptr;
  f.tensors = std::to_string(Tensors<std::decay_t<Result>>::value);
  f.returns = Returned<std::decay_t<Result>>::name();
  f.call = [function](const Value* arguments) {
    return called(function, arguments, std::index_sequence_for<T...>());
  };
  return f;
}
template <class Callable>
Function& described(Callable callable) {
  return described(+callable);  // a lambda that captures nothing
}

// ---- Modules -----------------------------------------------------------------------------------------------

struct Argument {
  const char* name;
  std::optional<Value> initial;
  Argument(const char* n) : name(n) {}
  template <class T> Argument operator=(const T& x) const {
    Argument result(name);
    if constexpr (std::is_same<T, std::nullopt_t>::value || std::is_same<T, std::nullptr_t>::value)
      result.initial = value(NONE);
    else
      result.initial = result_of(x);
    return result;
  }
  Argument noconvert(bool = true) const { return *this; }
};

inline void extra(Function& f, const Argument& argument) {
  f.names += (f.names.empty() ? "" : ",") + std::string(argument.name);
  f.defaults.push_back(argument.initial);
}
inline void extra(Function& f, const char* doc) { f.doc = doc; }
inline void extra(Function& f, const std::string& doc) { f.doc = doc; }
template <class Other> void extra(Function&, const Other&) {}  // call_guard and others are ignored

class Module {
 public:
  explicit Module(const char* library, const char* key = "") : library_(library), key_(key) {}
  template <class Callable, class... Extra>
  CROSSCHECK_COLD Module& def(const char* name, Callable callable, const Extra&... extras) {
    Function& f = described(callable);
    f.library = library_;
    f.key = key_;
    if (std::string(name).find('(') != std::string::npos) def(name);
    f.name = std::string(name).substr(0, std::string(name).find('('));  // name may be a schema
    if (f.name.find("::") != std::string::npos) f.name = f.name.substr(f.name.find("::") + 2);
    (extra(f, extras), ...);
    return *this;
  }
  CROSSCHECK_COLD Module& def(const char* schema) {  // impl() may follow
    const std::string text(schema);
    said().emplace_back("schema", result_of(text.find("::") < text.find('(') ? text : library_ + ("::" + text)));
    return *this;
  }
  template <class Callable> Module& impl(const char* name, Callable callable) { return def(name, callable); }
  template <class Key, class Callable> Module& impl(const char* name, const Key&, Callable callable) {
    return def(name, callable);
  }
  struct Attribute {
    const char* name;
    template <class T> void operator=(const T& x) { said().emplace_back(name, result_of(std::decay_t<const T>(x))); }
  };
  Attribute attr(const char* name) { return {static_cast<const char*>(result_of(std::string(name)).data)}; }
  Attribute doc() { return attr("__doc__"); }

 private:
  const char *library_, *key_;
};

}  // namespace crosscheck_torch

#define CROSSCHECK_JOINED_(a, b) a##b
#define CROSSCHECK_JOINED(a, b) CROSSCHECK_JOINED_(a, b)
#define CROSSCHECK_MODULE(library, key, function, m)                                \
  static void function(crosscheck_torch::Module&);                                  \
  [[maybe_unused]] static const bool CROSSCHECK_JOINED(function, _registered) = [] { \
    crosscheck_torch::Module module(library, key);                                  \
    function(module);                                                               \
    return true;                                                                    \
  }();                                                                              \
  CROSSCHECK_COLD static void function([[maybe_unused]] crosscheck_torch::Module& m)
#define TORCH_EXTENSION_NAME extension
#define PYBIND11_MODULE(name, m, ...) CROSSCHECK_MODULE("", "", CROSSCHECK_JOINED(crosscheck_module_, __LINE__), m)
#define TORCH_LIBRARY(name, m) CROSSCHECK_MODULE(#name, "", CROSSCHECK_JOINED(crosscheck_module_, __LINE__), m)
#define TORCH_LIBRARY_FRAGMENT(name, m) TORCH_LIBRARY(name, m)
#define TORCH_LIBRARY_IMPL(name, key, m) CROSSCHECK_MODULE(#name, #key, CROSSCHECK_JOINED(crosscheck_module_, __LINE__), m)
// The older way to register operators: chained calls at namespace scope.
namespace torch {
class RegisterOperators {
 public:
  RegisterOperators() = default;
  template <class Callable> RegisterOperators(const std::string& schema, Callable callable) { op(schema, callable); }
  template <class Callable> CROSSCHECK_COLD RegisterOperators& op(const std::string& schema, Callable callable) {
    crosscheck_torch::Module(schema.substr(0, schema.find("::")).c_str()).def(schema.c_str(), callable);
    return *this;
  }
};
namespace jit {
using torch::RegisterOperators;
}
}  // namespace torch
#define TORCH_FN(function) (&function)
#define TORCH_BOX(function) (function)

namespace pybind11 {
using arg = crosscheck_torch::Argument;
using module = crosscheck_torch::Module;
using module_ = crosscheck_torch::Module;
struct gil_scoped_release {
  ~gil_scoped_release() {}  // a user-provided destructor prevents warnings about unused variables
};
template <class...> struct call_guard {};
inline const std::nullopt_t& none() { return std::nullopt; }
struct object {  // for attributes of the module
  crosscheck_torch::Value value;
};
template <class T> object cast(const T& x) { return {crosscheck_torch::result_of(x)}; }
inline crosscheck_torch::Value result_of(const object& x) { return x.value; }
namespace literals {
inline arg operator""_a(const char* name, size_t) { return name; }
}  // namespace literals
}  // namespace pybind11
namespace py = pybind11;

// The empty Python module that some sources define beside TORCH_LIBRARY.
struct PyObject;
struct PyModuleDef {
  int head;
  const char *name, *doc;
  long size;
  const void *methods, *slots, *traverse, *clear, *free;
};
#define PyModuleDef_HEAD_INIT 0
#define PyMODINIT_FUNC extern "C" PyObject*
inline PyObject* PyModule_Create(const PyModuleDef*) { return nullptr; }

// ---- Functions that Python calls ---------------------------------------------------------------------------

namespace crosscheck_torch {
inline thread_local __attribute__((visibility("hidden"))) std::string message;
enum Status : int { DONE, RAISED, MISMATCH, PYTHON_RAISED, FAILED };  // also in cuda_reference/_torch_calls.py

inline int guarded_call(const Function& function, const Value* arguments, Value* result) {
  at::known().clear();
  try {
    *result = function.call(arguments);
    return DONE;
  } catch (const PythonRaised&) {
    return PYTHON_RAISED;
  } catch (const Mismatch& error) {
    message = error.what();
    return MISMATCH;
  } catch (const c10::TypeError& error) {
    message = error.what();
    return MISMATCH;
  } catch (const std::exception& error) {
    message = error.what();
    return RAISED;
  }
}
}  // namespace crosscheck_torch

extern "C" {
CUDA_ON_CPU_ONCE int crosscheck_functions() { return static_cast<int>(crosscheck_torch::functions().size()); }
// A property of a function, by number: library, name, types, names of the arguments, doc, state, number of returned
// tensors, dispatch key, type of the result.
CUDA_ON_CPU_ONCE const char* crosscheck_function(int i, int what) {
  const crosscheck_torch::Function& f = *crosscheck_torch::functions()[i];
  static const std::string declared_only = "missing", here;
  const std::string* const texts[] = {
      &f.library, &f.name,    &f.types, &f.names,  &f.doc, f.missing ? &declared_only : &here,
      &f.tensors, &f.key,     &f.returns};
  return texts[what]->c_str();
}
CUDA_ON_CPU_ONCE const char* crosscheck_said(int i, crosscheck_torch::Value* result) {
  const auto& said = crosscheck_torch::said();
  if (i >= static_cast<int>(said.size())) return nullptr;
  *result = said[i].second;
  return said[i].first;
}
CUDA_ON_CPU_ONCE int crosscheck_default(int i, int argument, crosscheck_torch::Value* result) {
  const auto& defaults = crosscheck_torch::functions()[i]->defaults;
  if (argument >= static_cast<int>(defaults.size()) || !defaults[argument]) return 0;
  *result = *defaults[argument];
  return 1;
}
CUDA_ON_CPU_ONCE void crosscheck_operators(crosscheck_torch::Operator ask) { crosscheck_torch::ask_python = ask; }
// If a kernel failed, *status is CUDA's last error.
CUDA_ON_CPU_ONCE int crosscheck_call(int i, const crosscheck_torch::Value* arguments,
                                     crosscheck_torch::Value* result, int* status) {
  int how = crosscheck_torch::DONE;
  *status = cuda_on_cpu::surviving([&] {
    how = crosscheck_torch::guarded_call(*crosscheck_torch::functions()[i], arguments, result);
    return static_cast<int>(cudaGetLastError());
  });
  return how ? how : *status ? crosscheck_torch::FAILED : crosscheck_torch::DONE;
}
CUDA_ON_CPU_ONCE const char* crosscheck_message() { return crosscheck_torch::message.c_str(); }
}
