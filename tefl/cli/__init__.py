"""The command line, ``python -m tefl``: one module a subcommand.

Exit status 0: all is well. 1: something is wrong, and the output says what. 2: the command line cannot be
read.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from tefl._errors import ConfigError, SpecError
from tefl.cli import explain, info, ops, spec
from tefl.dispatch import DispatchError, PluginError

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tefl", description="What tefl has, chooses and finds wrong."
    )
    subcommands = parser.add_subparsers(title="subcommands", required=True, metavar="SUBCOMMAND")
    for module in (info, ops, explain, spec):
        module.add_parser(subcommands)
    options = parser.parse_args(arguments)
    try:
        return int(options.run(options))
    except BrokenPipeError:  # whoever read the output has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except argparse.ArgumentError as error:
        parser.error(str(error))
    except (ConfigError, DispatchError, PluginError, SpecError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
