"""The page that draws findings: what stands on it, without a browser."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from gallery import GALLERY
from typer.testing import CliRunner

from compare import debug, debug_cuda
from compare.checking.implementations import unavailable
from compare.cli import app
from compare.debugging.drawing import planes
from compare.debugging.drawing.errors import ErrorMap, error_map
from compare.debugging.drawing.planes import Plane, Window
from compare.debugging.findings.placed import placed
from compare.numerics import json_safe
from compare.pages import rendering
from cuda_reference import load_inline

pytest.importorskip("jinja2", reason="the extra `report` is not installed")
needs_host = pytest.mark.skipif(
    "cuda-host" in unavailable(), reason=f"cuda-host: {unavailable().get('cuda-host')}"
)


class Page:
    """A page's text, and its pictures by their label."""

    def __init__(self, text: str) -> None:
        self.text = text
        found = re.findall(r"<svg viewBox.*?</svg>", text, re.S)
        drawn = [ET.fromstring(svg) for svg in found if "aria-label" in svg.split(">")[0]]
        self.pictures = [(svg.get("aria-label") or "", svg) for svg in drawn]

    def looks(self, label: str, number: int = 0) -> list[str]:
        """The looks of a picture's cells, runs of one look told as often as they are wide."""
        svg = [drawn for name, drawn in self.pictures if name.startswith(label)][number]
        cells = [rect for rect in svg.iter("rect") if rect.get("class") != "mark"]
        side = min(float(rect.get("width") or 0) for rect in cells)
        height = min(float(rect.get("height") or 0) for rect in cells)
        side = min(side, height)
        return [
            rect.get("class") or ""
            for rect in cells
            for _ in range(round(float(rect.get("width") or 0) / side))
        ]

    def titles(self, label: str) -> list[str]:
        svg = next(drawn for name, drawn in self.pictures if name.startswith(label))
        return [title.text or "" for rect in svg.iter("rect") for title in rect.iter("title")]

    def line(self, heading: str) -> str:
        """The part about one line's loads or stores."""
        parts = re.split(r'<article class="line"', self.text)[1:]
        return next(part for part in parts if heading in re.sub(r"<[^>]+>", "", part))


def broken(name: str, fault: str) -> Page:
    exhibit = GALLERY[name]
    return Page(exhibit.broken(exhibit.faults[fault], exhibit.dtypes[0]).debug().to_html())


def gallery(name: str) -> str:
    return next(key for key, exhibit in GALLERY.items() if exhibit.name == name)


# ---- Triton ----


