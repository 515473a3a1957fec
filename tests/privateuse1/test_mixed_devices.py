"""Operands on two devices, and operands that overlap: refused, or computed, where CUDA and the CPU do.

The tables are PyTorch's rules for CUDA. Tensors with dimensions must share a device. A CPU tensor without
dimensions is a number, and may meet a device's tensors in the operators of TensorIterator
(`allow_cpu_scalars`, aten/src/ATen/TensorIterator.cpp). Indices of `x[...]` may lie on the CPU
(aten/src/ATen/native/TensorAdvancedIndexing.cpp). `copy_` goes between any two devices.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable

import pytest
import torch
from claimed import ALIAS, OTHER, alias
from torch import Tensor

pytestmark = pytest.mark.usefixtures("maca")

DEVICES = ("cpu", "maca:0", "maca:1")
PAIRS = list(itertools.product(DEVICES, repeat=2))
SAME_DEVICE = "Expected all tensors to be on the same device"

pairs = pytest.mark.parametrize("pair", PAIRS, ids=" and ".join)


def matrix(device: str) -> Tensor:
    return torch.tensor([[1.0, 2.0], [3.0, 4.0]], device=device)


def number(device: str) -> Tensor:
    return torch.tensor(2.0, device=device)


def index(device: str) -> Tensor:
    return torch.tensor([1, 0], device=device)


# ---------------------------------------------------------------------------- tensors with dimensions --

#: Functions of two matrices, neither of which may be elsewhere than the other.
MATRICES: dict[str, Callable[[Tensor, Tensor], object]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "pow": torch.pow,
    "atan2": torch.atan2,
    "maximum": torch.maximum,
    "eq": torch.eq,
    "logical_and": torch.logical_and,
    "lerp": lambda a, b: torch.lerp(a, b, 0.5),
    "addcmul": lambda a, b: torch.addcmul(a, b, b),
    "add_": lambda a, b: a.clone().add_(b),
    "mul_": lambda a, b: a.clone().mul_(b),
    "foreach add": lambda a, b: torch._foreach_add([a], [b]),
    "cat": lambda a, b: torch.cat([a, b]),
    "stack": lambda a, b: torch.stack([a, b]),
    "hstack": lambda a, b: torch.hstack([a, b]),
    "mm": torch.mm,
    "matmul": torch.matmul,
    "bmm": lambda a, b: torch.bmm(a[None], b[None]),
    "mv": lambda a, b: torch.mv(a, b[0]),
    "dot": lambda a, b: torch.dot(a[0], b[0]),
    "addmm": lambda a, b: torch.addmm(a, a, b),
    "baddbmm": lambda a, b: torch.baddbmm(a[None], b[None], b[None]),
    "linear": torch.nn.functional.linear,
    "einsum": lambda a, b: torch.einsum("ij,jk->ik", a, b),
    "tensordot": lambda a, b: torch.tensordot(a, b, 1),
    "conv1d": lambda a, b: torch.conv1d(a[None], b[None]),
    "layer_norm": lambda a, b: torch.nn.functional.layer_norm(a, (2,), b[0]),
    "where, values": lambda a, b: torch.where(a > 0, a, b),
    "where, condition": lambda a, b: torch.where(a > 0, b, b),
    "masked_fill": lambda a, b: a.masked_fill(b > 0, 1.0),
    "masked_select": lambda a, b: torch.masked_select(a, b > 0),
    "index_put, values": lambda a, b: a.clone().index_put_((index(str(a.device)),), b),
    "add, out": lambda a, b: torch.add(a, a, out=b.clone()),
    "mm, out": lambda a, b: torch.mm(a, a, out=b.clone()),
    "cat, out": lambda a, b: torch.cat([a, a], out=b.new_empty(0)),
    "sum, out": lambda a, b: torch.sum(a, 0, out=b.new_empty(0)),
    "sort, out": lambda a, b: torch.sort(a, out=(b.new_empty(0), b.new_empty(0, dtype=torch.int64))),
}

#: Functions of a matrix and of indices that have to lie with it.
INDEXED: dict[str, Callable[[Tensor, Tensor], object]] = {
    "index_select": lambda a, i: torch.index_select(a, 0, i),
    "gather": lambda a, i: torch.gather(a, 0, i[None]),
    "scatter": lambda a, i: torch.scatter(a, 0, i[None], 1.0),
    "index_add": lambda a, i: torch.index_add(a, 0, i, a),
    "take": torch.take,
    "embedding": lambda a, i: torch.nn.functional.embedding(i, a),
}

#: Indexing itself, which takes indices from the CPU too.
INDEXING: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "read": lambda a, i: a[i],
    "read second": lambda a, i: a[:, i],
    "write": lambda a, i: a.clone().index_put_((i,), number(str(a.device))),
    "accumulate": lambda a, i: a.clone().index_put_((i,), a, accumulate=True),
    "mask": lambda a, i: a[i > 0],
}


def leaves(result: object) -> list[Tensor]:
    return [result] if isinstance(result, Tensor) else list(result)


def check(function: Callable[..., object], a: Tensor, b: Tensor, *, on: str | None, why: str) -> None:
    """Check that `function(a, b)` gives the alias device's values, on `on`; None: it raises `why`."""
    if on is None:
        kept = a.clone(), b.clone()
        with pytest.raises(RuntimeError, match=why):
            function(a, b)
        assert torch.equal(a, kept[0])
        assert torch.equal(b, kept[1])
        return
    got, wanted = leaves(function(a, b)), leaves(function(a.to(alias(a.device)), b.to(alias(b.device))))
    assert {str(t.device) for t in got} == {on}
    torch.testing.assert_close([t.cpu() for t in got], [t.cpu() for t in wanted], rtol=0, atol=0)


