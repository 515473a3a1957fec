"""What dispatch keeps alive: nothing of a call once it is over, whether it returned or raised."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from native_op import Op, scaled

import tefl
from tefl.dispatch import DispatchError
from tefl.dispatch.native import is_attached

pytestmark = pytest.mark.skipif(not is_attached(), reason="tests the compiled router, which was not built")


@pytest.fixture(autouse=True)
def _without_collector() -> Iterator[None]:
    """So that a cycle keeps what is in it."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Failing:
    """The definition, that raises from its nth call on."""

    def __init__(self, error: Callable[[], Exception], after: int = 0) -> None:
        self.error, self.left = error, after

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.left -= 1
        if self.left < 0:
            raise self.error()
        return scaled(*args, **kwargs)


def outlives_its_call(call: Callable[[torch.Tensor], Any]) -> bool:
    x = torch.randn(4, 8)
    alive = weakref.ref(x)
    with contextlib.suppress(RuntimeError, DispatchError):
        call(x)
    del x
    return alive() is not None


ERRORS: dict[str, Callable[[], Exception]] = {
    "out of memory": lambda: torch.OutOfMemoryError("CUDA out of memory"),
    "a failure": lambda: RuntimeError("boom"),
    "not supported": lambda: tefl.NotSupported("no"),
}


@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)
@pytest.mark.parametrize("after", [0, 3], ids=["at once", "later"])
@pytest.mark.parametrize("falls_back", [False, True])
def test_a_call_that_raises_leaves_its_arguments_at_once(
    native: Op, error: Callable[[], Exception], after: int, falls_back: bool
) -> None:
    """Whoever runs out of memory, catches that and tries less has the memory back."""
    native.add("vendor.acme", Failing(error, after), priority=900)
    if falls_back:
        native.add("reference.torch", scaled)
    with tefl.with_preference("vendor"):
        assert not any(outlives_its_call(native.call) for _ in range(after + 3))
        assert not outlives_its_call(lambda x: tefl.get_manager().call(native.name, x))


def test_where_all_fail_the_arguments_go_as_well(native: Op) -> None:
    for impl_id in ("vendor.acme", "default.flagos", "reference.torch"):
        native.add(impl_id, Failing(lambda: RuntimeError("boom"), 2))
    assert not any(outlives_its_call(native.call) for _ in range(9))


def test_an_implementation_that_is_unregistered_goes_with_the_next_call(native: Op) -> None:
    native.add("reference.torch", scaled)
    implementation = Failing(lambda: RuntimeError("boom"), 9)
    alive = weakref.ref(implementation)
    native.add("vendor.acme", implementation)
    with tefl.with_preference("vendor"):
        for _ in range(3):
            native.call(torch.ones(2, 3))
    tefl.get_registry().unregister("vendor.acme", native.name)
    del implementation
    for _ in range(2):
        native.call(torch.ones(2, 3))
    gc.collect()
    assert alive() is None
