"""python -m compare profile: its folder, its output, and what it refuses."""

from __future__ import annotations

import functools
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from profiled import FakeCuda, Ncu, event, profile

from compare.commands import profile as command
from compare.profiling import counters, folder, recording
from compare.reporting import profiles, sources
from compare.timing.engine import Candidate

RECORD = recording.record


# ---- the folder ----


def test_a_run_takes_the_place_of_a_former_one_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "new" / "add"
    assert folder.check(target) == ""
    with folder.filled(target, {"op": "add"}) as made:
        (made / "a.json").write_text("1")
        (made / "logs").mkdir()
        (made / "logs" / "b.json").write_text("2")
        assert not target.exists()
    assert json.loads((target / folder.SUMMARY).read_text())["files"] == ["a.json", "logs/b.json"]
    (target / "notes.txt").write_text("mine")
    assert folder.check(target) == ""

    def interrupted() -> None:
        with folder.filled(target, {}) as made:
            (made / "a.json").write_text("3")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert (target / "a.json").read_text() == "1"
    with folder.filled(target, {}) as made:
        (made / "a.json").write_text("4")
    found = {str(path.relative_to(target)) for path in target.rglob("*") if path.is_file()}
    assert found == {"a.json", "notes.txt", folder.SUMMARY}  # what is not ours stays
    assert (target / "a.json").read_text() == "4"


def test_folders_that_are_not_ours_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    assert folder.check(file) == "is a file; name a folder"
    assert "is not empty and not from a former run" in folder.check(tmp_path)
    assert "cannot be made" in folder.check(file / "below")
    for text in ("{}", '{"made_by": "someone", "files": []}', "no json", "[]"):
        (tmp_path / folder.SUMMARY).write_text(text)
        assert "is not empty and not from a former run" in folder.check(tmp_path)
    # A list of files that points elsewhere deletes nothing there.
    target = tmp_path / "ours"
    target.mkdir()
    listed = {"made_by": folder.MADE_BY, "files": ["../file", "gone"]}
    (target / folder.SUMMARY).write_text(json.dumps(listed))
    assert folder.check(target) == ""
    with folder.filled(target, {}):
        pass
    assert file.exists()


# ---- the command ----


