"""Where things lie: which way imports point, how long a file may be, what each part may include and read."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LONGEST = 400
SOURCES = ("*.py", "*.cpp", "*.h", "*.cu", "*.cuh", "*.c", "*.md")

# What each part may import of the others. Whoever is to be imported is named by the longest prefix that
# matters: "dispatch" is all of it, "dispatch.types" that module alone.
LEAVES = {"_env", "_errors", "_lazy", "_log", "_native"}
ARROWS = {
    "_env": {"_errors"},
    "_errors": set(),
    "_lazy": set(),
    "_log": {"_env"},
    "_native": set(),
    "dispatch": LEAVES,
    "distributed": set(),
    "kernels": LEAVES | {"dispatch.types"},
    "ops": {"dispatch", "_lazy"},
    "privateuse1": LEAVES | {"dispatch"},
}
ON_TOP = {"", "__main__", "cli", "compat", "testing"}
"""What may use every part, and be used by none: the package, which ties them, and its front ends."""


def tracked(*patterns: str) -> list[Path]:
    """Return the files of these patterns that git has or would take."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", *patterns],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert listed.returncode == 0, f"needs a clone: {listed.stderr}"
    return [path for name in listed.stdout.split("\0") if name and (path := ROOT / name).is_file()]


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def lines_with(pattern: str, paths: list[Path]) -> list[str]:
    """Return "file:line: text" of the lines that match."""
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in paths
        for number, line in enumerate(text_of(path).splitlines(), 1)
        if re.search(pattern, line)
    ]


def imports_of(path: Path) -> Iterator[str]:
    """Yield what a file of the package imports of it, "dispatch.types" for tefl.dispatch.types.OpImpl."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    package = parts[:-1]
    for node in ast.walk(ast.parse(text_of(path))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*start, *([node.module] if node.module else [])])
            names = [f"{module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (
            name.removeprefix("tefl.") for name in names if name == "tefl" or name.startswith("tefl.")
        )


def part_of(path: Path) -> str:
    """Return the part of the package that a file belongs to: "dispatch", "_env", or "" for the package."""
    first = path.relative_to(ROOT / "tefl").with_suffix("").parts[0]
    return "" if first == "__init__" else first


def is_allowed(part: str, imported: str) -> bool:
    return any(f"{imported}.".startswith(f"{target}.") for target in {part, *ARROWS[part]})


def test_every_part_has_its_arrows() -> None:
    assert {part_of(path) for path in tracked("tefl/*.py")} - ON_TOP == set(ARROWS)


@pytest.mark.parametrize("part", sorted(ARROWS))
def test_imports_point_one_way(part: str) -> None:
    sources = [path for path in tracked("tefl/*.py") if part_of(path) == part]
    wrong = [
        f"{path.relative_to(ROOT)} imports tefl.{imported}"
        for path in sources
        for imported in imports_of(path)
        if not is_allowed(part, imported)
    ]
    assert sources
    assert wrong == []


@pytest.mark.parametrize(
    ("part", "imported", "allowed"),
    [
        ("kernels", "dispatch.types.OpImpl", True),
        ("kernels", "dispatch.OpImpl", False),
        ("kernels", "dispatch.types_of_another_kind", False),
        ("dispatch", "privateuse1.broker", False),
        ("dispatch", "ops", False),
        ("ops", "dispatch.route", True),
        ("privateuse1", "ops.norm", False),
        ("_env", "_log", False),
        ("ops", "tefl", False),  # the package ties its parts; none asks it for another
    ],
)
def test_what_counts_as_an_arrow(part: str, imported: str, allowed: bool) -> None:
    assert is_allowed(part, imported) == allowed


def test_relative_imports_are_found_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    source = tmp_path / "tefl" / "dispatch" / "new.py"
    source.parent.mkdir(parents=True)
    source.write_text(
        "from .. import ops\nfrom ..kernels import cuda\nfrom .types import OpImpl\nimport os\n"
    )
    assert list(imports_of(source)) == ["ops", "kernels.cuda", "dispatch.types.OpImpl"]


def test_no_source_is_longer_than_can_be_read_in_one_go() -> None:
    lengths = {path.relative_to(ROOT): len(text_of(path).splitlines()) for path in tracked(*SOURCES)}
    assert {str(name): length for name, length in lengths.items() if length >= LONGEST} == {}


def test_the_costly_header_of_torch_is_included_once() -> None:
    including = lines_with(r"#include.*torch/(extension|all|torch)\.h", tracked("csrc/*", "examples/*"))
    assert [line.partition(":")[0] for line in including] == ["csrc/bindings.cpp"]


PROVIDERS = ("csrc/providers", "examples/maca_provider")


@pytest.mark.parametrize("folder", PROVIDERS)
def test_a_provider_includes_the_public_header_its_own_files_and_the_systems(folder: str) -> None:
    sources = tracked(f"{folder}/*.cpp", f"{folder}/*.h")
    own = {path.name for path in sources} | {"tefl_provider.h"}
    quoted = {name for path in sources for name in re.findall(r'#include\s+"([^"]+)"', text_of(path))}
    assert "tefl_provider.h" in quoted
    assert quoted - own == set()
    assert lines_with(r"#include\s+<(torch|ATen|c10|pybind11|Python\.h|cuda)", sources) == []


def test_the_provider_header_and_the_kernels_know_nothing_of_torch() -> None:
    sources = tracked("csrc/include/*", "csrc/kernels/*")
    assert sources
    assert lines_with(r"#include.*(torch|ATen|c10|pybind11|Python\.h)", sources) == []


# `_tefl_autoload` is not among the package's files: it runs inside `import torch` and imports nothing of ours
# before it must.
READERS = {
    "tefl/_env.py",
    "tefl/kernels/triton/table.py",
}  # the latter reads Triton's variable as Triton does


def test_the_environment_is_read_in_one_place() -> None:
    reading = lines_with(
        r"\bos\.(environ|getenv)\b|\bfrom os import .*(environ|getenv)", tracked("tefl/*.py")
    )
    assert {line.partition(":")[0] for line in reading} - READERS == set()


MACHINE = re.compile(
    r"(?<![\w.:/])/(home|root|work|mnt|Users|scratch)/"  # a path of somebody's machine
    r"|\b(?!127\.|0\.)\d{1,3}(\.\d{1,3}){3}\b"  # an address, but for the loopback one
    r"|https?://(?!(github\.com|arxiv\.org|(docs\.)?pytorch\.org)/)"  # a host, but for the public ones
)


def test_nothing_names_the_machine_it_was_written_on() -> None:
    texts = tracked(*SOURCES, "*.toml", "*.txt", "*.json", "*.cmake", "Makefile", ".ci/*")
    assert lines_with(MACHINE.pattern, [path for path in texts if path != Path(__file__)]) == []


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("cd /home/me/tefl", True),
        ("--index-url=http://registry.corp/simple", True),
        ("MASTER_ADDR=10.1.2.3", True),
        ("MASTER_ADDR=127.0.0.1", False),
        ("see https://github.com/pytorch/pytorch/issues/1", False),
        ("TEFL_PROVIDER=/path/to/libmine.so", False),
        ("tests/work/home/", False),
    ],
)
def test_what_counts_as_naming_a_machine(text: str, named: bool) -> None:
    assert bool(MACHINE.search(text)) == named
