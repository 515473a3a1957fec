"""What ACME adds to the exported device functions."""

from __future__ import annotations

from typing import Any


def extend_language(exported: dict[str, Any]) -> None:
    """Export ``widen_bits`` beside trunk's own, for kernels of ACME's that load numbers as bits."""
    from tefl.kernels.triton.language.convert import widen_bits

    exported["widen_bits"] = widen_bits
    exported["__all__"].append("widen_bits")
