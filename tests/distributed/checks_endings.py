"""Groups that end, calls that are given up and stores that fall silent: nothing hangs, no memory goes early.

The process groups here are made beside torch's, which then has nothing to do with their end: the last
reference destroys them. FAULTY names the provider's library, faulty_provider.c.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from checks_order import COUNT, LONG, filled, hold, meet

from tefl import _native

LIMIT = 3.0  # seconds, the time-out of a group whose work is to run into it
NUMBERS = itertools.count()


class Gate(dist.Store):
    """The ranks' store, which may fall silent, be slow, or not show a key."""

    def __init__(self) -> None:
        super().__init__()
        self._inner = dist.distributed_c10d._get_default_store()
        self._answers = threading.Event()
        self._answers.set()
        self.hidden = "nothing"  # keys with this in them are not there
        self.asked = threading.Event()  # for what is hidden
        self.seconds = 0.0  # that each answer takes

    def _answer(self) -> None:
        self._answers.wait()
        time.sleep(self.seconds)

    def set(self, key: str, value: bytes) -> None:
        self._answer()
        self._inner.set(key, value)

    def get(self, key: str) -> bytes:
        self._answer()
        return self._inner.get(key)

    def check(self, keys: list[str]) -> bool:
        self._answer()
        if any(self.hidden in key for key in keys):
            self.asked.set()
            return False
        return self._inner.check(keys)

    def wait(self, keys: list[str], timeout: timedelta = LONG) -> None:
        until(lambda: self.check(keys), timeout)

    @contextlib.contextmanager
    def silent(self) -> Iterator[None]:
        self._answers.clear()
        try:
            yield
        finally:
            self._answers.set()


def until(condition: Callable[[], bool], timeout: timedelta = LONG) -> None:
    deadline = time.monotonic() + timeout.total_seconds()
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def store_of(name: str, gate: Gate | None = None) -> dist.Store:
    return dist.PrefixStore(name, gate or dist.distributed_c10d._get_default_store())


def process_group(rank: int, size: int, store: dist.Store | None = None, seconds: float = 60.0) -> Any:
    store = store or store_of(f"group {next(NUMBERS)}")
    return _native.load().ccl.table_backend(store, rank, size, timedelta(seconds=seconds))


def all_reduce(backend: Any, tensor: torch.Tensor) -> dist.Work:
    return backend.allreduce([tensor], dist.distributed_c10d.AllreduceOptions())


def sound(backend: Any, rank: int, size: int) -> None:
    """Have the communicator made and the form of `filled` known, and all ranks here."""
    all_reduce(backend, filled(0)).wait()
    torch.maca.synchronize()
    meet(f"sound {next(NUMBERS)}", rank, size)


