"""What CUDA C++ as people write it becomes for the host's compiler."""

from __future__ import annotations

import pytest

from cuda_reference._rewriting import Unsupported, rewritten


@pytest.mark.parametrize(
    ("written", "becomes"),
    [
        ("k<<<g, b>>>(x, n);", "CUDA_ON_CPU_LAUNCH((k), (g, b))(x, n);"),
        ("k<T, 4><<<g, b, 0, s>>>(x);", "CUDA_ON_CPU_LAUNCH((k<T, 4>), (g, b, 0, s))(x);"),
        ("a::k<B<C<1>>><<<1, 2>>>();", "CUDA_ON_CPU_LAUNCH((a::k<B<C<1>>>), (1, 2))();"),
        ("k<(A > 2)> <<<f(1, 2), b>>>(x);", "CUDA_ON_CPU_LAUNCH((k<(A > 2)>) , (f(1, 2), b))(x);"),
        ("(*table[i])<<<1, n>>>(x);", "CUDA_ON_CPU_LAUNCH(((*table[i])), (1, n))(x);"),
        ("return KERNEL(f)<<<1, 2>>>(x);", "return CUDA_ON_CPU_LAUNCH((KERNEL(f)), (1, 2))(x);"),
        ("p.k<<<1, 2>>>(x << 3);", "CUDA_ON_CPU_LAUNCH((p.k), (1, 2))(x << 3);"),
        ("k<<<1, sizeof(A<B<C<2>>>)>>>();", "CUDA_ON_CPU_LAUNCH((k), (1, sizeof(A<B<C<2>>>)))();"),
        ('s = "k<<<1, 2>>>(x)"; // k<<<1, 2>>>()', 's = "k<<<1, 2>>>(x)"; // k<<<1, 2>>>()'),
        ('R"(__shared__ int x;)" /* __shared__ int x; */;',
         'R"(__shared__ int x;)" /* __shared__ int x; */;'),
        ("a <<= b << 1'000;", "a <<= b << 1'000;"),
    ],
)  # fmt: skip
def test_launches(written: str, becomes: str) -> None:
    assert rewritten(f"void f() {{ {written}\n}}", "x.cu") == f"void f() {{ {becomes}\n}}"


@pytest.mark.parametrize(
    ("written", "becomes"),
    [
        ("__shared__ float s;", "SHARED(float, s, );"),
        ("static __shared__ T s[N + 1][2];", "SHARED(T, s, [N + 1][2]);"),
        ("__shared__ float a[8], *b, c;",
         "SHARED(float, a, [8]); SHARED(float*, b, ); SHARED(float, c, );"),
        ("__shared__ __align__(16) volatile unsigned int s[sizeof (int)];",
         "SHARED(unsigned int, s, [sizeof (int)]);"),
        ("float __shared__ s[4];", "SHARED(float, s, [4]);"),
        ("__shared__ Pair<int, 2> s;", "SHARED(cuda_on_cpu::Named<void(Pair < int , 2 >)>, s, );"),
        ("extern __shared__ half s[];", "DYNAMIC_SHARED(half, s);"),
        ("__shared__ union {\n int i; float f; } s;",
         "union Shared11 {\n int i; float f; }; SHARED(Shared11, s, );"),
        ("__shared__ struct Two { int a, b; } s, t[2];",
         "struct Two { int a, b; }; SHARED(Two, s, ); SHARED(Two, t, [2]);"),
        ("for (;;) { __shared__ int i; }", "for (;;) { SHARED(int, i, ); }"),
    ],
)  # fmt: skip
def test_shared_variables(written: str, becomes: str) -> None:
    assert rewritten(f"void f() {{ {written}\n}}", "x.cu") == f"void f() {{ {becomes}\n}}"


def test_a_dynamic_shared_array_of_the_file() -> None:
    becomes = "namespace a {\nstatic cuda_on_cpu::DynamicShared<int> s;\n}"
    assert rewritten("namespace a {\nextern __shared__ int s[];\n}", "x.cu") == becomes


def test_a_dynamic_shared_array_of_the_file_is_a_pointer_where_it_is_cast() -> None:
    text = "extern __shared__ char raw[];\n"
    text += "void f(char raw) { a = (T*)raw; b = cast<T*>(raw); c = cast<T&>(raw); g(raw); }"
    found = rewritten(text, "x.cu").split("\n")[1]
    casts = "a = (T*)(+raw); b = cast<T*>((+raw)); c = cast<T&>((*+raw));"
    assert found == f"void f(char raw) {{ {casts} g(raw); }}"


def test_macros_are_rewritten_where_they_are_defined() -> None:
    written = """\
#define RUN(tag, n)                 \\
  __shared__ int s_##tag[n];        \\
  kernel_##tag##2d_f32<n>           \\
      <<<grid, block>>>(x,          \\
                        y)
// __shared__ <<<
#define COPY(to) \\
  asm volatile("cp.async.wait_all;" \\
               ::"r"(to))
int last;
"""
    becomes = """\
#define RUN(tag, n)                 \\
  SHARED(int, s_##tag, [n]);        \\
  CUDA_ON_CPU_LAUNCH((kernel_##tag##2d_f32<n>)           \\
      , (grid, block))(x,          \\
                        y)
// __shared__ <<<
#define COPY(to) \\
  cuda_on_cpu::ptx(__LINE__, "cp.async.wait_all;", (to))\\

int last;
"""
    assert rewritten(written, "x.cu") == becomes


