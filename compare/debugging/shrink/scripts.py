"""The text of a file that reproduces a failure: memory, kernels, launches, checks."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from compare.copies import WHOLE, tensors
from compare.debugging.findings.findings import Findings
from compare.debugging.shrink import literals
from compare.debugging.shrink.expectations import Expected, check, check_around
from compare.debugging.shrink.literals import Unwritable, letters
from compare.debugging.shrink.signatures import signatures
from compare.debugging.shrink.sources import Sources
from triton_kernels.interpreter import Argument, Launch

# The requirements of the file: Triton's own interpreter (or a GPU), the mended one, compare.debug.
Mode = Literal["plain", "mended", "debug"]
MODES: tuple[Mode, ...] = ("plain", "mended", "debug")
MARK = "# A reproduction by triton-kernels-crosscheck, which may overwrite it."
WIDTH = literals.WIDTH


def script(
    launches: list[Launch],
    before: Mapping[int, Tensor],
    findings: Findings,
    expected: list[Expected],
    mode: Mode,
) -> str:
    """The whole file.

    Raises:
        Unwritable: a value cannot be written into the file.
    """
    sources, names = Sources(), Counter(("check", "check_around", "reproduce", "device"))
    for launch in launches:
        sources.expression(launch.function)
    memory = _Memory(launches, before, names, _guarded(findings) if mode == "plain" else ("", ""))
    body = [memory.text]
    for launch in launches:
        body.append(_call(launch, sources, memory, mode))
    if mode != "debug":
        body += [f'check_around("{p}", {m}, {t})' for p, m, t in memory.guards]
        body += [_check(each, memory) for each in expected]
    inside = textwrap.indent("\n".join(body), "    ").replace("\n    \n", "\n\n")
    parts = [_heading(findings, mode), _imports(sources, mode)]
    if re.search(r"\b(inf|nan)\b", "\n".join([inside, *sources.definitions])):
        parts[-1] += '\n\ninf, nan = float("inf"), float("nan")'
    parts += [*sources.definitions]
    parts += [inspect.getsource(check)] if expected and mode != "debug" else []
    parts += [inspect.getsource(check_around)] if memory.guards else []
    parts += [f"def reproduce(device):\n{inside}"]
    where = '"cpu"'
    if mode == "plain":
        where += ' if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"'
    parts += [
        f'if __name__ == "__main__":\n    reproduce({where})\n'
        '    print("passes: the failure is not there any more")'
    ]
    return "\n\n\n".join(part.strip("\n") for part in parts) + "\n"


def _guarded(findings: Findings) -> tuple[str, str]:
    """The argument with an out-of-bounds access, and whether it is a "load" or "store"."""
    if findings.failure is None:
        return "", ""
    words = signatures(findings)[0].what[1].split()
    if words[:1] != ["out-of-bounds"]:
        return "", ""
    return words[-1], "load" if words[1] == "load" else "store"


def _heading(findings: Findings, mode: Mode) -> str:
    """The docstring: what is wrong, and how to run the file."""
    if findings.failure is not None:
        lines = findings.failure.lines()
    elif findings.wrong:
        lines = findings.wrong[0].lines()[:2]
    else:
        lines = [f"{h.kind}: {h.text}" for h in findings.hazards[:1]]
    needs = {
        "plain": "torch and triton; without a GPU it runs in Triton's interpreter",
        "mended": "torch, triton and triton_kernels, in whose interpreter it runs: Triton's own "
        "does not show the failure",
        "debug": "torch, triton and triton-kernels-crosscheck: the result is right by luck",
    }[mode]
    told = [f"{findings.subject}: {findings.verdict}", "", *lines, "", f"Needs {needs}."]
    text = "\n".join(
        part
        for line in told
        for part in textwrap.wrap(line, WIDTH, subsequent_indent="    ", break_long_words=False)
        or [""]
    )
    text = text.replace("\\", "\\\\").replace('"""', '"')
    return f'{MARK}\n"""{text}\n"""'


