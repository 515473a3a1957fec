"""Views share their base's storage: a write through one is a write to the base."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from claimed import OTHER

pytestmark = pytest.mark.usefixtures("maca")

F, C = (4, 6), (4, 2)  # shapes of a real base and of one whose last dimension can be a complex number

#: Every view operator of aten: the base's shape and dtype, and the arguments after the base.
VIEWS: dict[str, tuple[tuple[int, ...], torch.dtype, tuple[Any, ...]]] = {
    "_conj": (F, torch.complex64, ()),
    "_neg_view": (F, torch.float32, ()),
    "_reshape_alias": (F, torch.float32, ([6, 4], [4, 1])),
    "_test_autograd_multiple_dispatch_view": (F, torch.float32, ()),
    "adjoint": (F, torch.complex64, ()),
    "alias": (F, torch.float32, ()),
    "as_strided": (F, torch.float32, ([3, 2], [1, 4], 2)),
    "broadcast_to": (F, torch.float32, ([4, 6],)),
    "chunk": (F, torch.float32, (3, 1)),
    "conj": (F, torch.complex64, ()),
    "contiguous": (F, torch.float32, ()),
    "detach": (F, torch.float32, ()),
    "diagonal": (F, torch.float32, (1,)),
    "dsplit.array": ((2, 3, 6), torch.float32, ([1, 4],)),
    "dsplit.int": ((2, 3, 6), torch.float32, (2,)),
    "expand": (F, torch.float32, ([4, 6],)),
    "expand_as": (F, torch.float32, (torch.empty(4, 6),)),
    "flatten.using_ints": (F, torch.float32, ()),
    "hsplit.array": (F, torch.float32, ([1, 4],)),
    "hsplit.int": (F, torch.float32, (2,)),
    "imag": (F, torch.complex64, ()),
    "lift_fresh": (F, torch.float32, ()),
    "linalg_diagonal": (F, torch.float32, ()),
    "mH": (F, torch.complex64, ()),
    "mT": (F, torch.float32, ()),
    "matrix_H": (F, torch.complex64, ()),
    "moveaxis.int": (F, torch.float32, (0, 1)),
    "moveaxis.intlist": (F, torch.float32, ([0, 1], [1, 0])),
    "movedim.int": (F, torch.float32, (0, 1)),
    "movedim.intlist": (F, torch.float32, ([0, 1], [1, 0])),
    "narrow": (F, torch.float32, (1, 2, 3)),
    "narrow.Tensor": (F, torch.float32, (1, torch.tensor(2), 3)),
    "numpy_T": (F, torch.float32, ()),
    "permute": (F, torch.float32, ([1, 0],)),
    "positive": (F, torch.float32, ()),
    "ravel": (F, torch.float32, ()),
    "real": (F, torch.complex64, ()),
    "reshape": (F, torch.float32, ([3, 8],)),
    "reshape_as": (F, torch.float32, (torch.empty(3, 8),)),
    "resolve_conj": (F, torch.complex64, ()),
    "resolve_neg": (F, torch.float32, ()),
    "select.int": (F, torch.float32, (1, 2)),
    "slice.Tensor": (F, torch.float32, (1, 1, 6, 2)),
    "split.Tensor": (F, torch.float32, (4, 1)),
    "split.sizes": (F, torch.float32, ([2, 4], 1)),
    "split_with_sizes": (F, torch.float32, ([1, 5], 1)),
    "squeeze": ((4, 1, 6), torch.float32, ()),
    "squeeze.dim": ((4, 1, 6), torch.float32, (1,)),
    "squeeze.dims": ((4, 1, 1), torch.float32, ([1, 2],)),
    "swapaxes": (F, torch.float32, (0, 1)),
    "swapdims": (F, torch.float32, (0, 1)),
    "t": (F, torch.float32, ()),
    "tensor_split.indices": (F, torch.float32, ([1, 4], 1)),
    "tensor_split.sections": (F, torch.float32, (4, 1)),
    "tensor_split.tensor_indices_or_sections": (F, torch.float32, (torch.tensor([1, 4]), 1)),
    "to.dtype": (F, torch.float32, (torch.float32,)),
    "transpose.int": (F, torch.float32, (0, 1)),
    "unbind.int": (F, torch.float32, (1,)),
    "unflatten.int": (F, torch.float32, (1, [2, 3])),
    "unfold": (F, torch.float32, (1, 3, 3)),
    "unsqueeze": (F, torch.float32, (1,)),
    "view": (F, torch.float32, ([3, 8],)),
    "view.dtype": (F, torch.float32, (torch.int32,)),
    "view_as": (F, torch.float32, (torch.empty(3, 8),)),
    "view_as_complex": (C, torch.float32, ()),
    "view_as_real": (F, torch.complex64, ()),
    "vsplit.array": (F, torch.float32, ([1, 3],)),
    "vsplit.int": (F, torch.float32, (2,)),
}

#: Views that a strided tensor on one device has no use for, and why.
NOT_HERE = {
    **dict.fromkeys(
        ["_indices", "_sparse_broadcast_to", "_values", "ccol_indices", "coalesce", "col_indices"], "sparse"
    ),
    **dict.fromkeys(["crow_indices", "indices", "row_indices", "values"], "sparse"),
    **dict.fromkeys(
        ["_nested_get_values", "_nested_view_from_buffer", "_nested_view_from_jagged"], "nested tensors"
    ),
    **dict.fromkeys(["_fw_primal", "_make_dual"], "forward-mode autograd's own"),
    **dict.fromkeys(["_autocast_to_full_precision", "_autocast_to_reduced_precision"], "TorchScript's own"),
    **dict.fromkeys(["to.device", "to.dtype_layout", "to.other", "pin_memory"], "between devices"),
    **dict.fromkeys(
        ["align_to", "align_to.ellipsis_idx", "refine_names", "rename"], "named dimensions, before 2.13"
    ),
    "slice_inverse": "returns a view of another base",
}


def view_operators() -> set[str]:
    """Return every operator of aten whose result is a view of its first argument, read off the schemas."""
    names = set()
    for schema in torch._C._jit_get_all_schemas():
        name = schema.name + (f".{schema.overload_name}" if schema.overload_name else "")
        known = schema.name.startswith("aten::") and torch._C._dispatch_has_kernel(name)
        named = "name" in schema.overload_name.lower()  # named dimensions, which versions before 2.13 have
        if not known or named or not schema.arguments or str(schema.arguments[0].type) != "Tensor":
            continue
        views = [r.alias_info is not None and not r.alias_info.is_write for r in schema.returns]
        if schema.arguments[0].alias_info is not None and views and all(views):
            names.add(name.removeprefix("aten::"))
    return names


def operator(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def write_through(name: str, device: str) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Write different values into each view of a fresh base; return base and views."""
    shape, dtype, arguments = VIEWS[name]
    base = torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape).to(dtype).to(device)
    # Sizes and indices stay on the CPU, where PyTorch wants them; a tensor that lends its shape moves along.
    moved = [a.to(device) if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in arguments]
    result = operator(name)(base, *moved)
    views = [result] if isinstance(result, torch.Tensor) else list(result)
    for step, view in enumerate(views):
        view.mul_(3).add_(step + 1)
    return base, views


