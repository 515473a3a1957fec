"""Autocast casts by PyTorch's lists in full, to the dtype that the provider declared, in every thread."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from claimed import ALIAS
from torch.testing._internal.autocast_test_lists import AutocastTestLists

pytestmark = pytest.mark.usefixtures("maca")

#: Of CUDA's own library, not of a device's operators.
CUDNN = {"aten::cudnn_convolution", "aten::cudnn_convolution_transpose", "aten::_cudnn_rnn"}

#: PyTorch's test lists by what autocast does: (names, module that has them, the dtype that they compute in).
LISTS = {
    "torch_fp16": (torch, "declared"),
    "nn_fp16": (torch._C._nn, "declared"),
    "linalg_fp16": (torch._C._linalg, "declared"),
    "methods_fp16": (None, "declared"),
    "torch_fp32": (torch, "float32"),
    "nn_fp32": (torch._C._nn, "float32"),
    "methods_fp32": (None, "float32"),
    "torch_need_autocast_promote": (torch, "float32"),
    "torch_expect_builtin_promote": (torch, "builtin"),
    "methods_expect_builtin_promote": (None, "builtin"),
}

#: cuDNN's own; and an entry whose arguments are not a tuple, so that PyTorch's tests pass over it too.
NOT_OURS = {"cudnn_convolution", "cudnn_convolution_transpose", "einsum"}


def operators_with(key: str) -> set[str]:
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return {name for name in torch._C._dispatch_get_all_op_names() if has(name, key)}


def test_the_operators_that_autocast_casts_are_cudas():
    assert operators_with("AutocastPrivateUse1") == operators_with("AutocastCUDA") - CUDNN
    assert len(operators_with("AutocastPrivateUse1")) > 100


def cases() -> Iterable[Any]:
    lists = AutocastTestLists(torch.device("cpu"))
    for kind in LISTS:
        for number, entry in enumerate(getattr(lists, kind)):
            if entry[0] not in NOT_OURS:
                yield pytest.param(kind, number, id=f"{kind}-{number}-{entry[0]}")


def floating(value: Any, dtype: torch.dtype) -> Any:
    """Return the arguments with every floating tensor cast: what autocast is to do to them."""
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if isinstance(value, tuple | list):
        return type(value)(floating(part, dtype) for part in value)
    return value


def dtypes(result: Any) -> set[torch.dtype]:
    parts = result if isinstance(result, tuple | list) else [result]
    return {part.dtype for part in parts if isinstance(part, torch.Tensor)}


@pytest.mark.parametrize(("kind", "number"), list(cases()))
def test_an_operator_computes_in_the_dtype_of_its_list(kind, number):
    torch.manual_seed(0)
    entry = getattr(AutocastTestLists(torch.device("maca")), kind)[number]
    module, rule = LISTS[kind]
    name, args, *more = entry
    kwargs = next((m for m in more if isinstance(m, dict)), {})
    forced = next((m for m in more if isinstance(m, torch.dtype)), None)  # the result's, where they say it
    call = getattr(module, name) if module is not None else lambda *a, **k: getattr(a[0], name)(*a[1:], **k)
    torch.manual_seed(1)
    # Arguments that are to be promoted are float16 already, which meets float16 only.
    with torch.autocast("maca", dtype=None if rule == "declared" else torch.float16):
        got = call(*args, **kwargs)
    torch.manual_seed(1)
    if rule == "builtin":  # left alone by autocast, the operator promotes by itself
        wanted = call(*args, **kwargs)
        assert dtypes(got) <= {forced or torch.float32}
    else:
        dtype = torch.bfloat16 if rule == "declared" else torch.float32
        wanted = call(*floating(args, dtype), **kwargs)
        assert dtypes(got) <= {forced or dtype}
    torch.testing.assert_close(got, wanted, rtol=0, atol=0, equal_nan=True)


def test_an_operator_that_is_unsafe_in_half_precision_is_refused_as_on_cuda():
    (name, args, _), *others = AutocastTestLists(torch.device("maca")).banned
    assert (name, others) == ("binary_cross_entropy", [])
    with torch.autocast("maca"), pytest.raises(RuntimeError, match="are unsafe to autocast"):
        torch.nn.functional.binary_cross_entropy(*args)


def test_integers_and_double_precision_are_left_alone():
    with torch.autocast("maca"):
        for dtype in (torch.float64, torch.int64)[: 1 if ALIAS == "cuda" else 2]:  # CUDA has no int64 matmul
            x = torch.ones(2, 2, dtype=dtype, device="maca")
            assert (x @ x).dtype == dtype


def test_a_weight_is_cast_once_and_the_cast_is_forgotten_after_the_context():
    weight = torch.nn.Parameter(torch.ones(2, 2, device="maca"))
    x = torch.ones(1, 2, device="maca")
    with torch.autocast("maca"):
        casts = [torch.mm(x, weight).grad_fn.next_functions[1][0] for _ in range(2)]
        assert casts[0] is casts[1]
        assert casts[0].name() == "ToCopyBackward0"
    with torch.no_grad():
        weight.mul_(2)
    with torch.autocast("maca"):
        assert torch.nn.functional.linear(x, weight).tolist() == [[4, 4]]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_autocast_of_another_device_leaves_the_device_alone(device):
    x = torch.ones(2, 2, device="maca")
    before = torch.is_autocast_enabled(device)
    torch.set_autocast_enabled(device, True)
    try:
        assert (x @ x).dtype == torch.float32
    finally:
        torch.set_autocast_enabled(device, before)


def test_the_declared_dtype_holds_in_every_thread_and_a_threads_choice_stays_its_own():
    gate, seen = threading.Barrier(4), {}

    def work(index: int) -> None:
        own = {} if index % 2 else {"dtype": torch.float16}
        x = torch.ones(2, 2, device=f"maca:{index % 2}")
        gate.wait()
        for _ in range(50):
            with torch.autocast("maca", **own):
                gate.wait()
                seen.setdefault(index, set()).add((x @ x).dtype)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {0: {torch.float16}, 1: {torch.bfloat16}, 2: {torch.float16}, 3: {torch.bfloat16}}


def test_gradients_come_back_in_the_parameters_dtype():
    model = torch.nn.Linear(4, 4, device="maca")
    with torch.autocast("maca"):
        result = model(torch.ones(2, 4, device="maca"))
    result.float().sum().backward()
    assert (result.dtype, model.weight.grad.dtype) == (torch.bfloat16, torch.float32)
    assert torch.equal(model.weight.grad.cpu(), torch.full((4, 4), 2.0))


def test_a_custom_function_casts_its_inputs_as_it_declares():
    class Cast(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="maca", cast_inputs=torch.float32)
        def forward(ctx, x):
            assert not torch.is_autocast_enabled("maca")
            return x @ x

        @staticmethod
        @torch.amp.custom_bwd(device_type="maca")
        def backward(ctx, gradient):
            return gradient

    half = torch.ones(2, 2, dtype=torch.bfloat16, device="maca", requires_grad=True)
    with torch.autocast("maca"):
        result = Cast.apply(half)
    assert result.dtype == torch.float32
