"""TE-FL's name for the logger."""

from __future__ import annotations

import logging

from tefl._log import logger

__all__ = ["get_logger"]


def get_logger() -> logging.Logger:
    """The logger TE-FL."""
    return logger()