@pairs
@pytest.mark.parametrize("name", MATRICES)
def test_tensors_with_dimensions_share_a_device(name, pair):
    a, b = map(matrix, pair)
    check(MATRICES[name], a, b, on=pair[0] if pair[0] == pair[1] else None, why=SAME_DEVICE)


@pairs
def test_the_refusal_names_both_devices(pair):
    if pair[0] == pair[1]:
        return
    with pytest.raises(RuntimeError) as caught:
        torch.add(*map(matrix, pair))
    assert all(device in str(caught.value) for device in pair)


@pairs
@pytest.mark.parametrize("name", INDEXED)
def test_indices_of_an_operator_lie_with_its_input(name, pair):
    a, i = matrix(pair[0]), index(pair[1])
    check(INDEXED[name], a, i, on=pair[0] if pair[0] == pair[1] else None, why=SAME_DEVICE)


@pairs
@pytest.mark.parametrize("name", INDEXING)
def test_indexing_takes_indices_from_the_cpu_too(name, pair):
    a, i = matrix(pair[0]), index(pair[1])
    allowed = pair[1] in ("cpu", pair[0])
    why = f"indices should be either on cpu or on the same device as the indexed tensor ({pair[0]})"
    check(INDEXING[name], a, i, on=pair[0] if allowed else None, why=re.escape(why))


@pairs
def test_a_copy_goes_between_any_two_devices(pair):
    check(lambda a, b: a.clone().copy_(b * 2), *map(matrix, pair), on=pair[0], why="")
    check(lambda a, b: a.clone().copy_(b * 2), matrix(pair[0]), number(pair[1]), on=pair[0], why="")


# ------------------------------------------------------------------------- tensors without dimensions --

#: Functions of a matrix, or a number, and a number.
NUMBERS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": torch.add,
    "mul": torch.mul,
    "div": torch.div,
    "pow": torch.pow,
    "maximum": torch.maximum,
    "eq": torch.eq,
    "where": lambda a, b: torch.where(a > 0, a, b),
    "masked_fill": lambda a, b: a.masked_fill(a > 1, b),
}


def meeting_place(first: str, second: str) -> str | None:
    """Return where a number of `second` and tensors of `first` are computed, None if they may not meet."""
    return first if second in ("cpu", first) else None


@pairs
@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_on_the_cpu_meets_tensors_of_any_device_and_no_other_number_does(name, pair):
    check(NUMBERS[name], matrix(pair[0]), number(pair[1]), on=meeting_place(*pair), why=SAME_DEVICE)


