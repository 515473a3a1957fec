"""``python -m tefl ops``: every op, declared ones with their schema, and its implementations."""

from __future__ import annotations

import argparse
from typing import Any

import tefl
from tefl.cli._output import add_json_option, columns, write_json
from tefl.dispatch import OpDecl

__all__ = ["add_parser"]


def add_parser(subcommands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subcommands.add_parser("ops", help="list the ops with their schemas and implementations")
    parser.add_argument("--family", help="only this family, such as norm")
    add_json_option(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    tefl.get_manager().ensure_ready()
    declared = [op for op in tefl.ops() if options.family in (None, op.family)]
    if not declared:
        families = ", ".join(sorted({op.family for op in tefl.ops()}))
        raise argparse.ArgumentError(None, f"no op is of family {options.family!r}; families are {families}")
    listing = [_describe(op) for op in declared]
    if options.family is None:
        listing += [_entry(op, None, None) for op in tefl.get_manager().undeclared_ops()]
    if options.json:
        write_json(listing)
    else:
        print("\n".join(line for entry in listing for line in _lines(entry)))
    return 0


def _describe(op: OpDecl) -> dict[str, Any]:
    return _entry(op.name, op.family, op.schema)


def _entry(name: str, family: str | None, schema: str | None) -> dict[str, Any]:
    impls = sorted(tefl.get_registry().implementations(name), key=lambda impl: -impl.priority)
    return {
        "name": name,
        "family": family,
        "schema": schema,
        "implementations": [
            {"impl_id": i.impl_id, "kind": str(i.kind), "vendor": i.vendor, "priority": i.priority}
            for i in impls
        ],
    }


def _lines(entry: dict[str, Any]) -> list[str]:
    impls = [(i["impl_id"], i["kind"], i["vendor"] or "-", i["priority"]) for i in entry["implementations"]]
    head = f"{entry['name']}{entry['schema']}  [{entry['family']}]"
    if entry["schema"] is None:
        head = f"{entry['name']}  [registered, not declared: for tefl.get_manager().call alone]"
    return [head, *columns(impls, indent="    ")]
