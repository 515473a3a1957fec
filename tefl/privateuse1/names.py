"""Device names: which ones a provider may take, and what a name means to PyTorch."""

from __future__ import annotations

import importlib.util
import re
import sys
from typing import Final

import torch

from tefl.privateuse1.checks import Defect

_NAME: Final = re.compile(r"[a-z_]+")

#: How PrivateUse1 is spelled: by the C++ enumeration, and by torch before a name is claimed.
PRIVATEUSE1_SPELLINGS: Final = ("privateuse1", "privateuseone")


def device_name_defects(name: object) -> list[Defect]:
    """Return what keeps `name` from becoming a device's name; empty if nothing does.

    torch itself accepts names that break later: with a digit, ``maca1:1`` no longer parses; ``meta`` or
    ``nn`` shadow what is already there.
    """
    remedy = "choose another name with name= or TEFL_DEVICE_NAME: lower-case letters and underscores, [a-z_]+"
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        return [Defect(f"the device name {name!r} does not match [a-z_]+", remedy)]
    owner = _owner_of(name)
    if owner is None:
        return []
    return [Defect(f"the device name {name!r} is taken by torch: {owner}", remedy)]


def _owner_of(name: str) -> str | None:
    """Return what in torch already bears `name`, in words."""
    if _torch_device_type(name) is not None:
        return "it is a device type"
    if hasattr(torch, name) or importlib.util.find_spec(f"torch.{name}") is not None:
        return f"torch.{name} exists"
    if f"torch.{name}" in sys.modules:
        return f"a module torch.{name} is loaded"
    classes = (torch.Tensor, torch.nn.Module, torch.UntypedStorage, torch.nn.utils.rnn.PackedSequence)
    for cls in classes:
        for attribute in (name, f"is_{name}"):
            if hasattr(cls, attribute):
                return f"{cls.__name__}.{attribute} exists"
    return None


def _torch_device_type(text: str) -> str | None:
    """Return the type of ``torch.device(text)``, None if torch cannot parse it."""
    try:
        return torch.device(text).type
    except RuntimeError:
        return None


def claimed_name() -> str | None:
    """Return the name that PrivateUse1 bears in this process, by whomever; None while it bears none."""
    name = torch._C._get_privateuse1_backend_name()
    return None if name in PRIVATEUSE1_SPELLINGS else name


def parse_device_type(device: str | torch.device) -> str | None:
    """Return the device type that `device` names, None if torch knows no such device.

    The claimed device answers "privateuse1" under each of its spellings, with or without an index:
    ``parse_device_type("maca:1") == "privateuse1"``, ``parse_device_type("cuda") == "cuda"``.
    """
    text = str(device)
    base, _, index = text.partition(":")
    if base == "privateuse1":  # the enumeration's name, which torch does not parse
        text = f"privateuseone:{index}" if index else "privateuseone"
    kind = _torch_device_type(text)
    return "privateuse1" if kind == torch._C._get_privateuse1_backend_name() else kind


def usable_device_types() -> list[str]:
    """Return the device names a program can choose here: cpu, what torch was built for, the claimed name."""
    built = {
        "cuda": torch.backends.cuda.is_built(),  # type: ignore[no-untyped-call]
        "mps": torch.backends.mps.is_built(),
        "xpu": torch.xpu._is_compiled(),
    }
    names = ["cpu", *(name for name, there in built.items() if there)]
    claimed = claimed_name()
    return [*names, claimed] if claimed else names
