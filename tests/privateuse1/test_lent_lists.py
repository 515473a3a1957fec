"""Lists of tensors are lent to kernels tensor for tensor: those that share memory share it there."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

import pytest
import torch
from subclasses import ANSWERS

pytestmark = pytest.mark.usefixtures("maca")


def lists(device: str) -> dict[str, list[torch.Tensor]]:
    """Lists whose tensors are new, the same, or share memory."""
    base = torch.arange(80.0, device=device)
    apart = [base[i : i + 2].clone() for i in range(0, 80, 2)]
    return {
        "few": apart[:3],
        "many": apart,
        "slices": list(base.split(2)),
        "one in many places": [apart[0], apart[1], apart[0], apart[0]],
        "another order": apart[::-1],
    }


@pytest.mark.parametrize("first", lists("cpu"))
@pytest.mark.parametrize("second", lists("cpu"))
def test_lists_may_share_tensors_and_memory(first, second):
    def results(device: str) -> list[torch.Tensor]:
        all_lists = lists(device)
        a, b = all_lists[first], all_lists[second]
        count = min(len(a), len(b))
        a, b = a[:count], b[:count]
        made = [torch.cat(a), torch.cat(b), torch.cat(a + b), torch.stack(b)]
        made += [*torch._foreach_add(a, b), *torch._foreach_mul(a, 2), *torch._foreach_norm(b)]
        if first != "one in many places" and second == first:
            torch._foreach_addcmul_(a, b, b, value=0.5)
        return [*made, *a]

    for got, wanted in zip(results("maca"), results("cpu"), strict=True):
        assert got.device.type == "maca"
        torch.testing.assert_close(got.cpu(), wanted)


def test_results_that_share_memory_share_it_on_the_device():
    """CUDA's kernel makes all norms in one piece of memory."""
    norms = torch._foreach_norm([torch.full((4,), float(i), device="maca") for i in range(20)])
    assert [norm.item() for norm in norms] == [2.0 * i for i in range(20)]
    norms[3].fill_(-1)
    assert torch.stack(norms).tolist() == [2.0 * i if i != 3 else -1 for i in range(20)]


def test_a_list_with_tensors_elsewhere_is_refused():
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        torch.cat([torch.ones(2, device="maca"), torch.ones(2)])


@pytest.mark.parametrize("count", [1, 3, 20])
def test_a_number_on_the_host_is_no_place_to_write_for_an_operator_over_lists(count):
    """As in place: x.add_(y) refuses an x on the host, too."""
    found, half = (torch.tensor([value], device="maca") for value in (0.0, 0.5))
    numbers = [torch.tensor(1.0) for _ in range(count)]
    for tensors in (numbers, [torch.ones(2, device="maca"), *numbers]):
        with pytest.raises(RuntimeError, match=r"same device"):
            torch._amp_foreach_non_finite_check_and_unscale_(tensors, found, half)
    assert all(number == 1 for number in numbers)


# -------------------------------------------------------------------------------------- what kernels see --

Lists = list[list[torch.Tensor]]


@pytest.fixture
def seen(replace_kernel) -> Lists:
    """The lists that the alias device's kernels of torch.cat and torch._fused_adamw_ are called with."""
    received: Lists = []

    def cat(tensors: list[torch.Tensor], dim: int = 0) -> torch.Tensor:
        received.append(tensors)
        return torch.zeros(1, device=tensors[0].device)

    def fused(*tensors: list[torch.Tensor], **_: object) -> None:
        received.extend(tensors)

    replace_kernel("cat", cat)
    replace_kernel("_fused_adamw_", fused)
    return received


def fused_adamw(tensors: list[torch.Tensor]) -> None:
    options = {"lr": 0.1, "beta1": 0.9, "beta2": 0.9, "weight_decay": 0, "eps": 1e-8}
    torch._fused_adamw_(tensors, tensors, [], [], [], [], **options, amsgrad=False, maximize=False)


def first_over_the_same(tensors: list[torch.Tensor]) -> list[int]:
    """For each tensor the number of the first one in the same memory."""
    storages = [tensor.untyped_storage()._cdata for tensor in tensors]
    return [storages.index(each) for each in storages]


OVERLAPS: dict[str, Callable[[list[torch.Tensor]], list[torch.Tensor]]] = {
    "none": lambda apart: apart,
    "at once": lambda apart: [apart[0], apart[0], *apart],
    "late": lambda apart: [*apart, apart[3], apart[39], apart[3][1:]],
    "with a view, again and again": lambda apart: [view for x in apart for view in (x, x[1:], x)],
    "in the middle": lambda apart: [*apart[:20], apart[2][:1], *apart[20:], apart[25].view(1, 2)],
}


@pytest.mark.parametrize("call", [torch.cat, fused_adamw])
@pytest.mark.parametrize("overlap", OVERLAPS)
def test_kernels_see_which_tensors_of_a_list_share_memory(seen, call, overlap):
    for _ in range(2):  # the second call finds what the first has left
        tensors = OVERLAPS[overlap]([torch.ones(2, device="maca") for _ in range(40)])
        seen.clear()
        call(tensors)
        given = tensors if call is torch.cat else tensors + tensors  # parameters, and as many gradients
        taken = [*chain(*seen)]
        assert first_over_the_same(taken) == first_over_the_same(given)
        assert [x.shape for x in taken] == [x.shape for x in given]


class Busy(torch.Tensor):
    """Halves a long list of tensors by one operator at each dispatch: it is asked for its shape."""

    others: tuple[torch.Tensor, ...] | list[torch.Tensor] = ()
    asked = 0

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        found, half = cls.others[0].new_zeros(1), cls.others[0].new_tensor(0.5)
        torch._amp_foreach_non_finite_check_and_unscale_(cls.others, found, half)
        cls.asked += 1
        return ANSWERS.get(function, NotImplemented)


@pytest.mark.parametrize("call", [torch.cat, fused_adamw])
def test_a_call_made_while_a_list_is_lent_leaves_the_list_alone(seen, call, monkeypatch):
    """A subclass in Python is asked while the list is lent, and uses the tensors before and behind it."""
    apart = [torch.ones(2, device="maca") for _ in range(40)]
    monkeypatch.setattr(Busy, "others", apart[::-1])  # whose memory goes with the test
    monkeypatch.setattr(Busy, "asked", 0)
    busy = torch.Tensor._make_subclass(Busy, apart[0].clone(), dispatch_sizes_strides_policy="sizes")
    tensors = [*apart[:30], busy, apart[1], *apart[30:], apart[39][:1], apart[39], *apart[:3]]
    with torch._C._DisableTorchDispatch():  # the call itself is to come to the device's kernel
        call(tensors)
    assert Busy.asked > 0
    assert [x.tolist() for x in apart] == [[0.5**Busy.asked] * 2] * 40
    assert first_over_the_same(seen[0]) == first_over_the_same(tensors)
