"""Models of Hugging Face's transformers train and write on `maca` with no code but the device's name."""

from __future__ import annotations

import importlib.util
import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "train_hf.py"

RunPython = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.mark.parametrize("model", ["gpt2", "llama", "mixtral"])
def test_a_model_learns_to_count_on_maca_with_the_losses_of_the_cpu(
    run_python: RunPython, tmp_path: Path, model: str
) -> None:
    report = tmp_path / "runs.json"
    done = run_python(SCRIPT, "--model", model, "--device", "maca", "--compare", "cpu", "--json", report)
    assert done.returncode == 0, done.stdout + done.stderr
    on_maca, on_cpu = json.loads(report.read_text())
    assert (on_maca["device"], on_cpu["device"]) == ("maca", "cpu")
    assert on_maca["losses"] == pytest.approx(on_cpu["losses"], abs=1e-4)
    assert on_maca["losses"][0] == pytest.approx(math.log(32), abs=0.5)  # it knows nothing yet
    assert on_maca["losses"][-1] < 1
    assert on_maca["written"] == list(range(4, 16))  # what comes after 0, 1, 2, 3
    assert "the same tokens" in done.stdout


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("train_hf", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["train_hf"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("losses", "written", "fails"),
    [
        ([3.0, 2.0], [4, 5], False),
        ([3.0, 2.00009], [4, 5], False),
        ([3.0, 2.00011], [4, 5], True),
        ([3.0, 2.0], [4, 6], True),
    ],
    ids=["equal", "as good as equal", "another loss", "another token"],
)
def test_two_devices_that_disagree_fail_the_comparison(
    script: ModuleType, losses: list[float], written: list[int], fails: bool
) -> None:
    runs = [script.Run("maca", [3.0, 2.0], [4, 5]), script.Run("cpu", losses, written)]
    assert script.differ(runs) == fails
