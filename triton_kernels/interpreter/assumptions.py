"""The names in Triton that the interpreter requires."""

from __future__ import annotations

import functools

import triton
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction

from triton_kernels.interpreter.handles import upstream

_ESSENTIAL = {
    "FunctionRewriter": ("rewrite_ast", "_compile_and_exec"),
    "GridExecutor": ("_init_args_hst", "_restore_args_dev"),
    "InterpretedFunction": ("run", "__call__"),
    "InterpreterBuilder": ("set_grid_dim", "set_grid_idx"),
    "TensorHandle": ("get_element_ty",),
    "_LangPatchScope": (),
    "_get_np_dtype": (),
    "_implicit_cvt": (),
    "_patch_lang": (),
    "interpreter_builder": ("options", "codegen_fns"),
    "interpreter_semantic": ("to_tensor", "load"),
}


@functools.cache
def missing_names() -> list[str]:
    """The names that interpreting() requires and this Triton lacks."""
    if upstream is None:
        return ["triton.runtime.interpreter cannot be imported"]
    broken = []
    for name, members in _ESSENTIAL.items():
        if not hasattr(upstream, name):
            broken.append(f"triton.runtime.interpreter.{name} is gone")
            continue
        for member in members:
            if not hasattr(getattr(upstream, name), member):
                broken.append(f"{name}.{member} is gone")
    if not hasattr(triton.runtime.jit, "_normalize_ty"):
        broken.append("triton.runtime.jit._normalize_ty is gone")
    for kind, member in ((JITFunction, "run"), (JITFunction, "__call__"), (Autotuner, "run")):
        if not hasattr(kind, member):
            broken.append(f"{kind.__name__}.{member} is gone")
    return broken