def test_every_view_operator_of_aten_is_accounted_for():
    assert view_operators() - set(NOT_HERE) <= set(VIEWS)


@pytest.mark.parametrize("name", sorted(set(VIEWS) & view_operators()))  # versions of PyTorch differ
def test_a_write_through_a_view_reaches_the_base(name):
    base, views = write_through(name, OTHER)
    wanted, wanted_views = write_through(name, "cpu")
    assert all(v.untyped_storage().data_ptr() == base.untyped_storage().data_ptr() for v in views)
    assert [v.device for v in views] == [base.device] * len(views)
    torch.testing.assert_close(base.cpu(), wanted, rtol=0, atol=0)
    assert [(v.shape, v.stride(), v.storage_offset(), v.dtype) for v in views] == [
        (v.shape, v.stride(), v.storage_offset(), v.dtype) for v in wanted_views
    ]


def test_a_write_to_the_base_is_seen_by_a_view_of_a_view():
    base = torch.zeros(4, 6, device="maca")
    view = base.unfold(1, 2, 2).transpose(0, 1).diagonal()
    base.fill_(7)
    assert view.cpu().eq(7).all()


def test_the_version_counter_is_shared_between_base_and_view():
    base = torch.zeros(4, device="maca")
    before = base._version
    base[1:].add_(1)
    assert base._version == before + 1


def test_a_gradient_flows_back_through_views():
    base = torch.arange(12.0, device="maca", requires_grad=True)
    (base.view(3, 4).t().unfold(0, 2, 1).as_strided((2, 2), (1, 3)) ** 2).sum().backward()
    wanted = torch.arange(12.0, requires_grad=True)
    (wanted.view(3, 4).t().unfold(0, 2, 1).as_strided((2, 2), (1, 3)) ** 2).sum().backward()
    torch.testing.assert_close(base.grad.cpu(), wanted.grad)


def test_set_makes_a_tensor_a_view_of_another_storage():
    source = torch.arange(6.0, device="maca")
    by_tensor, by_storage, by_layout = (torch.empty(0, device="maca") for _ in range(3))
    by_tensor.set_(source)
    by_storage.set_(source.untyped_storage())
    by_layout.set_(source.untyped_storage(), 1, (2, 2), (2, 1))
    source.add_(10)
    assert by_tensor.tolist() == by_storage.tolist() == [10, 11, 12, 13, 14, 15]
    assert by_layout.tolist() == [[11, 12], [13, 14]]
    by_tensor.set_()
    assert by_tensor.shape == (0,)
    assert by_tensor.device == source.device
    by_tensor.resize_(3).fill_(2)
    assert by_tensor.tolist() == [2, 2, 2]
    assert source.tolist()[:3] == [10, 11, 12]
