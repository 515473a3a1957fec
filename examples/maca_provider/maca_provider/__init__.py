"""A vendor's package for tefl: the device `maca`. Start reading in README.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tefl.privateuse1 import PrivateUse1Backend


def backend() -> PrivateUse1Backend:
    """Describe the device to tefl (entry point `tefl.providers`).

    Imports wait until the call, so that listing this entry point costs nothing.
    """
    import torch

    from maca_provider.library import PATH
    from tefl.privateuse1 import PrivateUse1Backend

    return PrivateUse1Backend(name="maca", provider=str(PATH), default_autocast_dtype=torch.bfloat16)
