"""How subcommands write: JSON, or lines of aligned columns."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from typing import Any

__all__ = ["add_json_option", "columns", "write_json"]


def add_json_option(parser: argparse.ArgumentParser) -> None:
    """Give a subcommand ``--json``."""
    parser.add_argument("--json", action="store_true", help="write JSON instead of text")


def write_json(value: Any) -> None:
    """Write plain data; what JSON has no form for as its text."""
    print(json.dumps(value, indent=1, default=str))


def columns(rows: Iterable[Sequence[object]], indent: str = "  ") -> list[str]:
    """Lines of text with the cells of each column but the last padded to one width."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*(row[:-1] for row in cells), strict=True)]
    return [indent + _line(row, widths) for row in cells]


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join([*(f"{cell:{width}}" for cell, width in zip(row, widths, strict=False)), row[-1]])
