"""Turn a declaration into a torch op: schema, backend kernels, fake, autograd."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from tefl.dispatch import declare, native, route
from tefl.dispatch.types import OpDecl

__all__ = ["register"]

BACKENDS = ("CPU", "CUDA", "PrivateUse1")
"""The dispatch keys whose kernel is the router."""

_LIBRARY = torch.library.Library("tefl", "FRAGMENT")  # type: ignore[no-untyped-call]

# Since torch 2.13 a second kernel for a key wins silently unless told not to; where torch has no such
# argument, it never does.
_NO_OVERRIDE = (
    {"allow_override": False} if "allow_override" in inspect.signature(_LIBRARY.impl).parameters else {}
)


def register(decl: OpDecl) -> None:
    """Declare the op and make it ``torch.ops.tefl.<name>``.

    Raises ValueError if the name is declared already, RuntimeError if torch has an op of that name.
    """
    declare(decl)
    _LIBRARY.define(decl.name + decl.schema, tags=torch.Tag.pt2_compliant_tag)  # type: ignore[no-untyped-call]
    _impl(decl.name, _fake_kernel(decl), "Meta")
    if native.is_attached():
        native.install(decl)
    else:
        _install_python_kernels(decl)


def _install_python_kernels(decl: OpDecl) -> None:
    """What serves where the compiled part was not built: the same, at a tenth of the speed."""
    from tefl.ops._autograd import autograd_kernel

    for key in BACKENDS:
        _impl(decl.name, route(decl.name), key)
    _impl(decl.name, autograd_kernel(decl), "Autograd", with_keyset=True)


def _impl(name: str, kernel: Callable[..., Any], key: str, **options: Any) -> None:
    _LIBRARY.impl(name, kernel, key, **options, **_NO_OVERRIDE)  # type: ignore[no-untyped-call]


def _fake_kernel(decl: OpDecl) -> Callable[..., Any]:
    """The check, then the fake function: bad arguments are found while tracing too."""
    check, fake = decl.check, decl.fake
    if check is None:
        return fake

    def checked(*args: Any, **kwargs: Any) -> Any:
        check(*args, **kwargs)
        return fake(*args, **kwargs)

    return checked
