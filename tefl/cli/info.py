"""``python -m tefl info``: versions, build, device, plugins and variables, and what is wrong with them."""

from __future__ import annotations

import argparse
import platform
from collections.abc import Iterator, Mapping
from typing import Any

import tefl
from tefl import _env, _native
from tefl._errors import ConfigError, one_line
from tefl.cli._output import add_json_option, columns, write_json
from tefl.dispatch import PluginError, native
from tefl.dispatch.policy import current_policy
from tefl.privateuse1 import broker

__all__ = ["add_parser"]


def add_parser(subcommands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subcommands.add_parser(
        "info", help="show versions, device, plugins, variables and what is wrong"
    )
    add_json_option(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    facts = _gather()
    if options.json:
        write_json(facts)
    else:
        print("\n".join(_lines(facts)))
    return 1 if facts["problems"] else 0


def _gather() -> dict[str, Any]:
    problems: list[str] = []
    facts: dict[str, Any] = {
        "versions": _versions(),
        "build": _native.build_facts(),
        "dispatch": "native" if native.is_attached() else "Python: the compiled part was not built",
        "device": _device(problems),
        "plugins": _plugins(problems),
        "undeclared_ops": tefl.get_manager().undeclared_ops(),
        "variables": [vars(setting) for setting in _env.sources()],
        "unknown_variables": _env.unknown(),
    }
    told = "\n".join(problems)  # a defect of the device may be that a variable cannot be read
    errors = [setting["error"] for setting in facts["variables"] if setting["error"]]
    problems += [error for error in errors if error not in told]
    return {**facts, "problems": list(dict.fromkeys(problems))}


def _versions() -> dict[str, str | None]:
    from importlib.metadata import PackageNotFoundError, version

    def installed(package: str) -> str | None:
        try:
            return version(package)
        except PackageNotFoundError:
            return None

    versions = {name: installed(name) for name in ("torch", "triton", "numpy")}
    return {"tefl": tefl.__version__, "python": platform.python_version(), **versions}


def _device(problems: list[str]) -> dict[str, Any] | None:
    try:
        status: dict[str, Any] = tefl.privateuse1.status()
    except ImportError as error:
        problems.append(str(error))
        return None
    problems += [f"{defect['what']}: {defect['remedy']}" for defect in status["defects"]]
    return status


def _plugins(problems: list[str]) -> list[dict[str, Any]]:
    manager = tefl.get_manager()
    try:
        manager.ensure_ready()
        manager.warn_unknown_names(current_policy())
    except (ConfigError, PluginError) as error:
        problems.append(str(error))
    except Exception as error:  # noqa: BLE001 - whatever keeps ops from running is what info is asked for
        problems.append(f"the implementations cannot be registered: {one_line(error)}")
    problems += [
        plugin.explain_failure() for plugin in manager.plugins if plugin.error and not plugin.is_fatal
    ]
    return [
        {
            "name": plugin.name,
            "source": plugin.source,
            "state": plugin.state,
            "impl_ids": plugin.impl_ids,
            "traceback": plugin.traceback,
        }
        for plugin in manager.plugins
    ]


def _lines(facts: Mapping[str, Any]) -> Iterator[str]:
    yield "versions"
    yield from columns((name, version or "not installed") for name, version in facts["versions"].items())
    yield "build"
    yield from columns({**(facts["build"] or {"not built": ""}), "dispatch": facts["dispatch"]}.items())
    yield "device"
    yield from _device_lines(facts["device"])
    yield "plugins"
    yield from _plugin_lines(facts["plugins"])
    if facts["undeclared_ops"]:
        yield f"  ops registered, not declared: {', '.join(facts['undeclared_ops'])}"
    yield "variables"
    yield from columns((s["name"], _shown(s["value"]), s["source"], s["doc"]) for s in facts["variables"])
    for name, hint in facts["unknown_variables"].items():
        yield f"  {name}: unknown; {hint}"
    if facts["problems"]:
        yield "problems"
        yield from (f"  {problem}" for problem in facts["problems"])


def _device_lines(status: Mapping[str, Any] | None) -> Iterator[str]:
    shown = {name: value for name, value in (status or {}).items() if name not in ("defects", "candidates")}
    yield from columns((name, _shown(value)) for name, value in shown.items())
    if status and not status["registered"] and status["origin"] is None and not status["defects"]:
        yield f"  nobody is chosen: {broker.choice().reason}"
    if status and not status["registered"] and status["origin"] is not None and not status["defects"]:
        yield "  not claimed in this process: import torch claims it where tefl is installed and"
        yield "  TORCH_DEVICE_BACKEND_AUTOLOAD is not 0; else tefl.privateuse1.device_arg(name) does"
    for candidate in (status or {}).get("candidates", ()):
        yield "  candidate " + ", ".join(f"{key} {value}" for key, value in candidate.items())


def _plugin_lines(plugins: list[dict[str, Any]]) -> Iterator[str]:
    if not plugins:
        yield "  none"
        return
    yield from columns((p["name"], p["source"], p["state"], ", ".join(p["impl_ids"])) for p in plugins)
    for plugin in plugins:
        if plugin["traceback"]:
            yield f"  traceback of {plugin['name']} ({plugin['source']})"
            yield from (f"    {line}" for line in plugin["traceback"].splitlines())


def _shown(value: object) -> str:
    return "-" if value is None or value == () or value == {} else str(value)