def _imports(sources: Sources, mode: Mode) -> str:
    first = ["from __future__ import annotations", ""] if sources.postponed else []
    imports = dict(sources.imports)
    imports.pop("torch", None)
    if mode == "plain":
        first += ["import os", "", "import torch", "from torch import Tensor", ""]
        first += ["if not torch.cuda.is_available():"]
        first += ['    os.environ["TRITON_INTERPRET"] = "1"', ""]
    else:
        first += ["import torch", "from torch import Tensor"]
        imports["-"] = {
            "mended": "import triton_kernels",
            "debug": "from compare import debug",
        }[mode]
    return "\n".join([*first, *imports.values()])


class _Memory:
    """The tensors of the launches, as statements that make them.

    Attributes:
        text: the statements.
        guards: parameter, memory and tensor, if memory around a tensor must not change.
    """

    def __init__(
        self,
        launches: list[Launch],
        before: Mapping[int, Tensor],
        names: Counter[str],
        guarded: tuple[str, str],
    ) -> None:
        self.guards: list[tuple[str, str, str]] = []
        self._names: dict[Any, str] = {}
        self._taken, lines = names, []
        storages: dict[int, dict[Any, tuple[str, Tensor]]] = {}
        for launch in launches:
            for parameter, value in launch.values.items():
                for t in tensors(value):
                    if not t.numel() and view_key(t) not in self._names:
                        name = self._names[view_key(t)] = letters(names, parameter)
                        lines.append(f"{name} = {literals.tensor(t, 'device')}")
                    if not t.numel():
                        continue
                    views = storages.setdefault(t.untyped_storage().data_ptr(), {})
                    views.setdefault(view_key(t), (parameter, t))
        for address, views in storages.items():
            lines += self._storage(before[address], views, guarded)
        self.text = "\n".join(lines)

    def name(self, t: Tensor) -> str:
        """The variable of a tensor."""
        return self._names[view_key(t)]

    def _storage(
        self, raw: Tensor, views: dict[Any, tuple[str, Tensor]], guarded: tuple[str, str]
    ) -> list[str]:
        if len({t.dtype for _, t in views.values()}) > 1:
            raise Unwritable("tensors of several dtypes share memory")
        for key, (parameter, _) in views.items():
            self._names[key] = letters(self._taken, parameter)
        ((parameter, t), *others) = views.values()
        low = min(int(t.storage_offset()) for _, t in views.values())
        high = max(int(t.storage_offset()) + _reach(t) for _, t in views.values())
        elements = sum(_once(t).numel() for _, t in views.values())
        if (high - low) * t.element_size() > WHOLE and elements < high - low:
            return self._sparse(raw, views, low, high)
        guard = 1 << 16 if not others and parameter == guarded[0] else 0
        if t.is_contiguous() and not others and not guard:
            name = self.name(t)
            old = viewed(raw, t)
            made = f"{name} = {literals.tensor(old, 'device')}"
            return [made, *literals.assignments(name, old)]
        memory = letters(self._taken, f"{parameter}_memory")
        flat = torch.empty(0, dtype=t.dtype).set_(raw.untyped_storage(), low, (high - low,), (1,))
        lines = [f"{memory} = {literals.tensor(flat, 'device')}"]
        lines += literals.assignments(memory, flat)
        if guard:
            around = "nan" if guarded[1] == "load" and t.is_floating_point() else "77"
            lines.append(
                f"{memory} = torch.nn.functional.pad({memory}, ({guard}, {guard}), value={around})"
            )
            if guarded[1] == "store":
                self.guards.append((parameter, memory, self.name(t)))
        for _, view in views.values():
            where = view.storage_offset() - low + guard
            geometry = f"{tuple(view.shape)}, {tuple(view.stride())}, {where}"
            lines.append(f"{self.name(view)} = {memory}.as_strided({geometry})")
        return lines

    def _sparse(
        self, raw: Tensor, views: dict[Any, tuple[str, Tensor]], low: int, high: int
    ) -> list[str]:
        """Memory of which only the elements are written: gigabytes may lie between them."""
        parameter, first = next(iter(views.values()))
        memory = letters(self._taken, f"{parameter}_memory")
        lines = [f"{memory} = torch.empty({high - low}, dtype={first.dtype}, device=device)"]
        for name, view in views.values():
            once = _once(view)
            if Argument("", once).overlaps:
                raise Unwritable(f"elements of {name} overlap in memory of gigabytes")
            values, where = letters(self._taken, f"{name}_values"), view.storage_offset() - low
            old = viewed(raw, once)
            lines.append(f"{values} = {literals.tensor(old, 'device')}")
            lines += literals.assignments(values, old)
            for t in dict.fromkeys((once, view)):
                geometry = f"{tuple(t.shape)}, {tuple(t.stride())}, {where}"
                lines.append(f"{self.name(view)} = {memory}.as_strided({geometry})")
                lines += [f"{self.name(view)}.copy_({values})"] if t is once else []
        return lines


