"""The documents: their Python examples run, and their tables of variables are complete."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tefl import _env

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    "README.md",
    "README.zh.md",
    "docs/quickstart.md",
    "docs/plugins.md",
    "docs/policy.md",
    "docs/transformer_engine.md",
]


@pytest.mark.parametrize("page", PAGES)
def test_the_python_examples_of_a_page_run_one_after_the_other(
    page: str, run_python: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)
    assert blocks
    done = run_python("-c", "\n".join(blocks))
    assert done.returncode == 0, done.stdout + done.stderr


def variables(page: str) -> set[str]:
    """Return the variables in the first column of the tables of a page."""
    rows = re.findall(r"^\| (`[A-Z].*?) \|", (ROOT / page).read_text(), re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`(\w+)`", row)}


def test_the_policy_page_has_every_variable_there_is_and_no_other() -> None:
    assert variables("docs/policy.md") == set(_env.VARIABLES)


@pytest.mark.parametrize("page", ["README.md", "README.zh.md"])
def test_the_readmes_have_every_variable_but_those_of_the_simulated_device(page: str) -> None:
    assert variables(page) == {name for name in _env.VARIABLES if not name.startswith("TEFL_SIM_")}


@pytest.mark.parametrize(
    "path", sorted(ROOT.glob("docs/*.md")) + sorted(ROOT.glob("*.md")), ids=lambda p: p.name
)
def test_links_between_the_documents_lead_to_files(path: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", path.read_text())
    assert [link for link in links if not (path.parent / link).exists()] == []
