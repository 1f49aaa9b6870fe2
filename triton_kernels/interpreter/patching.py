"""The context in which kernels are interpreted, with its patches."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import inspect
import os
import threading
import types
from collections.abc import Iterator
from typing import Any

# Not used here, but loaded before anything is patched: the code generator keeps references to the
# language's functions. Loaded while the patches are active, it would keep patched ones.
import triton
import triton.compiler.code_generator
import triton.language as tl
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction

from triton_kernels import _modes
from triton_kernels.interpreter import host_calls, imported_names, language, shortcuts
from triton_kernels.interpreter.assumptions import missing_names
from triton_kernels.interpreter.builder import MendedBuilder
from triton_kernels.interpreter.flow_builder import FlowBuilder
from triton_kernels.interpreter.handles import MISSING, numpy_dtype_by_name, upstream
from triton_kernels.interpreter.launching import call_jit, run_autotuner, run_jit
from triton_kernels.interpreter.observers import Observer, Several
from triton_kernels.interpreter.shadowing import ShadowedBuilder

_DOT_PRECISIONS = ("tf32", "tf32x3", "ieee", "bf16x3", "bf16x6")


class _Patches:
    """Attribute changes that can be undone exactly; has the interface of Triton's own scope."""

    def __init__(self) -> None:
        self._changes: list[tuple[Any, str, Any, Any]] = []

    def set_attr(self, target: Any, name: str, value: Any) -> None:
        self._changes.append((target, name, vars(target).get(name, MISSING), value))
        setattr(target, name, value)

    def restore(self) -> None:
        while self._changes:
            target, name, old, _ = self._changes.pop()
            if old is MISSING:
                delattr(target, name)
            else:
                setattr(target, name, old)

    def values(self) -> list[tuple[Any, str, Any]]:
        return [(target, name, value) for target, name, _, value in self._changes]


