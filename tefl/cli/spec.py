"""``python -m tefl spec list`` and ``spec check``: what backends make of the Triton kernels."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from tefl.cli._output import add_json_option, columns, write_json
from tefl.kernels import spec
from tefl.kernels._spec import check, trees
from tefl.kernels._spec.listing import Origin, origins
from tefl.kernels._spec.rules import TRUNK

__all__ = ["add_parser"]


def add_parser(subcommands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subcommands.add_parser(
        "spec", help="list or check what backends specialise of the Triton kernels"
    )
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="show where each module of the kernels comes from, and why")
    add_json_option(listing)
    listing.set_defaults(run=_list)
    checking = actions.add_parser(
        "check",
        help="find what is wrong with a backend's tree",
        description="Exit status 1 and one line a finding. Nothing of the tree is imported.",
        epilog="\n".join(["findings:", *columns(check.KINDS.items())]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    checking.add_argument(
        "tree", nargs="?", metavar="TREE", help="a folder, or an installed backend's name (all of them)"
    )
    checking.add_argument(
        "--record",
        action="store_true",
        help="first write into each file which version of trunk's file it was written against",
    )
    add_json_option(checking)
    checking.set_defaults(run=_check)


def _list(options: argparse.Namespace) -> int:
    chosen = spec.choice()
    listed = origins(chosen.tree)
    backends = [dict(zip(("name", "source", "tree"), one, strict=True)) for one in trees.found()]
    if options.json:
        modules = [{**vars(origin), "file": str(origin.file)} for origin in listed]
        active = {"backend": chosen.backend, "why": chosen.why}
        write_json({**active, "installed": backends, "modules": modules})
        return 0
    print(f"backend: {chosen.backend or 'none, trunk alone'} ({chosen.why})")
    print("installed:" if backends else "installed: none")
    print("\n".join([*columns(tuple(b.values()) for b in backends), "modules:", *columns(map(_row, listed))]))
    return 0


def _row(origin: Origin) -> tuple[str, ...]:
    hooks = ", ".join(f"{name} from {who}" for name, who in origin.hooks.items())
    return origin.module, origin.origin, f"{origin.why}{f'; {hooks}' if hooks else ''}"


def _check(options: argparse.Namespace) -> int:
    checked = [_folder(options.tree)] if options.tree else [_installed(name) for name in trees.names()]
    folders = [folder for _, folder in checked]
    if options.record:
        for file in (file for folder in folders for file in check.record(folder)):
            _say(options, f"recorded {file}")
    found = [finding for folder in folders for finding in check.check_tree(folder)]
    found += check.check_trunk(trees.names())
    if options.json:
        write_json([_plain(finding) for finding in found])
    for finding in found:
        _say(options, str(finding))
    if not found:
        what = [*(name for name, _ in checked), f"trunk ({TRUNK})"]
        _say(options, f"nothing found in {', '.join(what)}")
    return 1 if found else 0


def _say(options: argparse.Namespace, line: str) -> None:
    if not options.json:
        print(line.encode(errors="backslashreplace").decode())  # the name of a file may be no text


def _folder(tree: str) -> tuple[str, Path]:
    """A tree in words, and its folder."""
    path = Path(tree)
    if path.is_dir():
        return str(path), path
    if "/" in tree:
        raise argparse.ArgumentError(None, f"{tree!r} is no folder")
    return _installed(tree)


def _installed(backend: str) -> tuple[str, Path]:
    folder = trees.tree_of(backend).folder
    return f"{backend} ({folder})", folder


def _plain(finding: check.Finding) -> dict[str, Any]:
    return {**vars(finding), "file": str(finding.file)}
