"""What operators compute on is lent to them: nothing of one call is seen in the next, and nothing is kept."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable

import pytest
import torch

from tefl.privateuse1 import from_alias

pytestmark = pytest.mark.usefixtures("maca")

OBSCURE = "special_airy_ai"
"""An operator whose kernel of the alias device no other test needs."""


@pytest.fixture
def replace(replace_kernel) -> Callable[..., None]:
    """Give an overload of the obscure operator another kernel."""

    def replace(kernel: Callable[..., torch.Tensor], overload: str = "") -> None:
        replace_kernel(".".join(filter(None, [OBSCURE, overload])), kernel)

    return replace


def run(x: torch.Tensor) -> torch.Tensor:
    return getattr(torch.special, OBSCURE.removeprefix("special_"))(x)


# ------------------------------------------------------------------------------------ what a kernel keeps --


def kept_whole(x: torch.Tensor) -> torch.Tensor:
    return x


def kept_view(x: torch.Tensor) -> torch.Tensor:
    return x[1:]


def kept_storage(x: torch.Tensor) -> torch.UntypedStorage:
    return x.untyped_storage()


@pytest.mark.parametrize("keep", [kept_whole, kept_view, kept_storage])
def test_what_a_kernel_keeps_of_an_argument_stays_the_arguments(replace, keep):
    """And the memory lives as long as it does, as the argument's would."""
    kept = []

    def kernel(x: torch.Tensor) -> torch.Tensor:
        kept.append(keep(x))
        return torch.zeros_like(x)

    replace(kernel)
    x = torch.arange(1.0, 9, device="maca")
    address = x.data_ptr()
    run(x)
    x.add_(1)
    del x
    others = [torch.full((8,), -1.0, device="maca") for _ in range(4)]
    assert all(other.data_ptr() != address for other in others)
    (held,) = kept
    if isinstance(held, torch.UntypedStorage):
        held = torch.empty(0, device=held.device).set_(held)
    assert held.tolist() == list(range(2, 10))[-len(held) :]


def test_a_view_of_an_argument_that_shares_its_memory_with_another_may_be_kept(replace):
    kept = []

    def kernel(x: torch.Tensor) -> torch.Tensor:
        kept.append(x)
        return torch.zeros_like(x)

    replace(kernel)
    base = torch.arange(8.0, device="maca")
    run(base[4:])
    torch._foreach_add_([base[:4], base[4:]], 1)
    torch._foreach_mul_([torch.ones(3, device="maca") for _ in range(4)], 5)
    assert kept[0].tolist() == [5, 6, 7, 8]


def test_a_kernel_that_returns_its_argument_returns_the_callers(replace):
    replace(lambda x: x)
    x = torch.ones(3, device="maca")
    assert run(x) is x


def test_a_kernel_that_returns_a_view_of_its_argument_returns_one_of_the_callers(replace):
    replace(lambda x: x[1:])
    x = torch.zeros(3, device="maca")
    run(x).fill_(1)
    assert x.tolist() == [0, 1, 1]


def test_a_kernel_may_call_operators_of_the_device(replace):
    other = torch.full((3,), 2.0, device="maca")
    seen = []

    def kernel(x: torch.Tensor) -> torch.Tensor:
        seen.append((other * 3).tolist())
        return x + 1

    replace(kernel)
    assert run(torch.zeros(3, device="maca")).tolist() == [1, 1, 1]
    assert seen == [[6, 6, 6]]


def test_after_a_kernel_that_failed_the_next_call_is_as_ever(replace):
    def kernel(x: torch.Tensor) -> torch.Tensor:
        raise ArithmeticError("of the kernel")

    replace(kernel)
    x = torch.arange(4.0, device="maca")
    with pytest.raises(ArithmeticError, match="of the kernel"):
        run(x)
    assert (x + x).tolist() == [0, 2, 4, 6]


def test_no_memory_is_kept_after_a_call(maca):
    gc.collect()
    before = maca.memory_allocated()
    x = torch.ones(1 << 16, device="maca")
    x.add_(x).mul(2)
    torch._foreach_add_([x], [x])
    del x
    assert maca.memory_allocated() == before


@pytest.mark.sim_only("CUDA's kernels of integers raise nothing")
def test_memory_that_a_failed_call_gave_its_result_goes_with_the_call(maca):
    x = torch.ones(1 << 16, dtype=torch.int64, device="maca")
    zeros, out = torch.zeros_like(x), torch.empty(0, dtype=torch.int64, device="maca")
    gc.collect()
    before = maca.memory_allocated()
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        torch.remainder(x, zeros, out=out)
    assert maca.memory_allocated() == before
    assert torch.remainder(x[:3], 2 * x[:3], out=out).tolist() == [1, 1, 1]


