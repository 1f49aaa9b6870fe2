"""The sources of an extension, rewritten for the host target."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from cuda_reference import _build, _compilers, _rewriting, _storage
from cuda_reference._compilers import BuildError

_EXPORTS = re.compile(r"\b(PYBIND11_MODULE|TORCH_LIBRARY\w*|RegisterOperators)\s*\(")


class Options:
    """The options for the compilers.

    Attributes:
        includes: folders with headers.
        cflags, cuda_cflags, ldflags: flags for the C++ compiler, for nvcc and for the linker.
    """

    def __init__(
        self,
        includes: Sequence[str] | None,
        cflags: Sequence[str] | None,
        cuda_cflags: Sequence[str] | None,
        ldflags: Sequence[str] | None,
    ) -> None:
        given = {"include_paths": includes, "cflags": cflags}
        given |= {"cuda_cflags": cuda_cflags, "ldflags": ldflags}
        for what, words in given.items():
            if isinstance(words, (str, Path)):
                raise TypeError(f"'extra_{what}' must be a list of strings, got {words!r}")
        self.includes = [str(Path(folder).resolve()) for folder in includes or ()]
        self.cflags, self.cuda_cflags = list(cflags or ()), list(cuda_cflags or ())
        self.ldflags = list(ldflags or ())

    def of_torch(self) -> dict[str, list[str]]:
        """The flags for torch.utils.cpp_extension."""
        return {
            "extra_include_paths": self.includes,
            "extra_cflags": self.cflags,
            "extra_cuda_cflags": self.cuda_cflags,
            "extra_ldflags": self.ldflags,
        }

    def of_host(self) -> tuple[str, ...]:
        """The flags for the host target: folders, and definitions that CUDA's headers read. Other
        flags are only for other compilers."""
        return (*(f"-I{folder}" for folder in self.includes), *self._given(of_source=False))

    def definitions(self) -> str:
        """-D and -U flags as lines to put after our headers, where a -DN=64 would replace names."""
        lines = []
        for flag in self._given(of_source=True):
            name, _, value = flag[2:].partition("=")
            lines.append(f"#undef {name.partition('(')[0]}")
            if flag.startswith("-D"):
                lines.append(f"#define {name} {value if '=' in flag else 1}")
        return "".join(f"{line}\n" for line in lines)

    def _given(self, of_source: bool) -> tuple[str, ...]:
        flags = []
        words = iter(shlex.split(" ".join((*self.cflags, *self.cuda_cflags))))
        for word in words:
            if word.startswith(("-D", "-U", "-I")):
                flags.append(word if len(word) > 2 else word + next(words, ""))
        own = [flag for flag in flags if flag[1] != "I" and not flag[2:].startswith(("__", "CUDA"))]
        return tuple(dict.fromkeys(f for f in flags if (f in own) is of_source))


class HostSources:
    """The rewritten sources, with the headers of their own that they include.

    A source that needs a library without a form for the CPU is left out if another source exports
    the functions. Then only the functions that it defines cannot be called.

    Attributes:
        files: name → rewritten text.
        units: the names of the compilation units.
        originals: name of an original file → its text.
        left_out: the reason for each source that is left out.
    """

    def __init__(self, name: str, sources: Mapping[str, str], options: Options) -> None:
        self.files: dict[str, str] = {}
        self.originals: dict[str, str] = {}
        self._includes = options.includes
        self._headers: dict[Path, str] = {}
        self.left_out: list[str] = []
        digest = hashlib.sha256("\0".join(map(str, sources.items())).encode()).hexdigest()
        self._strings = _compilers.cache_directory("inline", f"{name}-{digest[:12]}", "source")
        self._name = name
        self._of_strings: dict[str, str] = {}
        self._dispensable = False  # whether the source being read may be left out
        head = '#include "torch_on_cpu.h"\n'
        if defined := options.definitions():
            head += f'#include "cuda_on_cpu_groups.h"\n{defined}'
        exporting = [file for file, text in sources.items() if _EXPORTS.search(text)]
        for number, (file, text) in enumerate(sources.items()):
            before = dict(self.files), dict(self._headers)
            self._dispensable = bool(exporting) and file not in exporting
            try:
                own = self._rewritten(Path(file), text)
            except _rewriting.Foreign as error:
                if not self._dispensable:
                    raise _not_built(Path(file), error) from error
                self.left_out.append(str(error).partition(";")[0])
                self.files, self._headers = before
                continue
            # torch's load_inline also includes its header at the head of each source.
            self.files[f"unit{number}.cu"] = f"{head}{own}"
        units = sorted(self.files)
        self.units = [name for name in units if name.startswith("unit")]

    @property
    def headers(self) -> list[Path]:
        """The headers of their own that the sources include."""
        return list(self._headers)

    def _rewritten(self, file: Path, text: str) -> str:
        self.originals[file.name] = text
        if not file.is_absolute():
            self._of_strings[file.name] = text
        try:
            header = functools.partial(self._header, file)
            own = _rewriting.rewritten(text, file.name, header, self._dispensable)
        except _rewriting.Foreign:
            raise
        except ValueError as error:
            raise _not_built(file, error) from error
        if not file.is_absolute():  # a string; messages refer to its copy in the cache
            file = self._strings / file
        return f'#line 1 "{file}"\n{own}'

    def _header(self, file: Path, name: str) -> str | None:
        """The new name of a header that belongs to the sources; None for other headers."""
        folders = [file.parent, *map(Path, self._includes)]
        header = next((f for folder in folders if (f := (folder / name)).is_file()), None)
        if header is None or not file.is_absolute():
            return None
        header = header.resolve()
        if header not in self._headers:
            self._headers[header] = f"header{len(self._headers)}_{header.name}"
            own = self._rewritten(header, header.read_text(encoding="utf-8", errors="replace"))
            self.files[self._headers[header]] = own
        return self._headers[header]

    def library(self, more: tuple[str, ...]) -> ctypes.CDLL:
        """The library, built or from the cache; ``more`` are additional flags."""
        text = "".join(f"{file}\n{content}\n" for file, content in sorted(self.files.items()))
        digest, name = hashlib.sha256(text.encode()).hexdigest(), self._name
        cache = _compilers.cache_directory("inline", f"{name}-{digest[:12]}")
        main = f'// sha256 {digest}\n#include "{self.units[0]}"\n'
        files = {cache / file: content.encode() for file, content in self.files.items()}
        files[cache / f"{name}.cu"] = main.encode()
        files |= {self._strings / file: text.encode() for file, text in self._of_strings.items()}
        if not all(file.is_file() and file.read_bytes() == text for file, text in files.items()):
            with _build.workspace(_compilers.cache_directory()) as work:
                _storage.write(files, work)
        others = tuple(str(cache / unit) for unit in self.units[1:])
        return _build.library(name, "host", csrc=cache, more=(*more, *others))


def _not_built(file: Path, error: ValueError) -> BuildError:
    return BuildError(f"could not build {file.name} for the host target: {error}")