def test_a_statement_over_several_lines_keeps_them() -> None:
    written = "void f() {\n  __shared__\n    float a[2],\n    b;\n  k<<<1,\n    2>>>(a);\n}\n"
    becomes = rewritten(written, "x.cu")
    assert becomes.count("\n") == written.count("\n")
    assert becomes.splitlines()[4] == "  CUDA_ON_CPU_LAUNCH((k), (1,"


def test_functions_of_the_host_that_are_declared_only_may_be_missing() -> None:
    written = """\
MACRO(x)
dim3 grid(n * m, 1);
__device__ int on_device(int n);
void one(torch::Tensor x);
namespace a { at::Tensor two(int n = 3); }
static void three(torch::Tensor x);
void four(int n);
void five(torch::Tensor x) { torch::Tensor y(x); one(x); }
using F = void(torch::Tensor);
extern "C" int seven(float* x);
std::string eight();
void bind() { m.def("eight", &eight, "its version"); }
"""
    changed = [
        (before, after)
        for before, after in zip(written.splitlines(), rewritten(written, "x.cu").splitlines())
        if before != after
    ]
    weak, two = "__attribute__((weak))", "at::Tensor two(int n = 3); }"
    assert changed == [
        ("void one(torch::Tensor x);", f"{weak} void one(torch::Tensor x);"),
        (f"namespace a {{ {two}", f"namespace a {{ {weak} {two}"),
        ("void four(int n);", f"{weak} void four(int n);"),
        ('extern "C" int seven(float* x);', f'extern "C" {weak} int seven(float* x);'),
        ("std::string eight();", f"{weak} std::string eight();"),
    ]


def test_headers() -> None:
    written = '#include <torch/extension.h>\n#include <cuda_fp16.h>\n#  include "own.cuh"\n'
    becomes = rewritten(written, "x.cu", {"own.cuh": "header0_own.cuh"}.get)
    assert becomes.splitlines() == [
        '#include "torch_on_cpu.h"',
        "#include <cuda_fp16.h>",
        '#include "header0_own.cuh"',
    ]


def test_a_launch_with_blanks_is_one_and_a_warning() -> None:
    """As formatters that know no CUDA leave it, in a macro and outside. nvcc takes << < for <<<."""
    macro = "#define GO(n) k < < < grid, \\\n  n >>> (x);"
    written = f"{macro}\nvoid f() {{\n  k<T<U<1> > > < < <1, 2> > >(x);\n}}"
    with pytest.warns(UserWarning, match=r"x\.cu:[14]: nvcc refuses < << with a blank") as said:
        becomes = rewritten(written, "x.cu")
    assert len(said) == 2
    assert "CUDA_ON_CPU_LAUNCH((k) , ( grid, \\\n  n )) (x);" in becomes
    assert "CUDA_ON_CPU_LAUNCH((k<T<U<1> > >) , (1, 2))(x);" in becomes
    for taken in ("k<2> << <1, 2>> >(x);", "k<2><<<1, 2>> >(x);", "k<2> << <1, 2>>>(x);"):
        becomes = rewritten(f"void f() {{ {taken} }}", "x.cu")  # without a warning
        assert becomes.replace(" ", "") == "voidf(){CUDA_ON_CPU_LAUNCH((k<2>),(1,2))(x);}"
    assert rewritten("bool b = x < y, c = 1 << 2 < 3;", "x.cu") == "bool b = x < y, c = 1 << 2 < 3;"


def test_noinline_is_a_keyword_of_cudas() -> None:
    """A macro would change libstdc++'s own attributes."""
    written = "__device__ __noinline__ int f(); __attribute__((__noinline__)) int g();"
    noinline = "__attribute__((noinline))"
    assert rewritten(written, "x.cu") == written.replace("__noinline__", noinline, 1)


def test_directives_may_be_indented() -> None:
    written = "void f() {\n  #pragma unroll\n  #define GO k<<<1, 2>>>\n  GO(x);\n}\n"
    assert "  #define GO CUDA_ON_CPU_LAUNCH((k), (1, 2))\n" in rewritten(written, "x.cu")


def test_null_is_a_pointer_where_a_launch_passes_it_on() -> None:
    becomes = rewritten("void f() { k<<<1, 2>>>(x, NULL, g(NULL)); int* p = NULL; }", "x.cu")
    assert becomes.endswith("(x, nullptr, g(nullptr)); int* p = NULL; }")


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ("\n#include <cub/grid/grid_queue.cuh>\n", "x.cu:2: cub/grid/grid_queue.cuh: CUB has no"),
        ("#include <cub/cub.cuh>\nusing S = cub::GridQueue;", "x.cu:2: cub::GridQueue has no f"),
        ("#include <curand_kernel.h>\n", "x.cu:1: curand_kernel.h: cuRAND has no form for the"),
        ("#include <cuda/barrier>\n", r"x.cu:1: cuda/barrier: libcu\+\+ has no form for the CPU"),
        ("#include <cute/tensor.hpp>\n", "x.cu:1: cute/tensor.hpp: CuTe has no form for the CPU"),
        ("void f() {\n  k<<<1, 2(x);\n}", "x.cu:2: a <<< that no >>> closes"),
        ("void f() { __shared__ int i{1}; }", "x.cu:1: a __shared__ variable with an initial"),
    ],
)  # fmt: skip
def test_what_cannot_be_rewritten_is_named(written: str, says: str) -> None:
    with pytest.raises(Unsupported, match=says):
        rewritten(written, "x.cu")
