"""Backends made for a test: packages with a tree, installed in a folder as pip would install them."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Mapping
from pathlib import Path

from tefl.kernels._spec import check
from tefl.kernels._spec.rules import TRUNK

ROOT = Path(__file__).parents[2]
ACME = ROOT / "examples" / "acme_kernels" / "acme_kernels"

__all__ = ["ACME", "TRUNK", "install", "install_acme", "trunk_file", "write"]


def write(folder: Path, files: Mapping[str, str]) -> Path:
    """Write files by their relative path; texts are dedented."""
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text), errors="surrogateescape")
    return folder


def install(
    site: Path, files: Mapping[str, str], *, backend: str = "chip", package: str = "chip_k", value: str = ""
) -> Path:
    """Install a package whose folder ``spec`` is a tree of these files; returns the tree."""
    write(site / package, {"__init__.py": ""})
    tree = write(site / package / "spec", files)
    _distribution(site, package, backend, value or f"{package}.spec")
    return tree


def install_acme(site: Path) -> Path:
    """Install the example backend from a copy; returns its tree."""
    shutil.copytree(ACME, site / "acme_kernels", ignore=shutil.ignore_patterns("__pycache__"))
    _distribution(site, "acme_kernels", "acme", "acme_kernels.spec")
    return site / "acme_kernels" / "spec"


def _distribution(site: Path, package: str, backend: str, value: str) -> None:
    name = package.replace("_", "-")
    points = f"[tefl.kernel_specs]\n{backend} = {value}\n"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
    write(site / f"{package}-1.0.dist-info", {"METADATA": metadata, "entry_points.txt": points})


def trunk_file(path: str, *changes: tuple[str, str]) -> str:
    """The text of trunk's file with replacements, and the record of what it was written against."""
    text = (TRUNK / path).read_text()
    for old, new in changes:
        assert old in text, f"trunk's {path} has no {old!r}"
        text = text.replace(old, new)
    return f"# trunk sha256: {check.fingerprint(TRUNK / path)}\n{text}"