@pairs
@pytest.mark.parametrize("name", ["add", "mul", "div", "pow", "maximum", "eq"])
def test_the_number_may_come_first(name, pair):
    check(
        NUMBERS[name], number(pair[0]), matrix(pair[1]), on=meeting_place(pair[1], pair[0]), why=SAME_DEVICE
    )


@pairs
@pytest.mark.parametrize("name", ["add", "mul", "eq"])
def test_two_numbers_meet_on_the_device(name, pair):
    place = meeting_place(*pair) or meeting_place(pair[1], pair[0])
    check(NUMBERS[name], number(pair[0]), number(pair[1]), on=place, why=SAME_DEVICE)


@pairs
def test_a_number_in_place_takes_numbers_from_its_own_device_and_the_cpu(pair):
    check(lambda a, b: a.clone().add_(b), *map(number, pair), on=meeting_place(*pair), why=SAME_DEVICE)


# --------------------------------------------------------------------------------- overlapping operands --

#: Functions that write where they still read, or write one place twice. The CPU refuses them all.
OVERLAPS: dict[str, Callable[[Tensor], object]] = {
    "add_": lambda x: x[1:].add_(x[:-1]),
    "mul_": lambda x: x[:-1].mul_(x[1:]),
    "sub_ of a transpose": lambda x: x[:16].view(4, 4).sub_(x[1:17].view(4, 4).t()),
    "addcmul_": lambda x: x[1:].addcmul_(x[:-1], x[:-1]),
    "add, out": lambda x: torch.add(x[1:], 1, out=x[:-1]),
    "exp, out": lambda x: torch.exp(x[1:], out=x[:-1]),
    "where, out": lambda x: torch.where(x[1:] > 0, x[1:], x[1:], out=x[:-1]),
    "cat, out": lambda x: torch.cat([x[1:3], x[3:5]], out=x[:4]),
    "gather, out": lambda x: torch.gather(
        x[1:5], 0, torch.zeros(4, dtype=torch.int64, device=x.device), out=x[:4]
    ),
    "index_select, out": lambda x: torch.index_select(
        x[1:5], 0, torch.zeros(4, dtype=torch.int64, device=x.device), out=x[:4]
    ),
    "add_ to an expanded tensor": lambda x: x[:1].expand(3).add_(1),
    "copy_ to an expanded tensor": lambda x: x[:1].expand(3).copy_(x[:3]),
    "foreach add_": lambda x: torch._foreach_add_([x[1:]], [x[:-1]]),
}


@pytest.mark.parametrize("name", OVERLAPS)
def test_what_overlaps_is_refused_in_the_cpus_words(name):
    messages, values = [], []
    for device in ("cpu", OTHER):
        x = torch.arange(32.0, device=device)
        if ALIAS == "cuda" and name == "foreach add_":
            pytest.skip("CUDA's kernel does not look: aten/src/ATen/native/cuda/ForeachBinaryOpList.cu")
        with pytest.raises(RuntimeError) as caught:
            OVERLAPS[name](x)
        messages.append(str(caught.value))
        values.append(x.tolist())
    assert messages[1] == messages[0]
    assert values[1] == values[0] == list(range(32))


#: The same memory as a whole is no overlap: element by element, it is read before it is written.
FULL: dict[str, Callable[[Tensor], Tensor]] = {
    "add_": lambda x: x.add_(x),
    "add, out": lambda x: torch.add(x, x, out=x),
    "addcmul_": lambda x: x.addcmul_(x, x),
    "where, out": lambda x: torch.where(x > 2, x, -x, out=x),
    "two halves": lambda x: x[:16].add_(x[16:]),
    "interleaved": lambda x: x[::2].mul_(x[1::2]),
    "copy_ to itself": lambda x: x.copy_(x),
}


@pytest.mark.parametrize("name", FULL)
def test_what_only_seems_to_overlap_is_computed_as_on_the_cpu(name):
    results = []
    for device in ("cpu", OTHER):
        x = torch.arange(32.0, device=device)
        results.append((FULL[name](x).tolist(), x.tolist()))
    assert results[0] == results[1]