def begun(function: Callable[[], Any]) -> Future[Any]:
    """Run it in a thread that nobody has to join, so that a hang is an error of one check."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except Exception as error:  # noqa: BLE001  it is the caller's
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def ended(future: Future[Any]) -> Any:
    return future.result(LONG.total_seconds() / 2)


def forget_failures() -> None:
    """Failed work is an error of the next synchronisation."""
    with contextlib.suppress(torch.AcceleratorError):
        torch.maca.synchronize()


def check_work_fails_in_time_though_the_store_is_silent(rank: int, size: int) -> None:
    gate = Gate()
    backend = process_group(rank, size, store_of("silent at a failure", gate), LIMIT)
    sound(backend, rank, size)
    if rank == 0:  # calls alone
        with gate.silent():
            works = [all_reduce(backend, filled(1)) for _ in range(30)]
            for work in works:
                with pytest.raises(dist.DistBackendError, match="not done within its time-out of 3000 ms"):
                    work.wait(LONG)
            with pytest.raises(dist.DistBackendError, match="failed before"):
                ended(begun(lambda: all_reduce(backend, filled(1))))
    meet("silent at a failure", rank, size)
    forget_failures()


def check_calls_of_a_new_form_go_on_though_the_store_is_silent(rank: int, size: int) -> None:
    gate = Gate()
    backend = [process_group(rank, size, store_of("silent at a call", gate))]
    sound(backend[0], rank, size)
    with gate.silent():
        for count in range(5, 10):
            tensor = torch.ones(count, device="maca")
            ended(begun(lambda tensor=tensor: all_reduce(backend[0], tensor))).wait(LONG)
            assert tensor.tolist() == [size] * count
        meet("silent at a call", rank, size)
        ended(begun(backend.clear))  # its threads end as well


def check_answers_that_come_late_still_count(rank: int, size: int) -> None:
    gate = Gate()
    gate.seconds = 1.1  # longer than anybody waits for one
    backend = process_group(rank, size, store_of("late", gate))
    tensor = torch.ones(4, device="maca")
    all_reduce(backend, tensor).wait(LONG)
    assert tensor.tolist() == [size] * 4


def check_an_abort_ends_a_call_that_waits_for_the_other_ranks(rank: int, size: int) -> None:
    """Rank 1 does not find rank 0's communicator, and rank 0 waits in it for rank 1."""
    gate = Gate()
    gate.hidden = "tefl/communicator" if rank == 1 else "nothing"
    store = store_of("aborted", gate)
    backend = process_group(rank, size, store, seconds=600)
    call = begun(lambda: all_reduce(backend, filled(1)))
    until(lambda: gate.asked.is_set() if rank == 1 else store.check(["tefl/communicator/1"]))
    ended(begun(backend.abort))
    with pytest.raises(dist.DistBackendError, match="the process group was aborted"):
        ended(call)
    meet("aborted", rank, size)
    if rank == 1:  # comes after all: what rank 0 has given up is made, and goes
        gate.hidden = "nothing"
        with pytest.raises(dist.DistBackendError):
            all_reduce(process_group(rank, size, store), filled(1)).wait(LONG)
    meet("gone", rank, size)
    forget_failures()


def check_a_device_that_waits_for_the_others_holds_up_no_other_device(rank: int, size: int) -> None:
    gate = Gate()
    gate.hidden = "tefl/communicator/1" if rank == 1 else "nothing"
    store = store_of("two devices", gate)
    backend = process_group(rank, size, store)
    tensors = [torch.ones(4, device=f"maca:{index}") for index in range(2)]
    first = begun(lambda: all_reduce(backend, tensors[0]))
    if rank == 0:
        until(lambda: store.check(["tefl/communicator/1"]))
    else:
        assert gate.asked.wait(LONG.total_seconds())
    ended(begun(lambda: all_reduce(backend, tensors[1]))).wait(LONG)
    assert tensors[1].tolist() == [size] * 4
    assert not first.done()
    meet("two devices", rank, size)
    gate.hidden = "nothing"
    ended(first).wait(LONG)
    assert tensors[0].tolist() == [size] * 4


def check_work_is_told_that_its_group_was_destroyed(rank: int, size: int) -> None:
    backend = process_group(rank, size)
    sound(backend, rank, size)
    if rank == 0:  # calls alone
        works = [all_reduce(backend, filled(1)), backend.barrier(dist.distributed_c10d.BarrierOptions())]
        waits = [begun(lambda: works[0].wait(LONG)), begun(works[1].wait)]
        del backend
        for wait in waits:
            with pytest.raises(dist.DistBackendError, match="the process group was destroyed"):
                ended(wait)
        assert works[0].is_completed()
        assert not works[0].is_success()
        with pytest.raises(dist.DistBackendError, match="the process group was destroyed"):
            works[0].get_future().wait()
    meet("told", rank, size)
    forget_failures()


def check_a_group_may_be_destroyed_while_its_thread_runs_python(rank: int, size: int) -> None:
    backend = process_group(rank, size)
    sound(backend, rank, size)
    begins = threading.Event()

    class Slow:
        def __del__(self) -> None:
            begins.set()
            time.sleep(0.2)  # another thread has the interpreter meanwhile, and destroys the group

    tensor = filled(1)
    tensor.slow = Slow()
    all_reduce(backend, tensor)
    del tensor  # the work has the last reference
    assert begins.wait(LONG.total_seconds())
    del backend


