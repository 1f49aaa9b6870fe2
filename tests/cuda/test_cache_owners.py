"""Whose the cache is: what is not ours, or others can write, is not loaded."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from cached import build, needs_host_target, record

from cuda_reference import BuildError, _build, _compilers

pytestmark = pytest.mark.usefixtures("cache")
ROOT = os.geteuid() == 0
NOBODY = 65534
needs_root = pytest.mark.skipif(not ROOT, reason="only root can give a file to another user")


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the library makes as soon as it is loaded."""
    monkeypatch.setenv("MARK", str(tmp_path / "mark"))
    return tmp_path / "mark"


def no_compiler(*_: object) -> dict[str, str]:
    raise AssertionError("the compiler ran")


@needs_host_target
@pytest.mark.parametrize("umask", [0, 0o002, 0o077])
def test_made_for_one_user_alone(
    umask: int, csrc: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = os.umask(umask)
    try:
        library = build(csrc)
    finally:
        os.umask(before)
    assert cache.stat().st_mode & 0o777 == 0o700
    for file in (library, record(cache)):
        assert file.stat().st_mode & 0o022 == 0
    monkeypatch.setattr(_build, "_run_ninja", no_compiler)
    assert build(csrc) == library


def give_away(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes a folder another user's; or this process another's, where that is not allowed."""
    if ROOT:
        for path in (folder, *folder.rglob("*")):
            os.chown(path, NOBODY, NOBODY)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: NOBODY)


@needs_host_target
@pytest.mark.parametrize("mode", [0o700, 0o755])
def test_another_users_folder_is_refused(
    mode: int, csrc: Path, cache: Path, mark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(csrc)
    cache.chmod(mode)
    give_away(cache, monkeypatch)
    with pytest.raises(BuildError, match=r"belongs to another user.*set CUDA_REFERENCE_CACHE"):
        _build.library("sample", "host", csrc=csrc)
    assert not mark.exists(), "the library of another user was loaded"


@needs_host_target
@pytest.mark.parametrize("mode", [0o770, 0o702, 0o1777, 0o2775])
def test_a_folder_that_others_can_write_is_refused(
    mode: int, csrc: Path, cache: Path, mark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(csrc)
    cache.chmod(mode)
    with pytest.raises(BuildError, match=rf"mode is {mode:o}; run chmod -R go-w on it"):
        _build.library("sample", "host", csrc=csrc)
    assert not mark.exists()
    link = cache.with_name("link")  # which is whose it leads to
    link.symlink_to(cache)
    monkeypatch.setenv("CUDA_REFERENCE_CACHE", str(link))
    with pytest.raises(BuildError, match=rf"mode is {mode:o}"):
        _build.library("sample", "host", csrc=csrc)
    cache.chmod(0o755)
    library = _build.library("sample", "host", csrc=csrc)
    assert library.answer() == 42
    assert Path(library._name).parent == cache, "the link may lead elsewhere by now"


@needs_host_target
def test_what_stands_above_is_not_asked_about(
    tmp_path: Path, csrc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In /tmp, say, where others cannot rename what is ours."""
    shared = tmp_path / "tmp"
    shared.mkdir()
    shared.chmod(0o1777)
    monkeypatch.setenv("CUDA_REFERENCE_CACHE", str(shared / "mine" / "cache"))
    assert build(csrc).parent == shared / "mine" / "cache"


@needs_host_target
@pytest.mark.parametrize("which", ["library", "record"])
@pytest.mark.parametrize("how", ["mode", "link", pytest.param("owner", marks=needs_root)])
def test_a_file_that_others_can_write_is_not_loaded(
    how: str, which: str, tmp_path: Path, csrc: Path, cache: Path
) -> None:
    """It may have come there before the folder was closed to them."""
    library = build(csrc)
    planted = library if which == "library" else record(cache)
    if how == "owner":
        os.chown(planted, NOBODY, NOBODY)
    elif how == "mode":
        planted.chmod(0o664)
    else:
        elsewhere = tmp_path / "elsewhere"
        shutil.move(planted, elsewhere)
        elsewhere.chmod(0o666)
        planted.symlink_to(elsewhere)
    assert build(csrc) == library
    assert not planted.is_symlink()
    assert planted.stat().st_uid == os.geteuid()
    assert planted.stat().st_mode & 0o022 == 0


def test_folders_below_are_closed_too(cache: Path) -> None:
    _compilers.cache_directory("inline")
    (cache / "inline").chmod(0o775)
    with pytest.raises(BuildError, match=r"inline cannot be used .*mode is 775"):
        _compilers.cache_directory("inline")


@pytest.mark.parametrize("home", ["~nobody-of-that-name/cache", "file/cache", "link"])
def test_a_cache_that_cannot_be_made_is_named(
    home: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("link")
    chosen = home if home.startswith("~") else str(tmp_path / home)
    monkeypatch.setenv("CUDA_REFERENCE_CACHE", chosen)
    with pytest.raises(BuildError, match="set CUDA_REFERENCE_CACHE"):
        _compilers.cache_directory()
