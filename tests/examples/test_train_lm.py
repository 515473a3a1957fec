"""The main job: a model trains on the device `maca` as it does on the CPU, and says who computed what."""

from __future__ import annotations

import importlib.util
import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ..processes import raised

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SCRIPT = EXAMPLES / "train_lm.py"
TINY = "--steps 3 --batch 2 --dim 32 --layers 1 --heads 2 --context 32 --sample 8".split()  # noqa: SIM905

RunPython = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def train(run_python: RunPython, tmp_path: Path) -> Callable[..., tuple[dict[str, Any], str]]:
    """Run the script; return what it wrote to --losses and what it printed to both streams."""

    def run(device: str, *options: str, **variables: str) -> tuple[dict[str, Any], str]:
        report = tmp_path / f"{device}.json"
        where = ["--device", device, "--losses", report, "--out", tmp_path / device]
        done = run_python(SCRIPT, *where, *options, **variables)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(report.read_text()), done.stdout + done.stderr

    return run


# ------------------------------------------------------------------------------ the same losses everywhere --


@pytest.mark.parametrize(
    "options",
    [
        pytest.param("--dim 64 --layers 2 --batch 4 --context 64", id="a smaller model"),
        pytest.param("--batch 2", id="the demo's model"),
    ],
)
def test_the_first_50_losses_on_maca_are_those_on_the_cpu(train: Callable[..., Any], options: str) -> None:
    common = ["--steps", "50", "--sample", "0", *options.split()]
    on_cpu, _ = train("cpu", *common)
    on_maca, _ = train("maca", *common)
    assert len(on_cpu["train"]) == 50
    assert on_maca["train"] == pytest.approx(on_cpu["train"], rel=1e-4)
    assert on_maca["held_out"] == pytest.approx(on_cpu["held_out"], rel=1e-4)
    before, after = on_maca["held_out"]["0"], on_maca["held_out"]["50"]
    assert before == pytest.approx(math.log(256), abs=0.1)  # it knows nothing yet
    assert after < 3.1  # single bytes of this text have an entropy of 3.15: it has learned from context


def test_another_seed_gives_other_losses(train: Callable[..., Any]) -> None:
    first, second = (train("cpu", *TINY, "--seed", seed)[0]["train"] for seed in ("0", "1"))
    assert first != second


# ----------------------------------------------------------------------------------------- what it reports --


def test_it_prints_losses_a_sample_and_the_table_and_draws_the_curve(
    train: Callable[..., Any], tmp_path: Path
) -> None:
    report, text = train("maca", *TINY)
    before, after = report["held_out"]["0"], report["held_out"]["3"]
    assert f"held-out loss: {before:.3f} nats/byte before, {after:.3f} after 3 steps" in text
    assert "the model writes:\n\ndef " in text
    rows = [line.split() for line in text.splitlines()]
    assert ["op", "implementation", "device", "calls"] in rows
    for row in report["implementations"]:
        assert [str(cell) for cell in row] in rows
    assert (tmp_path / "maca" / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_an_unknown_device_is_an_error_that_lists_the_known_ones(run_python: RunPython) -> None:
    done = run_python(SCRIPT, "--device", "acme")
    assert done.returncode == 2
    assert "'acme'" in done.stderr
    assert "cpu" in done.stderr
    assert "maca" in done.stderr


# ------------------------------------------------------------------------ which implementation, by setting --

REFERENCE, VENDOR = "reference.torch", "vendor.maca"


@pytest.mark.parametrize(
    ("variables", "winner"),
    [
        ({}, VENDOR),
        ({"TE_FL_PREFER": "reference"}, REFERENCE),
        ({"TE_FL_DENY_VENDORS": "maca"}, REFERENCE),
        ({"TE_FL_ALLOW_VENDORS": "other"}, REFERENCE),
        ({"TE_FL_PER_OP": "rmsnorm_fwd=reference"}, REFERENCE),
        ({"TE_FL_PER_OP": "rmsnorm_fwd=vendor:maca|reference"}, VENDOR),
        ({"TE_FL_PREFER_VENDOR": "1"}, VENDOR),
        ({"TE_FL_PREFER_VENDOR": "1", "TE_FL_PREFER": "reference"}, REFERENCE),
    ],
    ids=lambda value: " ".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else value,
)
def test_the_setting_decides_who_computes_rmsnorm(
    train: Callable[..., Any], variables: dict[str, str], winner: str
) -> None:
    report, _ = train("maca", *TINY, **variables)
    ran = {(op, implementation, device) for op, implementation, device, _count in report["implementations"]}
    assert ran == {("rmsnorm_fwd", winner, "maca"), ("rmsnorm_bwd", REFERENCE, "maca")}


def test_a_failing_implementation_is_replaced_with_one_warning_naming_both(
    train: Callable[..., Any],
) -> None:
    report, text = train("maca", *TINY, MACA_FAIL="1")
    ran = {implementation for op, implementation, *_ in report["implementations"] if op == "rmsnorm_fwd"}
    assert ran == {REFERENCE}
    warnings = [line for line in text.splitlines() if "MACA_FAIL=1 tells this implementation to fail" in line]
    assert len(warnings) == 1
    assert VENDOR in warnings[0]
    assert REFERENCE in warnings[0]


def test_a_failing_implementation_ends_a_strict_run_by_its_own_exception(run_python: RunPython) -> None:
    done = run_python(SCRIPT, "--device", "maca", *TINY, MACA_FAIL="1", TE_FL_STRICT="1")
    assert done.returncode == 1
    assert (
        raised(done.stderr)
        == "maca_provider.library.MacaError: MACA_FAIL=1 tells this implementation to fail"
    )


# ------------------------------------------------------------------------------------------------ the text --


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """The script as a module; it imports its neighbour by name."""
    sys.path.insert(0, str(EXAMPLES))
    try:
        spec = importlib.util.spec_from_file_location("train_lm", SCRIPT)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["train_lm"] = module
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(EXAMPLES))


def test_the_held_out_text_is_of_other_files_and_the_same_each_time(script: ModuleType) -> None:
    first, second = script.read_corpus(), script.read_corpus()
    assert bytes(first.held_out) == bytes(second.held_out)
    whole = sum(map(len, script.standard_library_sources().values()))
    assert 0.02 < len(first.held_out) / whole < 0.1
    separators = len(script.standard_library_sources()) - 2  # one between each two files of the same text
    assert len(first.train) + len(first.held_out) == whole + separators


def test_the_text_is_the_standard_library_without_tests_and_other_packages(script: ModuleType) -> None:
    names = list(script.standard_library_sources())
    assert names == sorted(names)
    assert {"argparse.py", "asyncio/tasks.py", "os.py"} <= set(names)
    assert not any({"test", "tests", "site-packages"} & set(Path(name).parts) for name in names)
