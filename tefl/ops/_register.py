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

_LIBRARIES: list[torch.library.Library] = []
"""One an op, each with all that torch knows of it: what is registered goes with its library."""

# Since torch 2.13 a second kernel for a key wins silently unless told not to; where torch has no such
# argument, it never does.
_NO_OVERRIDE = (
    {"allow_override": False}
    if "allow_override" in inspect.signature(torch.library.Library.impl).parameters
    else {}
)


def register(decl: OpDecl) -> None:
    """Declare the op and make it ``torch.ops.tefl.<name>``. What fails leaves nothing behind.

    Raises ValueError if the name is declared already, if a result is a list of tensors and if the `Backward`
    names what the schema does not have; RuntimeError, torch's own, if the schema is malformed or torch has an
    op of that name.
    """
    take_back = declare(decl)
    library = torch.library.Library("tefl", "FRAGMENT")  # type: ignore[no-untyped-call]
    try:
        _fill(library, decl)
    except BaseException:
        library._destroy()  # type: ignore[no-untyped-call]
        take_back()
        raise
    _LIBRARIES.append(library)


def _fill(library: torch.library.Library, decl: OpDecl) -> None:
    library.define(decl.name + decl.schema, tags=torch.Tag.pt2_compliant_tag)  # type: ignore[no-untyped-call]
    _impl(library, decl.name, _fake_kernel(decl), "Meta")
    if native.is_attached():
        native.install(decl)
    else:
        _install_python_kernels(library, decl)


def _install_python_kernels(library: torch.library.Library, decl: OpDecl) -> None:
    """What serves where the compiled part was not built: the same, at a tenth of the speed."""
    from tefl.ops._autograd import autograd_kernel

    for key in BACKENDS:
        _impl(library, decl.name, route(decl.name), key)
    _impl(library, decl.name, autograd_kernel(decl), "Autograd", with_keyset=True)


def _impl(
    library: torch.library.Library, name: str, kernel: Callable[..., Any], key: str, **options: Any
) -> None:
    library.impl(name, kernel, key, **options, **_NO_OVERRIDE)  # type: ignore[no-untyped-call]


def _fake_kernel(decl: OpDecl) -> Callable[..., Any]:
    """The check, then the fake function: bad arguments are found while tracing too."""
    check, fake = decl.check, decl.fake
    if check is None:
        return fake

    def checked(*args: Any, **kwargs: Any) -> Any:
        check(*args, **kwargs)
        return fake(*args, **kwargs)

    return checked
