"""The device registrar for scripts: a type for argparse that accepts any registered device."""

from __future__ import annotations

import argparse

import torch

from tefl.privateuse1 import broker, names
from tefl.privateuse1.checks import BackendError


def device_arg(text: str) -> torch.device:
    """Turn a command-line argument into a device; claims the chosen or only installed provider first.

    ``parser.add_argument("--device", type=tefl.privateuse1.device_arg, default="cpu")`` accepts "maca" and
    "maca:1" as soon as a provider brings that name. An unknown name, or an index that is not there, is an
    argparse error that lists the names.
    """
    claimed = _claim()
    known = ", ".join(names.usable_device_types())
    try:
        device = torch.device(text)
    except RuntimeError as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no device here; known are {known}. {_hint(claimed)}".rstrip()
        ) from error
    if device.type not in names.usable_device_types():
        raise argparse.ArgumentTypeError(f"this torch cannot use {device.type!r}; usable are {known}")
    _check_index(device)
    return device


def _claim() -> str | None:
    try:
        return broker.claim_chosen()
    except BackendError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _hint(claimed: str | None) -> str:
    return "" if claimed else "Install a provider, or choose one by TEFL_PROVIDER, for more"


def _check_index(device: torch.device) -> None:
    if device.type == "cpu" or device.index is None:
        return
    count = torch.get_device_module(device.type).device_count()
    if device.index >= count:
        raise argparse.ArgumentTypeError(f"there is no {device}: {count} of {device.type!r} are visible")
