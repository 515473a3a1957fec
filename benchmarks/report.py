"""Draw what the README shows of the measurements from the files that hold them.

    python benchmarks/report.py [benchmarks/results/overhead-<machine>-<date>.json]

Rewrites the block of the README between the two markers `overhead` and the picture beside the file, and the
block `device` from device-maca.json. Without an argument the newest file of each machine is taken.
"""

from __future__ import annotations

import argparse
import json
import statistics
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
        goal = goal_of(figure["goal"], figure["ratio"])
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
        goal = goal_of(each["limit"], each["ratio"])
        lines.append(f"| {each['name']} | {times} | {each['ratio']:.2f} | {goal} |")
    return lines


def several_gpus_table(facts: dict[str, Any]) -> list[str]:
    """What multi_gpu.py found, as Markdown: a line for each part of it that did not fail."""
    facts = {name: part for name, part in facts.items() if not (isinstance(part, dict) and "failed" in part)}
    software = f"NCCL {facts['nccl']}, torch {facts['torch']}, {facts['date'][:10]}"
    lines = [
        f"{facts['ranks']} ranks on {len(facts['gpus'])} {facts['gpus'][0]}, the provider "
        f"`{facts['provider']}` as `maca` beside plain CUDA, {software}; "
        "`python benchmarks/multi_gpu.py` measures it anew.",
        "",
        "| what | seen | goal |",
        "|---|---|---|",
    ]
    collectives = facts.get("collectives", [])
    large = [each for each in collectives if each["bytes"] >= 1 << 20]
    small = [each["more_us"] for each in collectives if each["bytes"] < 1 << 20]
    if large:
        ratios, beyond = [each["ratio"] for each in large], sum(each["interval"][0] > 1.02 for each in large)
        seen = f"{within(ratios, 1.02)}, {beyond} beyond it with 95% confidence"
        goal = goal_of(1.02, max(ratios))
        lines.append(f"| collectives of 1 MiB to 1 GiB / plain NCCL | {seen} | {goal} |")
    if small:
        seen, goal = within(small, 5.0, " us"), goal_of(5.0, max(small), " us")
        lines.append(f"| collectives under 1 MiB, more than plain NCCL | {seen} | {goal} |")
    for how in ("ddp", "fsdp"):
        lines += training_lines(f"train_lm.py --{how}", facts.get(how, {}))
    if "copies" in facts:
        right = sum(facts["copies"].values())
        lines.append(
            f"| copies on side streams, values and order right | {right} of {len(facts['copies'])} | all |"
        )
    if "seconds" in facts.get("killed", {}):
        killed = facts["killed"]
        lines.append(
            f"| a rank is killed, the time-out is {killed['time_out']:.0f} s and NCCL's watchdog sleeps "
            f"{killed['watchdog_sleeps']:.0f} s and not a minute: all have ended, start-up included, after | "
            f"{killed['seconds']:.0f} s | |"
        )
    return lines


def within(values: list[float], limit: float, unit: str = "") -> str:
    """How values lie, and how many of them within the limit."""
    kept, middle = sum(value <= limit for value in values), statistics.median(values)
    return f"median {middle:.2f}{unit}, largest {max(values):.2f}{unit}, {kept} of {len(values)} within"


def training_lines(run: str, part: dict[str, Any]) -> list[str]:
    """The lines of one way to train in several ranks; none where it did not run."""
    lines = []
    for name in ("average", "sum"):
        if name in part:
            gap = part[name]["largest_relative_difference_of_losses"]
            what = f"{run}, {name} of gradients: losses apart from one process's"
            lines.append(f"| {what} | {gap:.0e} | {goal_of(1e-4, gap)} |")
    if "step_time" in part:
        ratio, (low, high) = part["step_time"]["ratio"], part["step_time"]["interval"]
        seen = f"{ratio:.2f} ({low:.2f} to {high:.2f})"
        lines.append(f"| {run}: step / plain CUDA's | {seen} | {goal_of(1.03, ratio)} |")
    return lines


def goal_of(limit: float | None, value: float, unit: str = "") -> str:
    """A goal, and whether it was missed."""
    if limit is None:
        return ""
    return f"≤ {limit:g}{unit}" + (", missed" if value > limit else "")


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


def blocks_of(paths: list[Path]) -> dict[str, list[list[str]]]:
    """What the README shows: tables by the name of their block."""
    overhead = []
    for path in paths:
        picture = path.with_suffix(".svg").resolve().relative_to(ROOT)
        overhead.append([*table(json.loads(path.read_text())), "", f"![The same as a picture]({picture})"])
    blocks = {"overhead": overhead}
    if DEVICE.exists():
        blocks["device"] = [device_table(json.loads(DEVICE.read_text()))]
    several = sorted(RESULTS.glob("multi-gpu-cuda-*.json"), key=lambda path: path.stem[-10:])
    if several:
        blocks["several-gpus"] = [several_gpus_table(json.loads(several[-1].read_text()))]
    return blocks


def main() -> int:
    """Rewrite the README's blocks; 1 where there is nothing to show."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path, help="default: the newest of each machine")
    paths = parser.parse_args().files or newest()
    if not paths:
        print(f"no overhead-*.json in {RESULTS}; run benchmarks/bench_overhead.py --json {RESULTS}")
        return 1
    for path in paths:
        draw(json.loads(path.read_text()), path.with_suffix(".svg"))
    for name, tables in blocks_of(paths).items():
        rewrite(ROOT / "README.md", name, tables)
    return 0


if __name__ == "__main__":
    sys.exit(main())
