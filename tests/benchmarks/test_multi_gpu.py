"""benchmarks/multi_gpu.py: a part that fails, however, is recorded, and nothing of it goes on running."""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
LIMIT = 120  # seconds; what takes so long hangs


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("multi_gpu")


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def until(condition: Any) -> None:
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_parts_that_fail_are_recorded_and_the_others_run(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    parts = {
        "collectives": lambda _options: json.loads("no JSON"),
        "ddp": lambda _options: dict(zip("ab", "c", strict=True)),
        "copies": lambda options: script.python("-c", "import sys; sys.exit('too bad')", provider="sim"),
        "killed": lambda _options: {"seconds": 1},
    }
    for name, part in parts.items():
        monkeypatch.setitem(script.PARTS, name, part)
    command = ["multi_gpu.py", "--provider", "sim", "--json", str(tmp_path), "--only", *parts]
    monkeypatch.setattr(sys, "argv", command)
    assert script.main() == 1
    (file,) = tmp_path.glob("*.json")
    facts = json.loads(file.read_text())
    assert facts["collectives"]["failed"].startswith("JSONDecodeError: ")
    assert facts["ddp"]["failed"].startswith("ValueError: ")
    assert facts["copies"] == {"failed": "RuntimeError: status 1: too bad\n"}
    assert facts["killed"] == {"seconds": 1}


def test_copies_and_a_killed_rank_can_be_tried_on_the_simulated_device(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "not there yet"
    command = ["multi_gpu.py", "--provider", "sim", "--plain", "cpu", "--json", str(folder)]
    monkeypatch.setattr(sys, "argv", [*command, "--only", "copies", "killed"])
    monkeypatch.setenv("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    assert script.main() == 0
    (file,) = folder.glob("*.json")
    facts = json.loads(file.read_text())
    assert facts["copies"] == {"maca:0 to maca:1": True, "maca:1 to maca:0": True}
    assert facts["killed"]["statuses"] == [1, -signal.SIGKILL]
    assert "ended: rank 0 after" in facts["killed"]["says"][0]
    assert "DistBackendError" in facts["killed"]["says"][0]


def test_a_rank_that_is_not_killed_but_fails_is_no_result(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "argv", ["multi_gpu.py", "--provider", "sim", "--only", "killed"])
    monkeypatch.setattr(script, "__file__", str(tmp_path / "no such script.py"))
    assert script.main() == 1


def test_without_gpus_nothing_is_run_and_nothing_written(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(script.torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(sys, "argv", ["multi_gpu.py", "--json", str(tmp_path)])
    with pytest.raises(SystemExit):
        script.main()
    assert (
        "2 ranks want as many NVIDIA GPUs, and this process sees 1: use a CUDA build"
        in capsys.readouterr().err
    )
    assert not list(tmp_path.iterdir())


def test_the_ranks_of_a_torchrun_that_takes_too_long_are_ended_with_it(
    script: ModuleType, tmp_path: Path
) -> None:
    program = tmp_path / "rank.sh"
    # torchrun, when it is ended within its own start, leaves the ranks that it has begun: they wait a little.
    announce = 'echo $$ > "$1/$RANK.part"; mv "$1/$RANK.part" "$1/$RANK"'
    program.write_text(f"echo begun; sleep 3; {announce}; exec sleep 600")
    command = ["--nproc-per-node", "2", "--no-python", "sh", program, tmp_path]
    process = script.started(["-m", "torch.distributed.run", "--standalone", *command], "none")
    until(lambda: all((tmp_path / rank).exists() for rank in "01"))
    pids = [int((tmp_path / rank).read_text()) for rank in "01"]
    outcome = script.outcome(process, 0)
    assert not outcome.in_time
    assert str(outcome).startswith("not done in time, status ")
    assert "begun" in outcome.output
    until(lambda: not any(is_running(pid) for pid in pids))
