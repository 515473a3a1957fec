"""What tensor subclasses of the tests say of their shape."""

from __future__ import annotations

import torch

ANSWERS = {
    torch.ops.aten.size.default: (2,),
    torch.ops.aten.sym_size.default: (2,),
    torch.ops.aten.stride.default: (1,),
    torch.ops.aten.sym_stride.default: (1,),
    torch.ops.aten.storage_offset.default: 0,
    torch.ops.aten.sym_storage_offset.default: 0,
    torch.ops.aten.numel.default: 2,
    torch.ops.aten.sym_numel.default: 2,
    torch.ops.aten.dim.default: 1,
    torch.ops.aten.is_contiguous.default: True,
    torch.ops.aten.is_contiguous.memory_format: True,
    torch.ops.aten.is_non_overlapping_and_dense.default: True,
}
"""The answers of a tensor of two elements, whatever is in its memory."""