def check_destroying_a_group_waits_for_its_work(rank: int, size: int) -> None:
    group = dist.new_group(list(range(size)))
    backend = group._get_backend(torch.device("maca"))
    tensor = filled(rank)
    sound(backend, rank, size)
    let_go = hold(rank)
    work = dist.all_reduce(tensor, group=group, async_op=True)
    destroyed = begun(lambda: dist.destroy_process_group(group))
    assert not wait([destroyed], timeout=0.2).done
    let_go()
    ended(destroyed)
    assert work.is_completed()
    work.wait()
    assert tensor.eq(size * (size - 1) / 2).all().item()
    with pytest.raises(dist.DistBackendError, match="the process group was destroyed"):
        all_reduce(backend, tensor)


def memory_is_kept(rank: int, size: int, give_up: Callable[[list[Any], list[torch.Tensor]], None]) -> None:
    """Have `give_up` do away with work of a stream that is held: its memory waits for that."""
    backend = [process_group(rank, size, seconds=LIMIT)]
    sound(backend[0], rank, size)
    let_go = hold(rank)
    tensors = [torch.empty(COUNT, device="maca")]
    address = tensors[0].data_ptr()
    give_up(backend, tensors)
    tensors.clear()
    later = [torch.empty(COUNT, device="maca") for _ in range(4)]
    assert address not in [tensor.data_ptr() for tensor in later]
    meet(f"given up {next(NUMBERS)}", rank, size)
    let_go()
    forget_failures()
    later = [torch.empty(COUNT, device="maca") for _ in range(4)]
    assert address in [tensor.data_ptr() for tensor in later]


def check_memory_is_kept_of_work_whose_group_was_destroyed(rank: int, size: int) -> None:
    def give_up(backend: list[Any], tensors: list[torch.Tensor]) -> None:
        all_reduce(backend[0], tensors.pop())
        backend.clear()

    memory_is_kept(rank, size, give_up)


def check_memory_is_kept_of_work_that_took_too_long(rank: int, size: int) -> None:
    def give_up(backend: list[Any], tensors: list[torch.Tensor]) -> None:
        work = all_reduce(backend[0], tensors.pop())
        with pytest.raises(dist.DistBackendError, match="not done within its time-out of 3000 ms"):
            work.wait(LONG)

    memory_is_kept(rank, size, give_up)


def faults() -> ctypes.CDLL:
    return ctypes.CDLL(os.environ["FAULTY"])


def check_memory_is_kept_of_calls_that_failed_in_part(rank: int, size: int) -> None:
    refused = ctypes.c_uint64.in_dll(faults(), "refused_count")

    def give_up(backend: list[Any], tensors: list[torch.Tensor]) -> None:
        tensors.append(torch.empty(13, device="maca"))
        options = dist.distributed_c10d.AllreduceCoalescedOptions()
        refused.value = 13
        with pytest.raises(dist.DistBackendError, match="that count is refused"):
            backend[0].allreduce_coalesced(tensors, options)
        refused.value = 0

    memory_is_kept(rank, size, give_up)


def check_a_device_that_fails_to_say_how_far_it_is_fails_the_work(rank: int, size: int) -> None:
    broken = ctypes.c_int32.in_dll(faults(), "broken_events")
    backend = process_group(rank, size)
    sound(backend, rank, size)
    if rank == 0:  # calls alone
        broken.value = 1
        work = all_reduce(backend, filled(1))
        with pytest.raises(dist.DistBackendError, match=r"all_reduce #2 of .*the events are broken"):
            work.wait(LONG)
        broken.value = 0
    meet("broken", rank, size)
    forget_failures()


def check_messages_of_a_group_reach_the_provider_at_its_end(rank: int, size: int) -> None:
    """The provider collects those of a thread, and torch leaves a group open where a call in it raises."""
    open_groups = ctypes.c_int32.in_dll(faults(), "open_groups")
    backend = process_group(rank, size)
    sound(backend, rank, size)
    received = torch.zeros(COUNT, device="maca")
    backend._start_coalescing()
    work = backend.recv([received], rank ^ 1, 0)
    backend.send([filled(rank + 5)], rank ^ 1, 0)
    assert (open_groups.value, work.is_completed()) == (0, False)
    with pytest.raises(dist.DistBackendError, match="waited for inside its group of calls"):
        work.wait()
    backend._end_coalescing().wait()
    assert (open_groups.value, received[0].item()) == (0, (rank ^ 1) + 5)
    backend._start_coalescing()
    backend.send([filled(1)], rank ^ 1, 0)
    del backend, work
    assert open_groups.value == 0
