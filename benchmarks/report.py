"""Draw what the README shows of the measurements from the files that hold them.

    python benchmarks/report.py [benchmarks/results/overhead-<machine>-<date>.json]

Rewrites the block of the README between the two markers `overhead` and the picture beside the file, and the
block `device` from device-maca.json. Without an argument the newest file of each machine is taken.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
DEVICE = RESULTS / "device-maca.json"


def newest() -> list[Path]:
    """The newest file of each machine: the date ends the name, and sorts as text."""
    by_machine = {path.stem[: -len("-YYYY-MM-DD")]: path for path in sorted(RESULTS.glob("overhead-*.json"))}
    return list(by_machine.values())


def table(facts: dict[str, Any]) -> list[str]:
    """The figures as Markdown."""
    rows, columns = facts["shape"]
    lines = [
        f"Ratios of host times of one call on {rows}x{columns}, {facts['machine']}, torch {facts['torch']}, "
        f"{facts['date'][:10]}; median and quartiles of {facts['rounds']} interleaved rounds in one process.",
        "",
        "| what / measured beside | ratio | quartiles | goal |",
        "|---|---|---|---|",
    ]
    for figure in facts["figures"]:
        goal = "" if figure["goal"] is None else f"≤ {figure['goal']:.2f}"
        spread = f"{figure['low']:.2f} to {figure['high']:.2f}"
        lines.append(f"| {figure['name']} | {figure['ratio']:.2f} | {spread} | {goal} |")
    return lines


def draw(facts: dict[str, Any], path: Path) -> None:
    """A bar a figure with its quartiles, and its goal as a mark."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    figures = facts["figures"][::-1]
    names, ratios = [f["name"] for f in figures], [f["ratio"] for f in figures]
    spread = [[f["ratio"] - f["low"] for f in figures], [f["high"] - f["ratio"] for f in figures]]
    figure, axes = pyplot.subplots(figsize=(8, 0.35 * len(figures) + 1))
    axes.barh(names, ratios, xerr=spread, color="#7a9cc6", capsize=2)
    for row, each in enumerate(figures):
        if each["goal"] is not None:
            axes.plot([each["goal"]] * 2, [row - 0.4, row + 0.4], color="#b03030")
    axes.axvline(1, color="black", linewidth=0.5)
    axes.set_xscale("log")
    axes.set_xlabel(f"ratio of host times (red: goal), {facts['machine']}, torch {facts['torch']}")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def device_table(facts: dict[str, Any]) -> list[str]:
    """The figures of bench_device.py as Markdown."""
    lines = [
        f"The simulated device beside the CPU, {facts['machine']}, torch {facts['torch']}, "
        f"{facts['date'][:10]}; the fastest of interleaved rounds in one process.",
        "",
        "| what | device, us | CPU, us | ratio | goal |",
        "|---|---|---|---|---|",
    ]
    for each in facts["results"]:
        times = f"{each['device_us']:.2f} | {each['alias_us']:.2f}"
        lines.append(f"| {each['name']} | {times} | {each['ratio']:.2f} | ≤ {each['limit']:.1f} |")
    return lines


def rewrite(readme: Path, name: str, blocks: Iterable[list[str]]) -> None:
    """Put the tables between the markers of that name."""
    begin, end = f"<!-- {name}: written by benchmarks/report.py -->", f"<!-- end of {name} -->"
    text = readme.read_text()
    if begin not in text or end not in text:
        raise ValueError(f"{readme} lacks the markers {begin!r} and {end!r}")
    head, rest = text.split(begin, 1)
    tail = rest.split(end, 1)[1]
    body = "\n\n".join("\n".join(block) for block in blocks)
    readme.write_text(f"{head}{begin}\n{body}\n{end}{tail}")


def main() -> int:
    """Rewrite the README's block; 1 where there is nothing to show."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path, help="default: the newest of each machine")
    paths = parser.parse_args().files or newest()
    if not paths:
        print(f"no overhead-*.json in {RESULTS}; run benchmarks/bench_overhead.py --json {RESULTS}")
        return 1
    blocks = []
    for path in paths:
        facts = json.loads(path.read_text())
        picture = path.with_suffix(".svg")
        draw(facts, picture)
        blocks.append([*table(facts), "", f"![The same as a picture]({picture.resolve().relative_to(ROOT)})"])
    rewrite(ROOT / "README.md", "overhead", blocks)
    if DEVICE.exists():
        rewrite(ROOT / "README.md", "device", [device_table(json.loads(DEVICE.read_text()))])
    return 0


if __name__ == "__main__":
    sys.exit(main())
