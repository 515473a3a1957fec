"""Sparse tensors in coordinate form: made, computed with, written and moved as on the alias device."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from claimed import OTHER, alias

pytestmark = [
    pytest.mark.usefixtures("maca"),
    pytest.mark.filterwarnings("ignore:Sparse.*tensor support is in beta state:UserWarning"),
]


def numbers(device: Any) -> torch.Tensor:
    """A matrix with some zeros."""
    x = torch.arange(-6.0, 6.0).reshape(3, 4)
    return torch.where(x.to(torch.int64) % 3 == 0, 0, x).to(device)


def doubled(device: Any) -> torch.Tensor:
    """A sparse matrix that names one place twice."""
    places = torch.tensor([[0, 0, 2], [1, 1, 3]], device=device)
    return torch.sparse_coo_tensor(places, torch.tensor([1.0, 2, 4], device=device), (3, 4))


def compare(got: Any, wanted: Any, **tolerance: float) -> None:
    """Fail unless every tensor of a result lies on the device, whole, and equals the one that is wanted.

    That is the alias device's, to the last bit; the CPU's with a backward, which plain CUDA cannot run here.
    """
    tolerance = tolerance or {"rtol": 0, "atol": 0}
    if isinstance(wanted, torch.Tensor):
        assert got.device == torch.device(OTHER)
        assert got.layout == wanted.layout
        if wanted.layout == torch.sparse_coo:
            assert got._indices().device == got._values().device == torch.device(OTHER)
            assert got.is_coalesced() == wanted.is_coalesced()
        torch.testing.assert_close(got.cpu(), wanted.cpu(), **tolerance)
    elif isinstance(wanted, (tuple, list)):
        assert len(got) == len(wanted)
        for mine, right in zip(got, wanted, strict=True):
            compare(mine, right, **tolerance)
    else:
        assert got == wanted


#: Each takes a device, and is run on ours and on the one that computes for it.
OPERATORS: dict[str, Callable[[Any], Any]] = {
    "to_sparse": lambda d: numbers(d).to_sparse(),
    "to_sparse of leading dimensions": lambda d: numbers(d).to_sparse(1),
    "sparse_coo_tensor": doubled,
    "sparse_coo_tensor by device": lambda d: torch.sparse_coo_tensor([[0], [1]], [1.0], (2, 2), device=d),
    "sparse_coo_tensor of nothing": lambda d: torch.sparse_coo_tensor(size=(2, 3), device=d),
    "empty": lambda d: torch.empty(2, 2, layout=torch.sparse_coo, device=d),
    "zeros": lambda d: torch.zeros(2, 2, layout=torch.sparse_coo, device=d),
    "zeros_like": lambda d: torch.zeros_like(doubled(d)),
    "clone": lambda d: doubled(d).clone(),
    "detach": lambda d: doubled(d).detach(),
    "coalesce": lambda d: doubled(d).coalesce(),
    "indices and values": lambda d: [doubled(d).coalesce().indices(), doubled(d).coalesce().values()],
    "to_dense": lambda d: doubled(d).to_dense(),
    "to another dtype": lambda d: doubled(d).double(),
    "sparse_mask": lambda d: numbers(d).sparse_mask(doubled(d).coalesce()),
    "add": lambda d: doubled(d) + numbers(d).to_sparse(),
    "add to a dense one": lambda d: numbers(d) + doubled(d),
    "sub": lambda d: doubled(d) - numbers(d).to_sparse(),
    "mul": lambda d: numbers(d).to_sparse() * doubled(d),
    "mul by a dense one": lambda d: doubled(d).coalesce() * numbers(d),
    "mul by a number": lambda d: doubled(d) * 2,
    "div": lambda d: doubled(d) / 4,
    "neg": lambda d: -doubled(d),
    "abs and sqrt": lambda d: doubled(d).coalesce().abs().sqrt(),
    "pow": lambda d: doubled(d).coalesce().pow(2),
    "mm": lambda d: torch.sparse.mm(doubled(d), numbers(d).t()),
    "mm of sparse ones": lambda d: torch.sparse.mm(doubled(d), numbers(d).to_sparse().t()),
    "matmul": lambda d: doubled(d) @ numbers(d)[0],
    "addmm": lambda d: torch.sparse.addmm(numbers(d)[:, :3], doubled(d), numbers(d).t()),
    "sum": lambda d: torch.sparse.sum(doubled(d)),
    "sum over a dimension": lambda d: torch.sparse.sum(doubled(d), 0),
    "softmax": lambda d: torch.sparse.softmax(doubled(d).coalesce(), 1),
    "norm": lambda d: doubled(d).coalesce().norm(),
    "transpose": lambda d: doubled(d).t(),
    "select": lambda d: doubled(d)[2],
    "index_select": lambda d: doubled(d).index_select(0, torch.tensor([2, 0], device=d)),
    "cat": lambda d: torch.cat([doubled(d), numbers(d).to_sparse()]),
    "stack": lambda d: torch.stack([doubled(d), doubled(d)]),
    "facts": lambda d: [doubled(d)._nnz(), doubled(d).sparse_dim(), doubled(d).dense_dim()],
    "out=": lambda d: torch.mm(doubled(d), numbers(d).t(), out=torch.empty(0, device=d)),
    "out= of the right size": lambda d: torch.mm(
        doubled(d), numbers(d).t(), out=torch.full((3, 3), 7.0, device=d)
    ),
    "bfloat16": lambda d: torch.sparse.sum(doubled(d).bfloat16()),
    "complex": lambda d: (doubled(d) * 1j).coalesce().to_dense(),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_gives_what_the_alias_device_gives(name):
    compare(OPERATORS[name](OTHER), OPERATORS[name](alias(OTHER)))


def written_in_place(device: Any) -> list[torch.Tensor]:
    sparse, dense = doubled(device), numbers(device)
    row = dense[0]
    sparse.add_(dense.to_sparse()).mul_(3)
    dense.add_(doubled(device), alpha=2)
    other = doubled(device).coalesce()
    other._values().fill_(9)
    cleared = doubled(device)
    cleared.zero_()
    grown = doubled(device).coalesce().sparse_resize_((5, 4), 2, 0)
    copied = torch.empty(3, 4, layout=torch.sparse_coo, device=device).copy_(doubled(device))
    return [sparse, dense, row, other, cleared, grown, copied, doubled(device).coalesce().sqrt_()]


def test_writes_in_place_reach_the_tensor_and_its_parts():
    compare(written_in_place(OTHER), written_in_place(alias(OTHER)))


def test_a_tensor_stays_the_object_it_was_through_writes_in_place():
    x = doubled(OTHER)
    assert x.add_(x) is x
    torch.testing.assert_close(x.cpu().to_dense(), 2 * doubled("cpu").to_dense())


def gradients(device: Any) -> list[torch.Tensor]:
    sparse, dense = doubled(device).requires_grad_(), numbers(device).requires_grad_()
    table = torch.ones(4, 3, device=device, requires_grad=True)
    index = torch.tensor([1, 3, 1], device=device)
    torch.sparse.mm(sparse, dense.t()).pow(2).sum().backward()
    for _ in range(2):  # gradients add up
        torch.nn.functional.embedding(index, table, sparse=True).pow(2).sum().backward()
    torch.gather(dense, 0, torch.tensor([[0, 2, 0, 1]], device=device), sparse_grad=True).sum().backward()
    bag = torch.nn.EmbeddingBag.from_pretrained(torch.ones(4, 3), freeze=False, sparse=True).to(device)
    bag(index, torch.tensor([0, 2], device=device)).sum().backward()
    found = [sparse.grad, dense.grad, table.grad, bag.weight.grad]
    assert all(g is not None for g in found)
    return [g.coalesce() if g.is_sparse else g for g in found]


def test_gradients_are_sparse_where_they_are_on_the_cpu():
    compare(gradients(OTHER), gradients("cpu"), rtol=1e-6, atol=1e-6)


def trained(device: Any) -> list[torch.Tensor]:
    torch.manual_seed(0)
    table = torch.nn.Embedding(10, 4, sparse=True).to(device)
    optimizer = torch.optim.SparseAdam(table.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        table(torch.tensor([step, step + 4, 9], device=device)).pow(2).sum().backward()
        optimizer.step()
    return [table.weight.detach(), *(v for v in optimizer.state[table.weight].values() if torch.is_tensor(v))]


def test_an_embedding_trains_with_sparse_adam():
    compare(trained(OTHER), trained("cpu"), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("source", ["cpu", "maca:0", OTHER])
@pytest.mark.parametrize("target", ["cpu", "maca:0", OTHER])
def test_a_tensor_moves_between_devices(source, target):
    x = doubled(source).to(target)
    assert x.device == torch.device(target)
    assert x._indices().device == x._values().device == torch.device(target)
    torch.testing.assert_close(x.cpu().coalesce(), doubled("cpu").coalesce(), rtol=0, atol=0)


def test_it_is_saved_loaded_copied_and_printed():
    x, file = doubled(OTHER), io.BytesIO()
    torch.save(x, file)
    for where, device in ((None, OTHER), ("cpu", "cpu"), ("maca:0", "maca:0")):
        file.seek(0)
        loaded = torch.load(file, map_location=where)
        assert loaded.device == torch.device(device)
        torch.testing.assert_close(loaded.cpu().to_dense(), doubled("cpu").to_dense())
    assert copy.deepcopy(x).device == torch.device(OTHER)
    assert f"device='{OTHER}'" in str(x)
    assert "layout=torch.sparse_coo" in str(x)


def test_operands_on_two_devices_are_refused_and_nothing_is_written():
    x = numbers(OTHER)
    with pytest.raises(
        RuntimeError, match=rf"same device.* {OTHER} and cpu! .*argument 'other' of aten::add_"
    ):
        x.add_(doubled("cpu"))
    torch.testing.assert_close(x.cpu(), numbers("cpu"), rtol=0, atol=0)
    with pytest.raises(RuntimeError, match="same device"):
        torch.sparse.mm(doubled("cpu"), numbers(OTHER).t())


def test_an_operator_without_a_sparse_kernel_names_the_device():
    with pytest.raises(NotImplementedError, match=rf"(?s)aten::cos.* ran on {OTHER}"):
        doubled(OTHER).cos()


@pytest.mark.sim_only("memory is CUDA's there, and counted by its allocator")
def test_what_a_sparse_tensor_holds_is_the_devices_memory_and_goes_with_it(maca):
    before = maca.memory_allocated(OTHER)
    x = torch.eye(300, device=OTHER).to_sparse()
    y = x + x
    assert maca.memory_allocated(OTHER) - before >= 2 * 300 * (2 * 8 + 4)
    del x, y
    assert maca.memory_allocated(OTHER) == before


@pytest.mark.sim_only("starts processes on the simulator")
def test_memory_that_nobody_else_can_compute_on_has_none(opaque):
    told = opaque(
        """
        for make in (lambda: torch.eye(2, device="maca").to_sparse(),
                     lambda: torch.zeros(2, layout=torch.sparse_coo, device="maca"),
                     lambda: torch.eye(2).to_sparse().to("maca")):
            try:
                make()
            except NotImplementedError as error:
                print("only strided ones are supported" in str(error))
        """
    )
    assert told.split() == ["True"] * 3


@pytest.mark.sim_only("starts processes on the simulator")
def test_guarded_memory_is_opened_for_what_computes_on_it(python):
    from interpreters import CLAIM

    told = python(
        CLAIM
        + """
x = torch.eye(40, device="maca").to_sparse()
print(torch.sparse.mm(x + x, torch.eye(40, device="maca")).sum().item())
""",
        TEFL_SIM_CHECKED="1",
    )
    assert told.split() == ["80.0"]
