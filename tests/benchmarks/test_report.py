"""benchmarks/report.py: the README shows what the files of results hold."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT))
    return importlib.import_module("benchmarks.report")


def test_the_tables_of_the_readme_are_those_of_the_newest_files(report, tmp_path: Path) -> None:
    """Otherwise run `python benchmarks/report.py`."""
    copy = tmp_path / "README.md"
    copy.write_text((ROOT / "README.md").read_text())
    blocks = report.blocks_of(report.newest())
    assert set(blocks) == {"overhead", "device", "several-gpus"}
    for name, tables in blocks.items():
        report.rewrite(copy, name, tables)
    assert copy.read_text() == (ROOT / "README.md").read_text()


def test_every_table_has_its_picture(report) -> None:
    for path in report.newest():
        assert path.with_suffix(".svg").exists()


@pytest.mark.parametrize(
    ("limit", "value", "shown"),
    [(None, 2.0, ""), (1.0, 1.0, "≤ 1"), (1.5, 1.4, "≤ 1.5"), (1.0, 1.001, "≤ 1, missed")],
)
def test_a_goal_that_was_missed_says_so(report, limit: float | None, value: float, shown: str) -> None:
    assert report.goal_of(limit, value) == shown


def test_a_readme_without_the_block_is_refused(report, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("nothing")
    with pytest.raises(ValueError, match="lacks the markers"):
        report.rewrite(tmp_path / "README.md", "device", [["row"]])


def test_parts_of_multi_gpu_that_failed_have_no_line(report) -> None:
    facts = {
        "nccl": "2",
        "torch": "2",
        "date": "2026-01-01",
        "ranks": 2,
        "gpus": ["H200"],
        "provider": "cuda",
    }
    parts = ("collectives", "ddp", "fsdp", "copies", "killed")
    assert report.several_gpus_table(facts | {part: {"failed": "ValueError: no"} for part in parts}) == (
        report.several_gpus_table(facts)
    )