def test_dry_run_says_what_would_be_done(ncu: Ncu, tmp_path: Path) -> None:
    words = ["--tensorboard", "--out", str(tmp_path / "o"), "--providers", "cuda/tiled,eager"]
    done = profile("linear_gelu", "--dry-run", *words, "--steps", "3", "--shape", "64,48,32")
    assert done.exit_code == 0, done.output
    heading, torchs, board, counting, nsys = done.stdout.splitlines()
    assert heading.startswith("linear_gelu float16 64x48x32 ")
    assert heading.endswith(": cuda/tiled, eager")
    assert torchs == (
        "torch.profiler: 3 steps of 10 calls, after 1 that is not recorded and 1 to warm up → "
        f"{tmp_path}/o/linear_gelu.trace.json"
    )
    assert board == f"for TensorBoard → {tmp_path}/o/tensorboard"
    assert f"--export {tmp_path}/o/cuda-tiled.ncu-rep python -m compare profile" in counting
    assert "--clock-control none" in counting
    words = shlex.split(nsys.split(": ", 1)[1])
    assert words[:3] == ["nsys", "profile", "--trace=cuda,nvtx"]
    assert f"--output={tmp_path}/o.nsys-rep" in words
    # Its program is this command, which takes these very words.
    program = words[words.index("-m") + 1 :]
    assert program[:2] == ["compare", "profile"]
    again = profile(*program[2:], "--dry-run")
    assert again.exit_code == 0, again.output
    assert again.stdout.splitlines()[0] == heading
    assert "not asked for" in profile("add", "--dry-run", "--no-ncu").stdout
    assert profile("add", "--dry-run").stdout.startswith("add float16 2048x2048 ")
    assert ": triton, eager, compile" in profile("add", "--dry-run").stdout
    assert " 2048x2048x2048 " in profile("gemm_bias_act", "--dry-run").stdout
    assert not ncu.log.exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_there_is_nothing_to_profile(tmp_path: Path) -> None:
    done = profile("add", "--out", str(tmp_path / "o"))
    assert done.exit_code == 3
    assert "nothing to profile: no CUDA device (--dry-run shows" in done.stderr
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["ad"], "no op 'ad'"),
        (["add", "--providers", "cudnn"], "--providers cudnn: "),
        (["add", "--providers", "triton/f32"], "--providers triton/f32: none takes add float16"),
        (["add", "--dtype", "int7"], "--dtype int7: one of "),
        (["add", "--shape", "4x"], "--shape 4x: sizes with commas"),
        (["add", "--shape", "8,8,8"], "--shape 8,8,8: add has 2 sizes"),
        (["add", "--ncu"], "--ncu: ncu is neither on PATH nor in CUDA_HOME's bin"),
        (["add", "--out", "/dev/null"], "--out /dev/null is a file; name a folder"),
        (["add", "--json", "/no/such/x.json"], "--json /no/such/x.json: cannot write there"),
        (["add", "--json", "x.json", "--ranges-only"], "--json has nothing to write"),
        (["add", "--steps", "0"], "Invalid value for '--steps'"),
    ],
)
def test_profile_usage_errors(words: list[str], says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counters, "find", lambda: None)
    done = profile(*words)
    assert done.exit_code == 2
    assert says in re.sub(r"[\s│]+", " ", done.stderr), done.stderr


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole command without a GPU: eager on the CPU, and kernels put into its trace."""
    record = functools.partial(recording.record, device="cpu")

    def recorded(them: Any, arguments: Any, file: Path, *words: Any, **more: Any) -> None:
        record(them, arguments, file, *words, **more)
        trace = json.loads(file.read_text())
        ranges = [e for e in trace["traceEvents"] if e.get("cat") == "user_annotation"]
        for number, found in enumerate(ranges):
            if found["name"] == "eager":
                at = found["ts"]
                trace["traceEvents"] += [
                    event("cuda_runtime", "cudaLaunchKernel", at, 1, number),
                    event("kernel", "void relu<float>(int)", at + 9, 2, number),
                ]
        file.write_text(json.dumps(trace))

    monkeypatch.setattr(command, "need_gpu", lambda what: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(command.recording, "record", recorded)
    monkeypatch.setattr(command.bench, "inputs", lambda spec, case, seed: spec.inputs(case))


def test_the_whole_command(pretended: None, ncu: Ncu, tmp_path: Path) -> None:
    target = tmp_path / "o"
    words = ["relu_scale", "--providers", "eager", "--shape", "8,8", "--out", str(target)]
    kept = tmp_path / "profile.json"
    more = ["--tensorboard", "--steps", "2", "--calls", "1", "--json", str(kept)]
    done = profile(*words, *more)
    assert done.exit_code == 0, done.output
    assert re.search(r"^eager +2\.00 +1 ", done.stdout, re.M), done.stdout
    assert re.search(r"^  relu<float> +1 +2\.00 +100 %", done.stdout, re.M), done.stdout
    assert re.search(r"^  relu ×2 +6.00 +60.0 ", done.stdout, re.M), done.stdout
    opened = done.stdout[done.stdout.index("\nopen\n") :]
    assert f"{target}/relu_scale.trace.json  https://ui.perfetto.dev" in opened
    assert f"tensorboard --logdir {target}/tensorboard" in opened
    assert f"ncu-ui {target}/eager.ncu-rep" in opened
    assert "nsys profile" in opened
    found = json.loads((target / folder.SUMMARY).read_text())
    board = next(name for name in found["files"] if name.startswith("tensorboard/"))
    assert set(found["files"]) == {"eager.ncu-rep", "relu_scale.trace.json", board}
    assert all((target / name).is_file() for name in found["files"])
    assert found["profiles"][0]["kernels"] == [
        {"name": "void relu<float>(int)", "count": 1.0, "microseconds": pytest.approx(2.0)}
    ]
    assert [kernel["launches"] for kernel in found["counters"][0]["kernels"]] == [1, 2]
    # --json: the same figures, which the report takes from either file.
    told = json.loads(kept.read_text())
    assert {**told, "made_by": found["made_by"], "files": found["files"]} == found
    assert told["environment"]["date"]
    (source,) = sources.read([kept])
    shown = profiles.context(source)
    assert shown["kernels"] == [("eager", [["relu<float>", "1", "2.00", "100 %"]])]
    assert [line[0] for _, lines in shown["counted"] for line in lines] == [
        "mul<float, 4>",
        "relu ×2",
    ]
    assert profiles.context(*sources.read([target / folder.SUMMARY]))["kernels"] == shown["kernels"]
    counting = ncu.commands()[0]
    assert counting[-5:] == ["--steps", "1", "--calls", "1", "--ranges-only"]
    # Once more, over it; then not over what is not ours.
    assert profile(*words, "--no-ncu").exit_code == 0
    assert not (target / "eager.ncu-rep").exists()
    (target / folder.SUMMARY).unlink()
    refused = profile(*words)
    assert refused.exit_code == 2
    assert "is not empty and not from a former" in re.sub(r"[\s│]+", " ", refused.stderr)


def test_one_hopeless_ncu_is_enough(pretended: None, ncu: Ncu, tmp_path: Path) -> None:
    ncu.answers(says="==ERROR== ERR_NVGPUCTRPERM - no")
    found = command._counted(
        command._Plan(command.timed_case(command.spec_named("add"), "float16", "8,8"), ["a", "b"],
                      tmp_path / "o", False, "ncu", 1, 1),
        ["a", "b"], tmp_path,
    )  # fmt: skip
    assert [each.provider for each in found] == ["a"]
    words = ["relu_scale", "--providers", "eager", "--shape", "8,8", "--out", str(tmp_path / "o")]
    done = profile(*words)
    assert done.exit_code == 0  # the trace is there all the same
    text = re.sub(r"\s+", " ", done.stdout)
    assert "eager: this user may not read the GPU's counters: run as root" in text
    assert "ncu-ui" not in text


def test_a_trace_without_kernels_fails(
    pretended: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(command.recording, "record", functools.partial(RECORD, device="cpu"))
    words = ["--providers", "eager", "--shape", "8,8", "--no-ncu", "--out", str(tmp_path / "o")]
    done = profile("relu_scale", *words)
    assert done.exit_code == 1
    assert "torch.profiler saw no kernels of some providers" in done.stderr
    assert "none seen" in done.stdout


def test_what_is_wrong_is_left_out_and_told(
    pretended: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def broken(spec: Any, case: Any, names: Any) -> Any:
        def fail(*arguments: Any) -> None:
            raise RuntimeError("no such kernel\nsecond line")

        yield Candidate("triton", fail)
        yield Candidate("eager", lambda args, kwargs: spec.eager(*args, **kwargs))
        yield Candidate("compile", lambda args, kwargs: args[0] + 1)

    monkeypatch.setattr(command.providers, "candidates", broken)
    words = ["relu_scale", "--shape", "8,8", "--no-ncu", "--out", str(tmp_path / "o")]
    done = profile(*words)
    assert done.exit_code == 1
    assert "triton: RuntimeError no such kernel\n" in done.stderr
    assert "compile: wrong: off by " in done.stderr
    found = json.loads((tmp_path / "o" / folder.SUMMARY).read_text())
    assert [each["provider"] for each in found["profiles"]] == ["eager"]
    assert set(found["problems"]) == {"triton", "compile"}


def test_under_another_profiler_only_the_ranges_run(
    pretended: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cuda = FakeCuda()
    monkeypatch.setattr(
        command.recording, "run_in_ranges", functools.partial(recording.run_in_ranges, cuda=cuda)
    )
    words = ["relu_scale", "--providers", "eager", "--shape", "8,8", "--steps", "1"]
    words += ["--out", str(tmp_path / "o")]
    done = profile(*words, "--ranges-only")
    assert (done.exit_code, done.stdout) == (0, "")
    expected = ["wait", "start", "<step 0", "<eager", "eager>", "wait", "step 0>", "stop"]
    assert cuda.log == expected
    monkeypatch.setenv("NSYS_PROFILING_SESSION_ID", "1")
    done = profile(*words)
    assert done.exit_code == 0, done.output
    assert "Nsight Systems runs this process" in done.stdout
    assert cuda.log == 2 * expected
    assert not (tmp_path / "o").exists()


# ---- on a GPU ----


@pytest.mark.gpu_only
def test_profile_on_a_gpu(tmp_path: Path) -> None:
    target = tmp_path / "o"
    words = ["relu_scale", "--providers", "triton,eager", "--shape", "1024,1024", "--no-ncu"]
    done = profile(*words, "--steps", "2", "--tensorboard", "--out", str(target))
    assert done.exit_code == 0, done.output
    found = json.loads((target / folder.SUMMARY).read_text())
    triton, eager = found["profiles"]
    assert [kernel["count"] for kernel in triton["kernels"]] == [1.0]  # a call is one kernel
    assert sum(kernel["count"] for kernel in eager["kernels"]) == 2.0  # relu, then mul
    assert 0 < triton["gpu"] < 1000
    assert triton["first"] > 0


@pytest.mark.gpu_only
@pytest.mark.skipif(counters.find() is None, reason="ncu is not installed")
def test_ncu_on_a_gpu(tmp_path: Path) -> None:
    target = tmp_path / "o"
    words = ["relu_scale", "--providers", "triton", "--shape", "4096,4096", "--ncu"]
    done = profile(*words, "--steps", "1", "--out", str(target))
    assert done.exit_code == 0, done.output
    (found,) = json.loads((target / folder.SUMMARY).read_text())["counters"]
    if found["problem"] and ("root" in found["problem"] or "machine" in found["problem"]):
        pytest.skip(found["problem"])
    (kernel,) = found["kernels"]
    values = kernel["values"]
    assert kernel["launches"] == 1
    assert 5 < values["gpu__time_duration.sum"] < 1000
    assert 16 < values["dram__bytes.sum"] < 100  # 33.6 MB are read, and up to as much written
    assert values["launch__registers_per_thread"] >= 16
    assert (target / "triton.ncu-rep").stat().st_size > 0