def test_what_a_failed_kernel_keeps_of_its_resized_result_is_what_it_made(replace):
    kept = []

    def kernel(x: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
        kept.append(out.resize_(6).fill_(7))
        raise ArithmeticError("of the kernel")

    replace(kernel, "out")
    out = torch.zeros(2, device="maca")
    with pytest.raises(ArithmeticError, match="of the kernel"):
        torch.special.airy_ai(torch.ones(6, device="maca"), out=out)
    others = [torch.full((6,), -1.0, device="maca") for _ in range(4)]
    assert (kept[0].tolist(), out.tolist()) == ([7] * 6, [0, 0])
    del others


# -------------------------------------------------- the device's tensor over what a kernel was called with --


def storage(x: torch.Tensor) -> int:
    return x.untyped_storage()._cdata


def test_a_kernel_gets_the_arguments_own_storage_back(replace):
    seen = []

    def kernel(x: torch.Tensor) -> torch.Tensor:
        seen.extend(storage(from_alias(each)) for each in (x, x[1:]))
        from_alias(x[1:]).fill_(5)
        return x.clone()

    replace(kernel)
    x = torch.ones(3, device="maca")
    assert run(x).tolist() == x.tolist() == [1, 5, 5]
    assert seen == [storage(x)] * 2


def test_a_write_to_the_devices_tensor_that_a_kernel_kept_is_seen_by_autograd(replace):
    kept = []

    def kernel(x: torch.Tensor) -> torch.Tensor:
        kept.append(from_alias(x))
        return x.clone()

    replace(kernel)
    x = torch.ones(3, device="maca")
    run(x)
    weight = torch.ones(3, device="maca", requires_grad=True)
    loss = (weight * x).sum()
    kept[0].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_result_that_a_kernel_resized_is_the_callers_to_the_devices_tensor_too(replace):
    kept = []

    def kernel(x: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
        kept.append(from_alias(out.resize_(len(x))))
        return out.copy_(x)

    replace(kernel, "out")
    x, out = torch.arange(6.0, device="maca"), torch.zeros(2, device="maca")
    torch.special.airy_ai(x, out=out)
    assert storage(kept[0]) == storage(out)
    out.add_(1)
    assert kept[0].tolist() == out.tolist() == [1, 2, 3, 4, 5, 6]


def test_what_a_kernel_resized_as_the_devices_tensor_stays_resized(replace):
    def kernel(x: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
        from_alias(out).resize_(len(x)).copy_(from_alias(x))
        return out

    replace(kernel, "out")
    x, out = torch.arange(1000.0, device="maca"), torch.zeros(2, device="maca")
    torch.special.airy_ai(x, out=out)
    others = [torch.full((2,), -1.0, device="maca") for _ in range(4)]
    assert (out.untyped_storage().nbytes(), out.tolist()) == (4000, [0, 1])
    del others


# ------------------------------------------------------------------------------ nothing of the call before --


def sample(kind: str) -> torch.Tensor:
    """One of many sorts of tensors on the CPU."""
    ramp = torch.arange(1.0, 13)
    return {
        "contiguous": ramp.view(3, 4),
        "transposed": ramp.view(3, 4).t(),
        "with an offset": ramp[2:8].view(2, 3),
        "expanded": ramp[:1].expand(2, 5),
        "of no dimension": ramp[3],
        "empty": ramp[:0],
        "of doubles": ramp.double(),
        "of integers": ramp.long(),
        "of bytes": ramp.byte().view(2, 6),
        "complex": torch.complex(ramp, -ramp),
        "conjugate": torch.complex(ramp, -ramp).conj(),
        "negative": torch.complex(ramp, -ramp).conj().imag,
        "of five dimensions": ramp.view(1, 2, 1, 3, 2),
        "channels last": ramp.view(1, 2, 3, 2).contiguous(memory_format=torch.channels_last),
    }[kind]


KINDS = (
    "contiguous",
    "transposed",
    "with an offset",
    "expanded",
    "of no dimension",
    "empty",
    "of doubles",
    "of integers",
    "of bytes",
    "complex",
    "conjugate",
    "negative",
    "of five dimensions",
    "channels last",
)


@pytest.mark.parametrize("first", KINDS)
def test_a_call_sees_nothing_of_the_tensors_of_the_call_before(first):
    def results(device: str) -> list[torch.Tensor]:
        made = []
        for second in KINDS:
            a, b = (sample(kind).to(device) for kind in (first, second))
            if first in ("conjugate", "negative"):
                a = a.conj() if first == "conjugate" else sample("complex").to(device).conj().imag
            if second in ("conjugate", "negative"):
                base = sample("complex").to(device).conj()
                b = base if second == "conjugate" else base.imag
            made += [torch.add(a, 1), torch.mul(b, b), torch.sum(a), b.reciprocal()]
        return made

    for got, wanted in zip(results("maca"), results("cpu"), strict=True):
        assert (got.dtype, got.stride()) == (wanted.dtype, wanted.stride())
        torch.testing.assert_close(got.cpu(), wanted, equal_nan=True)


LAYOUTS = {
    "as allocated": lambda x: x.view(2, 3, 4, 5),
    "transposed": lambda x: x.view(12, 10).t(),
    "with gaps": lambda x: x.view(12, 10)[::2, ::3],
    "with an offset": lambda x: x[7:],
    "expanded": lambda x: x[:1].expand(3, 4),
    "of one row": lambda x: x[:5].view(1, 1, 5, 1),
    "channels last": lambda x: x.view(2, 4, 5, 3).permute(0, 3, 1, 2),
    "channels last, with gaps": lambda x: x.view(2, 4, 5, 3).permute(0, 3, 1, 2)[:, :, ::2],
    "channels last, of three dimensions": lambda x: x.view(2, 2, 2, 5, 3).permute(0, 4, 1, 2, 3),
    "of seven dimensions": lambda x: x.view(1, 2, 3, 1, 4, 1, 5).transpose(1, 4),
    "of no dimension": lambda x: x[3],
    "of no element": lambda x: x[:0].view(0, 3),
    "of doubles": lambda x: x.double(),
    "of bytes": lambda x: x.byte().view(4, 30),
}


def laid_out(x: torch.Tensor) -> tuple[object, ...]:
    """What kernels ask a tensor for.

    empty_like() goes by how dense it is and in which order, max_pool() by whether its strides are those of
    channels that come last, and a result's dtype by whether it is a number.
    """
    formats = (torch.contiguous_format, torch.channels_last, torch.channels_last_3d)
    contiguous = [x.is_contiguous(memory_format=each) for each in formats]
    like = torch.empty_like(x).stride()
    pool = {4: torch.max_pool2d, 5: torch.max_pool3d}.get(x.dim())
    pooled = pool(x, 1).stride() if pool and x.is_floating_point() else None
    mixed = torch.result_type(x, torch.ones(1, dtype=torch.bfloat16))
    return x.dtype, x.shape, x.stride(), x.storage_offset(), x.numel(), contiguous, like, pooled, mixed


@pytest.mark.parametrize("names", [list(LAYOUTS), list(LAYOUTS)[::-1]], ids=["forwards", "backwards"])
def test_a_kernel_sees_its_argument_laid_out_as_it_is(replace, names):
    """Whatever the alias was lent for before."""
    seen = []

    def kernel(x: torch.Tensor) -> torch.Tensor:
        seen.append(laid_out(x))
        return torch.zeros((), device=x.device)

    replace(kernel)
    for name in names:
        run(LAYOUTS[name](torch.arange(120.0, device="maca")))
    assert seen == [laid_out(LAYOUTS[name](torch.arange(120.0))) for name in names]


def test_an_out_that_was_resized_leaves_the_next_one_alone():
    one = torch.ones(5, device="maca")
    small, other = (torch.empty(0, device="maca") for _ in range(2))
    torch.add(one, one, out=small)
    torch.add(one[:2], 2, out=other)
    assert (small.tolist(), other.tolist()) == ([2] * 5, [3, 3])
    assert (small.untyped_storage().nbytes(), other.untyped_storage().nbytes()) == (20, 8)


def test_after_inference_mode_operators_write_in_place_as_before():
    """In a new thread, which has lent nothing yet.

    CUDA's kernels over lists count versions, which tensors made in inference mode have not.
    """
    seen: list[list[float]] = []

    def work() -> None:
        with torch.inference_mode():
            torch.ones(3, device="maca").mul_(2).neg()
        x = [torch.ones(3, device="maca") for _ in range(3)]
        torch._foreach_add_(x, 1)
        x[0].add_(x[1])
        seen.extend(tensor.tolist() for tensor in x)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)
    assert seen == [[4] * 3, [2] * 3, [2] * 3]


# ----------------------------------------------------------------------------------- where the memory lies --


@pytest.mark.sim_only("a GPU cannot read another one's memory")
@pytest.mark.parametrize("op", [torch.neg, lambda x: torch.roll(x, 0), lambda x: x.clone()])
def test_a_tensors_device_is_its_own_word_wherever_its_memory_was_put(op):
    """PyTorch puts what is copied on a write on the current device, under a tensor of another one."""
    x = torch.arange(1 << 20, dtype=torch.float32, device="maca:1")
    lazy = torch._lazy_clone(x)
    lazy.data_ptr()
    assert (lazy.device.index, lazy.untyped_storage().device.index) == (1, 0)
    result = op(lazy)
    assert result.device == lazy.device
    torch.testing.assert_close(result.cpu(), op(x.cpu()))
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        torch.add(lazy, torch.ones(1 << 20, device="maca:0"))
