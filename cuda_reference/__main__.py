"""``python -m cuda_reference build``: builds libraries ahead of time, for shipping."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from cuda_reference import _build, _compilers, _shipped
from cuda_reference._compilers import BuildError, Target

_DESCRIPTION = """\
Builds the CUDA sources into DIR, for machines without a compiler: set CUDA_REFERENCE_LIBRARIES=DIR
there, or build into the folder _prebuilt of the package and ship it along. Needs no GPU. The
highest architecture is embedded as PTX too, which newer GPUs compile for themselves."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns the exit status: 0 all built, 1 not all built, 2 wrong usage."""
    parser, build = _parsers()
    options = parser.parse_args(arguments)
    target: Target = options.target
    known = sorted(source.stem for source in _compilers.CSRC.glob("*.cu"))
    for stem in options.stems:
        if stem not in known:
            build.error(f"there is no source {stem!r}; there are {', '.join(known)}")
    if target == "cuda" and not options.arch:
        build.error("the cuda target needs --arch, for example --arch 80,90")
    if target == "host" and options.arch:
        build.error("--arch is for the cuda target only")
    if os.environ.get("CROSSCHECK_SANITIZE"):
        build.error(
            "CROSSCHECK_SANITIZE is set; sanitized libraries are not for shipping: unset it"
        )
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        if not os.access(options.out, os.W_OK | os.X_OK):
            raise PermissionError("no permission to write")
    except OSError as error:
        build.error(f"--out {options.out} cannot be written: {error.strerror or error}")
    try:
        toolchain = _compilers._toolchain(target, options.arch)
        _compilers._ninja()
        unsupported = _unsupported(toolchain, options.arch)
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    if unsupported:
        build.error(unsupported)
    return _build_all(options.stems or known, target, toolchain, options.arch, options.out)


def _parsers() -> tuple[argparse.ArgumentParser, argparse.ArgumentParser]:
    parser = argparse.ArgumentParser(prog="python -m cuda_reference")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    build = commands.add_parser(
        "build", help="build libraries for machines without a compiler", description=_DESCRIPTION
    )
    build.add_argument("stems", metavar="STEM", nargs="*", help="sources; all by default")
    build.add_argument(
        "--arch", type=_architectures, default=[], help="GPU architectures: 80,90a or 8.0,9.0a"
    )
    build.add_argument("--out", metavar="DIR", type=Path, required=True, help="made if need be")
    build.add_argument("--target", choices=("cuda", "host"), default="cuda")
    return parser, build


def _architectures(text: str) -> list[str]:
    """ "80,sm_90a" → ["8.0", "9.0a", "9.0+PTX"]. PTX is for the highest version, without suffix, so
    that all newer GPUs can run it."""
    architectures: set[tuple[int, int, str]] = set()
    for name in text.split(","):
        match = re.fullmatch(r"(?:sm_)?(\d+?)\.?(\d)([af]?)", name.strip())
        if not match:
            raise argparse.ArgumentTypeError(
                f"{name!r} is no architecture; write 80,90 or 8.0,9.0a"
            )
        architectures.add((int(match[1]), int(match[2]), match[3]))
    highest = (*max(architectures)[:2], "")
    named = sorted(architectures | {highest})
    return [f"{a}.{b}{suffix}{'+PTX' * ((a, b, suffix) == highest)}" for a, b, suffix in named]


def _unsupported(toolchain: _compilers._Toolchain, architectures: Sequence[str]) -> str | None:
    """The error for the first architecture that this nvcc does not support, or None."""
    if not architectures:
        return None
    command = [*toolchain.compiler, "--list-gpu-code"]
    known = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()
    for architecture in architectures:
        number = re.sub(r"\.|[af]?(\+PTX)?$", "", architecture)
        if known and f"sm_{number}" not in known:
            numbers = " ".join(name.removeprefix("sm_") for name in known)
            return f"--arch: {shlex.join(toolchain.compiler)} does not know {number}, but {numbers}"
    return None


def _build_all(
    stems: Sequence[str],
    target: Target,
    toolchain: _compilers._Toolchain,
    architectures: Sequence[str],
    folder: Path,
) -> int:
    """Build and keep each library, and print a line when it is done. Returns the exit status."""
    start = time.perf_counter()
    compiler = toolchain.version()
    label = " ".join([target, *architectures])
    print(f"building {len(stems)} libraries for {label} with {compiler}", flush=True)

    def make(stem: str) -> Path:
        source = _compilers.CSRC / f"{stem}.cu"
        built = _build.compile_sources({stem: source}, target, toolchain)[stem]
        return _shipped.keep(stem, target, built, architectures, compiler, folder)

    kept = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        running = {pool.submit(make, stem): stem for stem in stems}
        for number, done in enumerate(as_completed(running), 1):
            place = f"[{number}/{len(stems)}]"
            try:
                kept.append(done.result())
            except (BuildError, OSError) as error:
                print(f"{place} {running[done]}: {error}", file=sys.stderr, flush=True)
            else:
                size = kept[-1].stat().st_size / 1e6
                print(f"{place} {kept[-1].name}  {size:.1f} MB", flush=True)
    megabytes = sum(library.stat().st_size for library in kept) / 1e6
    print(
        f"{len(kept)} of {len(stems)} libraries, {megabytes:.1f} MB, "
        f"in {time.perf_counter() - start:.0f} s"
    )
    if len(kept) == len(stems):
        print(f"to use them: CUDA_REFERENCE_LIBRARIES={shlex.quote(str(folder.absolute()))}")
    return 0 if len(kept) == len(stems) else 1


if __name__ == "__main__":
    sys.exit(main())
