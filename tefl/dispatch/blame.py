"""Whose exception it is: which implementation of which op was running when it was raised."""

from __future__ import annotations

from .._log import logger

__all__ = ["name_implementation"]


def name_implementation(error: BaseException, op_name: str, impl_id: str) -> None:
    """Add to an exception a note of who raised it, once; its type and text stay.

    Python 3.10 does not print notes, and some exceptions take none: there it is logged.
    """
    note = f"tefl: while {op_name} ran {impl_id}"
    notes = getattr(error, "__notes__", None) or []
    if not isinstance(notes, list) or note in notes:
        return
    try:
        error.__notes__ = [*notes, note]
    except AttributeError:  # a frozen dataclass, say
        is_noted = False
    else:
        is_noted = hasattr(error, "add_note")
    if not is_noted:
        logger().error("%s: %s", note, type(error).__name__)
