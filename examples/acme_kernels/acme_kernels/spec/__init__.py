"""ACME's hooks: what trunk calls by name. The only file of the tree that imports relatively."""

from ._utils import norm_forward_tile
from .language import extend_language

__all__ = ["extend_language", "norm_forward_tile"]
