"""Documents tell the truth: the files, targets, modules and options that they name exist."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path, PurePosixPath

import pytest
import typer
from checkout import PACKAGES, ROOT

from compare.cli import app

DOCUMENTS = [
    path
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md")))
    if path.is_file()
]
CODE = re.compile(r"^```[^\n]*\n(.*?)^```|`([^`\n]+)`", re.S | re.M)
EXTENSIONS = (".py", ".md", ".cu", ".toml")
# Placeholders, globs, what is outside the checkout, the example of an op to add, files that a
# command would write.
ELSEWHERE = re.compile(r"[<>{}$*…=()]|^[~/.]|://|\bcube\b|\bscaled_product|fails\.py$|^file\.py$")


@cache
def files() -> frozenset[str]:
    """Every file and folder of the checkout, as a posix path from its root."""
    skipped = {".git", ".venv", "build", "dist", "__pycache__"}
    found: set[str] = set()
    for folder, names, leaves in os.walk(ROOT):
        names[:] = [n for n in names if n not in skipped]
        here = PurePosixPath(Path(folder).relative_to(ROOT).as_posix())
        found |= {str(here / name) for name in (*names, *leaves)}
    return frozenset(found)


@cache
def ends() -> frozenset[str]:
    """Every file and folder, and every end of its path that begins with a name."""
    parts = (PurePosixPath(path).parts for path in files())
    return frozenset("/".join(each[i:]) for each in parts for i in range(len(each)))


def is_path(word: str, inline: bool) -> bool:
    """Whether a word of code means a file of this repository."""
    if ELSEWHERE.search(word):
        return word.startswith((".github/", ".ci/"))
    if inline and word.endswith(EXTENSIONS):
        return True
    first = word.split("/")[0]
    return "/" in word and (first in files() or word.endswith((*EXTENSIONS, "/")))


def exists(word: str) -> bool:
    """A path from the root, or the unmistakable end of one, as in `csrc/add.cu`."""
    word = re.sub(r":\d+$", "", word.split("::")[0]).rstrip("/").removeprefix("./")
    return word in ends()


@cache
def targets() -> set[str]:
    return set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.M))


@cache
def subcommands() -> dict[str, set[str]]:
    """Command → its options."""
    commands = typer.main.get_command(app).commands
    return {
        name: {option for parameter in command.params for option in parameter.opts}
        for name, command in commands.items()
    }


def lies(text: str) -> Iterator[str]:
    """The paths and commands that a document's code names and that do not exist."""
    for match in CODE.finditer(text):
        block, inline = match.groups()
        code = (block or inline).replace("\\\n", " ")
        for word in re.split(r"[\s,;'\"]+", code):
            word = word.rstrip(".:)")
            if is_path(word, block is None) and not exists(word):
                yield f"path {word}"
        for line in code.splitlines():
            line = line.split(" #")[0]
            for target in re.findall(r"(?:^|[`$;&|]\s*|\s)make ((?:[a-z-]+ ?)+)", line):
                yield from (f"make {t}" for t in target.split() if t not in targets())
            for module, rest in re.findall(r"python3? -m ([\w.]+)([^|;&]*)", line):
                own = ROOT / module.replace(".", "/")
                if module.split(".")[0] in PACKAGES:
                    if not (own / "__main__.py").is_file() and not own.with_suffix(".py").is_file():
                        yield f"python -m {module}"
                # Not importlib.util.find_spec: asked for pip, setuptools' hook in it gives up
                # distutils, and torch's C++ extensions no longer import in this process.
                elif PathFinder.find_spec(module.split(".")[0]) is None:
                    yield f"python -m {module}"
                if module == "compare":
                    yield from wrong_command(rest.split())
            for rest in re.findall(r"(?:^|\s)kernel-compare\b([^|;&]*)", line):
                yield from wrong_command(rest.split())


def wrong_command(words: list[str]) -> Iterator[str]:
    """What is wrong with the words after `python -m compare`."""
    if not words or words[0].startswith(("-", "…", "[")):
        return
    if words[0] not in subcommands():
        yield f"compare {words[0]}"
        return
    options = {w.strip("[]").split("=")[0] for w in words if w.strip("[]").startswith("--")}
    known = subcommands()[words[0]] | {"--help"}
    yield from (f"compare {words[0]} {option}" for option in sorted(options - known))


@pytest.mark.parametrize("document", ["README.md", "docs"])
def test_documents_name_what_exists(document: str) -> None:
    found = [p for p in DOCUMENTS if p.relative_to(ROOT).as_posix().startswith(document)]
    if not found:
        pytest.skip(f"there is no {document} yet")
    wrong = [f"{path.relative_to(ROOT)}: {lie}" for path in found for lie in lies(path.read_text())]
    assert not wrong, "\n".join(wrong)


def test_the_reader_of_documents_sees_lies_and_only_lies() -> None:
    truth = """`make compare`, `compare/numerics.py`, `csrc/add.cu`, `x/y`, `python3 -m pytest`,
    `make test`, f16/bf16, `cuda-host/tiled`, `tests/`, `~/.cache/x.py`,
    `out[i] = a/b`, `<your>/file.py`
```sh
$ make compare
python -m compare check add --quick --require triton,cuda   # all of it
.venv/bin/python -m compare check --json report.json
kernel-compare check --full
pytest tests/kernels/test_ops.py::test_every_case_is_right
```
"""
    assert list(lies(truth)) == []
    for lie in (
        "`compare/nothing.py`",
        "`missing.cu`",
        "`make nonsense`",
        "`tests/nothing/`",
        "`python -m compare.nothing`",
        "`python -m compare frobnicate`",
        "`python -m no_such_module`",
        "```\nmake test nonsense\n```",
        "```sh\nkernel-compare check --nonsense\n```",
        "```sh\ncat triton_kernels/ops/nothing.txt\n```",
    ):
        assert len(list(lies(lie))) == 1, lie


def test_the_map_of_the_house_has_every_folder() -> None:
    """And names no module: those have docstrings."""
    text = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
    house = text.split("## The house")[1].split("```")[1]
    named: set[str] = set()
    folders: list[str] = []  # the way to the one at hand
    for indent, name in re.findall(r"^( *)(\w+)/ ", house, re.M):
        folders[len(indent) // 2 :] = [name]
        named.add("/".join(folders))
    here = {folder for folder in files() if re.fullmatch(rf"({'|'.join(PACKAGES)})(/\w+)?", folder)}
    here = {folder for folder in here if (ROOT / folder).is_dir()}
    assert here | {"tests"} <= named
    assert all((ROOT / folder).is_dir() for folder in named)
    assert not re.findall(r"\b\w+\.py\b", house)
