"""The logger TE-FL: silent on import, to stderr from first use unless the application handles it itself."""

from __future__ import annotations

import functools
import logging
import sys
from typing import TextIO

from . import _env

__all__ = ["logger"]

NAME = "TE-FL"
FORMAT = "[TE-FL %(filename)s:%(lineno)d %(levelname)s] %(message)s"


class _StderrHandler(logging.StreamHandler[TextIO]):
    """Writes to whatever sys.stderr is now, and only while no handler of the application sees the record."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)
        self.setFormatter(logging.Formatter(FORMAT))

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr

    def filter(self, record: logging.LogRecord) -> bool:
        return not self._application_listens()

    def _application_listens(self) -> bool:
        own = logging.getLogger(NAME)
        return own.handlers != [self] or (own.propagate and bool(logging.getLogger().handlers))


@functools.cache
def logger() -> logging.Logger:
    """The logger, set up on the first call.

    The level is TEFL_LOG_LEVEL's; one that the application has set stays where the variable is unset.
    """
    own = logging.getLogger(NAME)
    level = _env.get("TEFL_LOG_LEVEL")
    if own.level == logging.NOTSET or _env.is_set("TEFL_LOG_LEVEL"):
        own.setLevel(level)
    own.addHandler(_StderrHandler())
    return own