def test_wrong_elements_tile_lines_and_the_lanes_way() -> None:
    """A bias that is indexed by row: right on the diagonal, where both indices are one."""
    page = broken(gallery("matmul with bias"), "bias by row")
    looks = page.looks("out_ptr: its wrong elements")
    assert len(looks) == 20 * 24
    right = {(i // 24, i % 24) for i, look in enumerate(looks) if look == "right"}
    assert right == {(i, i) for i in range(20)}
    titles = page.titles("out_ptr: its wrong elements")
    assert titles[0].startswith("out_ptr[0, 0]: ")
    assert titles[0].endswith(", right")
    assert titles[7 * 24 + 10] == "out_ptr[7, 10]: got -8.27578, expected -5.91868"
    assert 'class="worst bad">-8.27578<small>not -5.91868' in page.text
    assert set(page.looks("the programs of (2, 2, 1)")) == {"wrong4"}
    bias = page.line("load bias_ptr")
    assert "products.py:43 acc += tl.load(bias_ptr + m, mask=m &lt; M)" in bias
    assert "bias_ptr[0:16]; once; a tile of 16×1; all lanes on" in bias
    a = page.line("load a_ptr")
    assert "3 times; a tile of 16×16; 640 of 768 lanes on" in a
    outlined = re.findall(r'<path class="tile" d="([^"]+)"', page.line("load b_ptr"))
    assert len(outlined) == 2  # a column of lanes, and one of elements
    assert all(path.count("h") == 2 for path in outlined)
    store = page.line("store out_ptr")
    assert store.count('class="wrong4"') > 16
    history = page.text.partition('<h2 id="way1">On the way to out_ptr[7, 10], lane [7, 10]')[2]
    told = re.sub(r"<[^>]+>", "", history)
    assert re.search(r":22 m = tl\.program_id\(0\).*\n\s*m = 7\b", told)
    assert re.search(r":43 acc \+= tl\.load\(bias_ptr.*\n\s*acc = -8\.27578", told)
    assert re.search(
        r'<a href="#(\w+)">:43</a>.*id="\1">\s*<h3[^>]*>load <code>bias', history, re.S
    )


def test_masked_off_lanes_and_the_elements_they_point_at() -> None:
    page = broken(gallery("row max"), "neutral element of a sum")
    assert page.looks("lanes of the tile") == ["on"] * 24 + ["off"] * 8
    rows = np.array(page.looks("elements of x_ptr (5×24)")).reshape(5, 24)
    assert (rows[2] == "on").all()
    assert list(rows[3]) == ["idle"] * 8 + ["rest"] * 16
    assert set(rows[[0, 1, 4]].reshape(-1)) == {"rest"}
    assert "24 of 32 lanes on" in page.text


def test_an_access_out_of_bounds() -> None:
    page = broken(gallery("max pool"), "pixels of the next row")
    assert "load x_ptr, out of bounds" in re.sub(r"<[^>]+>", "", page.text)
    assert page.looks("lanes of the tile") == ["on"] * 5 + ["wrong4"] + ["off"] * 2
    assert 'class="mark"' in page.line("load x_ptr")
    assert "What led there, in lane [5]" in page.text
    assert "Wrong elements" not in page.text


@triton.jit
def misses(x_ptr, out_ptr, N, BLOCK: tl.constexpr):
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + n, mask=n < N, other=0.0)
    tl.store(out_ptr + n, tl.where(n % 1000 == 777, float("nan"), x), mask=n < N - 1)


def test_a_large_tensor_is_zoomed_and_shown_whole() -> None:
    x, out = torch.arange(100.0 * 100).reshape(100, 100), torch.zeros(100, 100)
    found = debug(misses, (79,), (x, out, 10000), oracle=lambda: x, BLOCK=128)
    page = Page(found.to_html())
    label = "out_ptr, the part around the worst element: its wrong elements"
    looks = page.looks(label)
    assert len(looks) == 32 * 24  # rows around the worst; columns 77 to 99 and one beside them
    titles = [title for title in page.titles(label) if not title.endswith("right")]
    assert titles
    assert all("got nan" in title or title.endswith(", never stored") for title in titles)
    assert looks.count("nan") + looks.count("never") == len(titles)
    whole = page.looks("out_ptr, all of it: where wrong elements lie")
    assert sum(look != "right" for look in whole) == found.wrong[0].deviation.wrong == 11
    assert "elements of x_ptr (100×100), the part around them" in page.text


def test_a_healthy_kernel_says_so() -> None:
    exhibit = GALLERY[gallery("row max")]
    page = Page(exhibit.healthy(torch.float32).debug().to_html())
    assert re.search(r'class="verdict good">✓ nothing wrong found', page.text)
    assert "No program ran again" in page.text
    assert "out_ptr: all 5 elements are right" in page.text
    assert not page.pictures


def test_a_hazard_is_told_with_its_lines() -> None:
    page = broken(gallery("row sum"), "undefined lanes in a sum")
    assert re.search(r'class="verdict bad">✗ (RIGHT BY LUCK|WRONG)', page.text)
    assert "undefined value: " in page.text


def test_one_file_that_loads_nothing_and_escapes_what_kernels_say() -> None:
    page = broken(gallery("matmul with bias"), "bias by row")
    outside = re.findall(r"""(?:src|href)=["'](?!#|data:,)|@import|url\(""", page.text)
    assert outside == []
    assert "<script" not in page.text
    assert "mask=m < M" not in page.text
    assert len(page.text) < 300_000


# ---- the command ----


def test_the_command_writes_it(tmp_path: Path) -> None:
    file = tmp_path / "debug.html"
    words = ["debug", "square", "--shape", "70", "--program", "0", "--html", str(file)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    page = Page(file.read_text(encoding="utf-8"))
    assert "✓ nothing wrong found" in page.text
    assert page.looks("elements of x_ptr")[:70] == ["on"] * 70


def test_what_it_cannot_write_is_refused_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    done = CliRunner().invoke(app, ["debug", "square", "--html", "no/such/folder/x.html"])
    assert done.exit_code == 2
    assert "cannot write there" in done.output

    def missing(*names: str) -> None:
        raise rendering.PackageMissing(f"needs {names[0]}")

    monkeypatch.setattr(rendering, "check_packages", missing)
    file = str(tmp_path / "x.html")
    done = CliRunner().invoke(app, ["debug", "square", "--html", file])
    assert done.exit_code == 2
    assert "--html needs jinja2" in done.output


# ---- CUDA ----

PARAMETERS = "const float* x, const float* bias, float* y, int rows, int columns, cudaStream_t s"
SOURCE = """
__global__ void add_bias(const float* x, const float* bias, float* out, int rows, int columns) {
  int row = blockIdx.x, column = threadIdx.x;
  if (column < columns) out[row * columns + column] = x[row * columns + column] + bias[row];
}
void wrong_bias(const float* x, const float* bias, float* y, int rows, int columns,
                cudaStream_t stream) {
  LAUNCH(add_bias, rows, 32, 0, stream, x, bias, y, rows, columns);
}
"""


@needs_host
@pytest.mark.usefixtures("own_library_cache")
def test_a_cuda_kernel() -> None:
    """Its wrong elements, and the elements that the thread at fault loaded and stored."""
    module = load_inline(SOURCE, {"wrong_bias": PARAMETERS}, name="kernels")
    x, bias, out = torch.ones(3, 20), torch.arange(20.0), torch.empty(3, 20)
    found = debug_cuda(
        module.wrong_bias,
        (x, bias, out, 3, 20),
        oracle=lambda x, bias, *_: x + bias,
        tools=("values", "initcheck"),
    )
    page = Page(found.to_html())
    looks = np.array(page.looks("y: its wrong elements")).reshape(3, 20)
    assert {(r, r) for r in range(3)} == {
        (int(r), int(c)) for r, c in zip(*np.nonzero(looks == "right"))
    }
    row, column = found.thread().worst  # type: ignore[union-attr]
    loaded = page.looks("elements of bias (20)")
    assert [i for i, look in enumerate(loaded) if look == "on"] == [row]
    stored = page.looks("elements of y (3×20)")
    assert [i for i, look in enumerate(stored) if look == "on"] == [20 * row + column]
    assert "Block (" in page.text
    assert "map" not in found.to_dict()["steps"][0]["wrong"][0]


# ---- planes ----


@pytest.mark.parametrize(
    ("shape", "rows", "columns", "label"),
    [
        ((), 1, 1, "0"),
        ((5,), 1, 5, "0"),
        ((70,), 3, 32, "32"),
        ((4, 6), 4, 6, "1"),
        ((2, 3, 6), 6, 6, "0, 1"),
        ((50, 1), 2, 32, "32"),
    ],
)
def test_planes(shape: tuple[int, ...], rows: int, columns: int, label: str) -> None:
    plane = Plane(shape)
    assert (plane.rows, plane.columns) == (rows, columns)
    assert plane.row_label(min(1, rows - 1)) == label


def test_windows() -> None:
    plane = Plane((100, 200))
    assert planes.everything(plane) == Window(0, 0, 100, 200, 4, 7)
    few = np.array([50 * 200 + 60, 52 * 200 + 64])
    assert planes.around(plane, few) == Window(49, 59, 5, 7)
    far = np.array([0, 99 * 200 + 199])
    assert planes.around(plane, far, centre=99 * 200 + 199) == Window(68, 168, 32, 32)
    binned = planes.around(plane, far)
    assert binned == Window(0, 0, 100, 200, 4, 7)
    assert binned.counts(plane, far).sum() == 2
    assert binned.elements(plane).sum() == plane.size


def test_places_in_row_major_order() -> None:
    """Of a view with gaps, the elements between are none of its own; those of an expanded one have
    index 0 where the stride is."""
    t = torch.zeros(4, 8)[:, ::2]
    at = planes.row_major(placed("x", t), np.array([0, 2, 3, 8, 30, 32, -1]))
    assert at.tolist() == [0, 1, -1, 4, 15, -1, -1]
    turned = torch.zeros(4, 8).T
    assert planes.row_major(placed("x", turned), np.array([1, 8])).tolist() == [4, 1]
    wide = torch.zeros(1, 3).expand(4, 3)
    assert planes.row_major(placed("x", wide), np.array([2])).tolist() == [2]
    assert planes.row_major(placed("x", torch.zeros(())), np.array([0, 1])).tolist() == [0, -1]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.int32, torch.bool])
def test_a_map_of_any_dtype_goes_from_process_to_process(dtype: torch.dtype) -> None:
    got = torch.tensor([[1, 0], [1, 1]]).to(dtype)
    expected = torch.tensor([[1.0, float("inf")], [1.0, float("nan")]])
    wrong = np.array([[False, True], [False, True]])
    found = error_map(got, expected, wrong, (0, 1))
    again = ErrorMap.of(json_safe(found.to_dict()))
    assert again.state == [[0, 1], [0, 1]]
    assert again.expected[0][1] == float("inf")
    assert again.got == [[1.0, 0.0], [1.0, 1.0]]
    assert (again.window, again.worst, again.shape) == (found.window, 1, (2, 2))