def _once(t: Tensor) -> Tensor:
    """A tensor without the repetitions of strides 0."""
    for axis, stride in enumerate(t.stride()):
        if stride == 0 and t.shape[axis] > 1:
            t = t.narrow(axis, 0, 1)
    return t


def view_key(t: Tensor) -> Any:
    """The identity of a view."""
    return t.data_ptr(), tuple(t.shape), t.stride(), t.dtype


def _reach(t: Tensor) -> int:
    """The number of elements from a tensor's first to its last in memory."""
    return 1 + sum((n - 1) * st for n, st in zip(t.shape, t.stride()))


def viewed(memory: Tensor, t: Tensor) -> Tensor:
    """A tensor with t's geometry in a copy of its memory."""
    new = torch.empty(0, dtype=t.dtype)
    return new.set_(memory.untyped_storage(), t.storage_offset(), t.shape, t.stride())


def _call(launch: Launch, sources: Sources, memory: _Memory, mode: Mode) -> str:
    """A launch as a statement."""

    def written(value: Any) -> str:
        if isinstance(value, Tensor):
            return memory.name(value)
        if isinstance(value, tuple) and any(True for _ in tensors(value)):
            return "(" + "".join(f"{written(each)}, " for each in value).rstrip() + ")"
        base = getattr(value, "base", None)
        if isinstance(base, Tensor) and hasattr(value, "block_shape"):
            sources.imports["TensorDescriptor"] = (
                "from triton.tools.tensor_descriptor import TensorDescriptor"
            )
            sizes = f"{list(value.shape)}, {list(value.strides)}, {list(value.block_shape)}"
            return f"TensorDescriptor({memory.name(base)}, {sizes})"
        if isinstance(base, Tensor):
            return f"triton.reinterpret({memory.name(base)}, {sources.expression(value.dtype)})"
        return sources.expression(value)

    grid = list(launch.grid)
    while len(grid) > 1 and grid[-1] == 1:
        grid.pop()
    values = {name: written(value) for name, value in launch.values.items()}
    kernel, at = sources.expression(launch.function), sources.expression(tuple(grid))
    if mode == "debug":
        call = _packed(f"findings = debug({kernel}, {at}, (", values.values(), "))")
        return f"{call}\nassert findings, findings"
    options = {k: v for k, v in launch.options.items() if v is not None and literals.scalar(v)}
    words = [f"{k}={v}" for k, v in values.items()]
    words += [f"{k}={literals.scalar(v)}" for k, v in options.items()]
    call = _packed(f"{kernel}[{at}](", words, ")")
    if mode == "plain":
        return call
    return "with triton_kernels.interpret():\n" + textwrap.indent(call, "    ")


def _packed(opening: str, words: Iterable[str], closing: str) -> str:
    """A call on one line, or with its arguments on separate lines."""
    words = list(words)
    comma = "," if closing.startswith("))") else ""
    one = f"{opening}{', '.join(words)}{comma}{closing}"
    if len(one) <= WIDTH - 4:
        return one
    lines = [""]
    for word in words:
        if len(lines[-1]) + len(word) + 2 > WIDTH - 8:
            lines.append("")
        lines[-1] += f"{' ' if lines[-1] else ''}{word},"
    return "\n".join([opening, *(f"    {line}" for line in lines), closing])


def _check(each: Expected, memory: _Memory) -> str:
    """The statements that compare a tensor."""
    lines = [f"expected = {literals.tensor(each.expected)}"]
    lines += literals.assignments("expected", each.expected)
    allowed = "None"
    if each.allowed is not None:
        most = each.allowed.max()
        allowed = repr(most.item())
        if each._replace(allowed=most).message() != each.message():
            lines.append(f"allowed = {literals.tensor(each.allowed)}")
            lines += literals.assignments("allowed", each.allowed)
            allowed = "allowed"
    lines.append(f'check("{each.name}", {memory.name(each.argument)}, expected, {allowed})')
    return "\n".join(lines)
