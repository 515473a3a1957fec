"""The ops: ``torch.ops.tefl.<name>``, each declared once. ``tefl.ops()`` lists the declarations.

One module a family holds the declarations as data (schema, fake function, check, reference, backward);
``_register`` makes torch ops of them.
"""

from __future__ import annotations

import sys
from types import ModuleType

from tefl.dispatch import declarations
from tefl.dispatch.types import OpDecl

from . import norm
from ._register import register

__all__ = ["register"]

for _decl in norm.DECLARATIONS:
    register(_decl)


class _Ops(ModuleType):
    """This package, which can be called too: its name is that of the listing."""

    def __call__(self) -> tuple[OpDecl, ...]:
        """Every declared op, in the order of declaration: ``.name``, ``.family``, ``.schema``."""
        return tuple(declarations().values())


sys.modules[__name__].__class__ = _Ops
