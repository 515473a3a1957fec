"""What the benchmarks of the device beside its alias share: their options, and the device."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from tefl.privateuse1 import PrivateUse1Backend, register_backend

ALIASES = {"sim": "cpu", "cuda": "cuda"}


def start(description: str | None) -> tuple[argparse.Namespace, torch.device]:
    """Read ``--provider`` and ``--json`` and claim `maca`; return them with the device it is an alias of."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", type=Path, help="file to write the results to")
    parser.add_argument("--provider", choices=ALIASES, default="sim", help="the built-in provider (sim)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    register_backend(PrivateUse1Backend("maca", arguments.provider))
    return arguments, torch.device(ALIASES[arguments.provider])