@functools.cache
def _language_patches() -> list[tuple[Any, str, Any]]:
    """All patches of triton.language: Triton's own, recorded once, then ours on top."""
    patches, scope = _Patches(), upstream._LangPatchScope
    try:
        upstream._LangPatchScope = lambda: patches
        upstream._patch_lang(types.SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
        recorded = patches.values()
    finally:
        upstream._LangPatchScope = scope
        patches.restore()
    recorded = shortcuts.patches(recorded)
    for module in (tl, tl.core):
        recorded += [
            (module, "reduce", language.reduce),
            (module, "associative_scan", language.scan),
        ]
        if hasattr(module, "map_elementwise"):
            recorded.append((module, "map_elementwise", language.map_elementwise))
    semantic: Any = type(upstream.interpreter_semantic)
    recorded += language.constexpr_operators()
    recorded += [
        (tl.tensor, "__index__", language.to_index),
        (tl.tensor, "__bool__", language.to_bool),
        (tl.tensor, "T", property(language.transposed)),
        (semantic, "load", language.load_with_other(semantic.load)),
    ]
    if not hasattr(upstream.InterpreterBuilder, "create_dot_scaled"):
        recorded.append((semantic, "dot_scaled", language.in_named_formats(semantic.dot_scaled)))
    for path in ("triton.language.extra.libdevice", "triton.language.extra.cuda.libdevice"):
        libdevice = importlib.import_module(path)
        for name, member in vars(libdevice).items():
            if inspect.isfunction(member) and not name.startswith("_"):
                recorded.append((libdevice, name, language.emulated(name)))
    # Triton makes a second module for what is imported.
    for extra in (tl.extra.cuda, importlib.import_module("triton.language.extra.cuda")):
        for name, member in vars(extra).items():
            if getattr(member, "__triton_builtin__", False):
                recorded.append((extra, name, language.with_semantic(member)))
    imported_names.know(recorded)
    return recorded


def _apply(patches: _Patches) -> None:
    language_patches = _language_patches()
    imported_names.begin()
    for target, name, value in language_patches:
        patches.set_attr(target, name, value)
    # The language is patched for the whole context, so not again at every call.
    patches.set_attr(upstream, "_patch_lang", lambda fn: _Patches())
    by_name = numpy_dtype_by_name(upstream._get_np_dtype)
    patches.set_attr(upstream, "_get_np_dtype", by_name)
    patches.set_attr(upstream, "InterpreterBuilder", MendedBuilder)  # 3.6 makes one per descriptor
    for kind in (JITFunction, upstream.InterpretedFunction):
        patches.set_attr(kind, "run", run_jit)
        patches.set_attr(kind, "__call__", call_jit)
    patches.set_attr(Autotuner, "run", run_autotuner)
    for target, name, value in host_calls.patches():
        patches.set_attr(target, name, value)


def _watch(observer: Observer | None) -> None:
    """Connect the builder to an observer, with shadows or the dataflow if it wants them."""
    builder = upstream.interpreter_builder
    builder.observer = observer
    shadows = observer.shadows if observer is not None else None
    flow = observer.flow if observer is not None else None
    builder.__class__ = MendedBuilder
    if shadows is not None:
        builder.__class__ = ShadowedBuilder
    elif flow is not None:
        builder.__class__ = FlowBuilder
    builder.shadows, builder.flow = shadows, flow


@contextlib.contextmanager
def _mended_builder() -> Iterator[None]:
    builder = upstream.interpreter_builder
    kind, state = type(builder), dict(vars(builder))
    builder.__class__ = MendedBuilder
    builder.options = dataclasses.replace(
        builder.options,
        debug=True,  # device_assert does nothing otherwise
        sanitize_overflow=False,  # integers wrap, as on the GPU
        allowed_dot_input_precisions=_DOT_PRECISIONS,
    )
    try:
        yield
    finally:
        builder.__class__ = kind
        vars(builder).clear()
        vars(builder).update(state)


_lock = threading.RLock()
_undo = contextlib.ExitStack()  # restores what interpreting() has changed
_switching = threading.RLock()  # held while patches are applied or undone


def _leave_to_the_parent() -> None:
    """In a forked child: end the interpreting() of another thread, which the child lacks."""
    global _lock
    if not _modes.interpreting():
        _undo.close()
        _lock, _modes.interpreting_thread = threading.RLock(), None
    _switching.release()


# A fork never sees half-applied patches; it does not wait for other threads in interpreting().
os.register_at_fork(
    before=_switching.acquire,
    after_in_parent=_switching.release,
    after_in_child=_leave_to_the_parent,
)


_onlooker: Observer | None = None


def _with_onlooker(observer: Observer | None) -> Observer | None:
    if observer is None or _onlooker is None:
        return observer or _onlooker
    return Several(observer, _onlooker)


@contextlib.contextmanager
def watched(observer: Observer) -> Iterator[None]:
    """Inside this context the observer observes every interpreted run, by any code.

    Other observers stay, and still decide the order of programs.
    """
    global _onlooker
    before, _onlooker = _onlooker, observer
    try:
        if _modes.interpreting():  # the run has already begun
            with interpreting(upstream.interpreter_builder.observer or observer):
                yield
        else:
            yield
    finally:
        _onlooker = before


@contextlib.contextmanager
def interpreting(observer: Observer | None = None) -> Iterator[None]:
    """kernel[grid](...) runs in the corrected interpreter, however the kernel was made.

    The kernel may be a JITFunction or (with TRITON_INTERPRET=1 at import) an InterpretedFunction,
    bare or inside Heuristics or Autotuner (one configuration runs). Re-entrant. There is one
    interpreter per process: a lock makes other threads wait, and nothing can be compiled meanwhile.
    A child process forked by this thread is inside, one forked by another thread is outside.

    ``observer`` is called for every launch, access and dot, and chooses the programs that run. If
    it has ``shadows``, these are kept beside the values, which do not change. If the context is
    entered again without an observer, the outer one stays.
    """
    global _undo
    with _lock:
        if _modes.interpreting_thread is not None:
            builder = upstream.interpreter_builder
            outer = builder.observer
            _watch(outer if observer is None else _with_onlooker(observer))
            try:
                yield
            finally:
                _watch(outer)
            return
        if missing := missing_names():
            raise RuntimeError(
                f"this Triton ({triton.__version__}) cannot be mended:\n" + "\n".join(missing)
            )
        try:
            with _switching, contextlib.ExitStack() as changes:
                patches = _Patches()
                changes.callback(patches.restore)
                changes.callback(imported_names.restore)
                _apply(patches)
                changes.enter_context(_mended_builder())
                _watch(_with_onlooker(observer))
                _undo, _modes.interpreting_thread = changes.pop_all(), threading.get_ident()
            yield
        finally:
            with _switching:
                _modes.interpreting_thread = None
                _undo.close()
