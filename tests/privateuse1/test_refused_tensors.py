"""Compressed, quantized and nested tensors: whoever makes one on the device, or brings one, is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

pytestmark = [
    pytest.mark.usefixtures("maca"),
    pytest.mark.filterwarnings("ignore:Sparse.*tensor support is in beta state:UserWarning"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*quantize.*:UserWarning"),
]

D = "maca:0"


def dense() -> torch.Tensor:
    return torch.eye(4, device=D)


def csr() -> torch.Tensor:
    return torch.eye(4).to_sparse_csr()


def compressed(make: Callable[..., Any], *block: int) -> Any:
    crow, col = torch.tensor([0, 1, 2], device=D), torch.tensor([0, 1], device=D)
    return make(crow, col, torch.ones(2, *block, device=D), (2, 2))


def quantized() -> torch.Tensor:
    return torch.quantize_per_tensor(torch.eye(4), 0.1, 0, torch.qint8)


#: Ways to a sparse tensor of the device in a compressed layout, or to an operator that meets one.
SPARSE: dict[str, Callable[[], Any]] = {
    "to_sparse_csr": lambda: dense().to_sparse_csr(),
    "to_sparse_csc": lambda: dense().to_sparse_csc(),
    "to_sparse_bsr": lambda: dense().to_sparse_bsr((2, 2)),
    "to_sparse_bsc": lambda: dense().to_sparse_bsc((2, 2)),
    "of one in coordinate form": lambda: dense().to_sparse().to_sparse_csr(),
    "sparse_csr_tensor": lambda: compressed(torch.sparse_csr_tensor),
    "sparse_csc_tensor": lambda: compressed(torch.sparse_csc_tensor),
    "sparse_bsr_tensor": lambda: compressed(torch.sparse_bsr_tensor, 1, 1),
    "sparse_bsc_tensor": lambda: compressed(torch.sparse_bsc_tensor, 1, 1),
    "empty": lambda: torch.empty(2, 2, layout=torch.sparse_csr, device=D),
    "zeros": lambda: torch.zeros(2, 2, layout=torch.sparse_csr, device=D),
    "to": lambda: csr().to(D),
    "torch.sparse.mm": lambda: torch.sparse.mm(csr(), dense()),
    "matmul": lambda: csr() @ dense(),
    "add": lambda: dense() + csr(),
    "add_": lambda: dense().add_(csr()),
    "copy_": lambda: dense().copy_(csr()),
    "mm of the transposed": lambda: dense() @ csr(),
    "sampled_addmm": lambda: torch.sparse.sampled_addmm(csr(), dense(), dense()),
}

#: The same for tensors whose numbers stand for others. Fake quantization is arithmetic, and works.
QUANTIZED: dict[str, Callable[[], Any]] = {
    "quantize_per_tensor": lambda: torch.quantize_per_tensor(dense(), 0.1, 0, torch.qint8),
    "quantize_per_channel": lambda: torch.quantize_per_channel(
        dense(), torch.ones(4, device=D), torch.zeros(4, device=D), 0, torch.qint8
    ),
    "quantize_per_tensor_dynamic": lambda: torch.quantize_per_tensor_dynamic(dense(), torch.qint8, False),
    "to": lambda: quantized().to(D),
    "maca": lambda: quantized().maca(),
    "empty": lambda: torch.empty(2, dtype=torch.qint8, device=D),
    "_empty_affine_quantized": lambda: torch._empty_affine_quantized(
        [2], scale=0.1, zero_point=0, dtype=torch.qint8, device=D
    ),
}

#: Nested tensors in the strided layout; the jagged one works.
NESTED: dict[str, Callable[[], Any]] = {
    "_nested_tensor_from_mask": lambda: torch._nested_tensor_from_mask(
        torch.ones(2, 2, 4, device=D), torch.ones(2, 2, dtype=torch.bool, device=D)
    ),
    "to": lambda: torch.nested.nested_tensor([torch.eye(2), torch.eye(2)]).to(D),
}

ENTRIES = {
    f"{kind}: {name}": (kind, entry)
    for kind, entries in (("sparse", SPARSE), ("quantized", QUANTIZED), ("nested", NESTED))
    for name, entry in entries.items()
}


@pytest.mark.parametrize("name", ENTRIES)
def test_it_is_refused_with_the_devices_name_the_operator_and_the_kind(name):
    kind, entry = ENTRIES[name]
    with pytest.raises(NotImplementedError) as caught:
        entry()
    told = str(caught.value)
    assert re.match(r"maca: aten::\w+", told), told
    assert kind in told.lower()
    assert "only strided ones" in told


def test_nothing_is_written_before_the_refusal():
    x = dense()
    with pytest.raises(NotImplementedError):
        x.add_(csr())
    assert torch.equal(x.cpu(), torch.eye(4))


def test_jagged_nested_tensors_work():
    nested = torch.nested.nested_tensor([dense(), dense()[:2]], layout=torch.jagged)
    assert (nested * 2).values().cpu().sum().item() == 12
    assert nested.device == torch.device(D)


@pytest.mark.parametrize("padded", [[[0, 0, 0, 1, 1], [0, 0, 0, 0, 0]], [[0, 1, 0, 0, 1], [1, 0, 0, 0, 0]]])
def test_an_encoder_in_eval_takes_a_padding_mask(padded):
    """PyTorch packs the batch into a nested tensor where it can, and computes on the padded one here."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    encoder, x, mask = (
        torch.nn.TransformerEncoder(layer, 2).eval(),
        torch.randn(2, 5, 8),
        torch.tensor(padded) == 1,
    )
    results = []
    for device in ("cpu", D):
        with torch.no_grad():
            out = encoder.to(device)(x.to(device), src_key_padding_mask=mask.to(device))
        results.append(out.cpu()[~mask])
    torch.testing.assert_close(*results)


def test_fake_quantization_works():
    got, wanted = (torch.fake_quantize_per_tensor_affine(x, 0.3, 1, -8, 7) for x in (dense(), torch.eye(4)))
    torch.testing.assert_close(got.cpu(), wanted, rtol=0, atol=0)


class Wrapped(torch.Tensor):
    """Has no memory, as wrappers of another tensor have not."""

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return NotImplemented


def test_a_kernel_that_returns_a_subclass_without_memory_is_an_error(replace_kernel):
    """On the device it was a plain tensor over no memory."""

    def kernel(x: torch.Tensor) -> torch.Tensor:
        return torch.Tensor._make_wrapper_subclass(Wrapped, x.shape, dtype=x.dtype, device=x.device)

    replace_kernel("special_airy_ai", kernel)
    with pytest.raises(NotImplementedError, match=r"maca: aten::special_airy_ai returns a tensor of a sub"):
        torch.special.airy_ai(dense())
