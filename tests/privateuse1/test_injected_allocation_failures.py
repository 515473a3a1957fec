"""Memory refused at the nth call: retried after the cache is given back, else told with numbers."""

from __future__ import annotations

from textwrap import dedent

SETUP = """
import torch
from tefl.privateuse1 import PrivateUse1Backend, register_backend
register_backend(PrivateUse1Backend("maca", "sim"))
def take(size, device="maca:0"):
    return torch.empty(size, dtype=torch.uint8, device=device)
"""
MIB = 1 << 20


def run(python, code: str, faults: str, **environment: str) -> list[str]:
    return python(SETUP + dedent(code), TEFL_SIM_FAULTS=faults, **environment).splitlines()


def test_one_refusal_is_retried_after_cached_memory_is_given_back(python):
    assert run(
        python,
        """
        take(30 << 20)
        kept = take(40 << 20)
        stats = torch.accelerator.memory_stats(0)
        print(stats["num_alloc_retries"], stats["num_ooms"], torch.accelerator.memory_reserved(0) >> 20)
        """,
        "malloc:2",
    ) == ["1 0 40"]


def test_two_refusals_in_a_row_are_out_of_memory_with_numbers_and_the_next_try_works(python):
    out = run(
        python,
        """
        kept = take(3 << 20)
        try:
            take(40 << 20)
        except torch.OutOfMemoryError as error:
            print(error)
        stats = torch.accelerator.memory_stats(0)
        print(stats["num_alloc_retries"], stats["num_ooms"], torch.accelerator.memory_allocated(0) >> 20)
        print(take(40 << 20).nbytes >> 20)
        """,
        "malloc:2,malloc:3",
        TEFL_SIM_CAPACITY="1G",
    )
    assert out[0].startswith(
        "maca out of memory. Tried to allocate 40.00 MiB on maca:0. Of its 1.00 GiB, 1004.00 MiB are free; "
        "this process has reserved 20.00 MiB, of which its tensors hold 3.00 MiB. (a fault injected by "
    )
    assert out[1:] == ["1 1 3", "40"]


def test_an_operator_whose_result_finds_no_memory_changes_nothing(python):
    out = run(
        python,
        """
        x = torch.ones(1 << 20, device="maca")
        before = torch.accelerator.memory_allocated(0)
        for _ in range(2):
            try:
                print((x.repeat(16)).sum().item())
            except torch.OutOfMemoryError as error:
                print(str(error)[:65], torch.accelerator.memory_allocated(0) == before)
        """,
        "malloc:2,malloc:3",
    )
    assert out == [
        "maca out of memory. Tried to allocate 64.00 MiB on maca:0. Of its True",
        f"{float(16 * MIB)}",
    ]


def test_pinned_memory_is_retried_and_then_refused(python):
    out = run(
        python,
        """
        torch.empty(1000).pin_memory()
        kept = torch.empty(1 << 20).pin_memory()
        for _ in range(2):
            try:
                print(torch.empty(1 << 21).pin_memory().is_pinned())
            except torch.OutOfMemoryError as error:
                print(str(error).splitlines()[0])
        """,
        "host_malloc:2,host_malloc:4,host_malloc:5",
    )
    assert out == [
        "maca: host_malloc failed: a fault injected by TEFL_SIM_FAULTS into host_malloc",
        "True",
    ]


def test_a_block_whose_other_users_cannot_be_marked_is_waited_for_and_used_again(python):
    out = run(
        python,
        """
        side = torch.Stream("maca:0")
        x = take(30 << 20)
        x.record_stream(side)
        with side:
            y = x.clone()
        del x
        torch.accelerator.empty_cache()
        print(torch.accelerator.memory_reserved(0) >> 20)
        """,
        "event_create:1*",
    )
    assert out == ["30"]


def test_memory_that_cannot_be_given_back_is_a_warning_and_no_crash(python):
    code = """
        take(30 << 20)
        torch.accelerator.empty_cache()
        print(take(30 << 20).fill_(1).sum().item() >> 20)
        """
    done = python.run(SETUP + dedent(code), TEFL_SIM_FAULTS="free:1")
    assert "Warning: maca:0: free failed: a fault injected by TEFL_SIM_FAULTS into free" in done.stderr
    assert (done.returncode, done.stdout) == (0, "30\n")


def test_copies_in_host_memory_stand_a_refusal_too(python):
    out = run(
        python,
        """
        x = torch.arange(4.0).to("maca")
        big = torch.ones(1 << 20).to("maca")
        for _ in range(2):
            try:
                print(big.repeat(16).sum().item())
            except torch.OutOfMemoryError as error:
                print(str(error)[:47])
        print(x.tolist())
        """,
        "malloc:3,malloc:4",
        TEFL_SIM_OPAQUE="1",
        TEFL_LOG_LEVEL="ERROR",
    )
    assert out == [
        "maca out of memory. Tried to allocate 64.00 MiB",
        f"{float(16 * MIB)}",
        "[0.0, 1.0, 2.0, 3.0]",
    ]


def test_a_result_whose_wait_for_the_memorys_last_user_fails_gives_the_memory_back(python):
    out = run(
        python,
        """
        import gc, threading
        x = torch.empty(1000, device="maca")
        before, failures = torch.accelerator.memory_allocated(0), 0
        for _ in range(12):
            # What another thread freed is waited for once more when the result takes it.
            thread = threading.Thread(target=lambda: torch.empty(1000, device="maca"))
            thread.start(), thread.join()
            try:
                x + 1
            except torch.AcceleratorError:
                failures += 1
        gc.collect()
        print(failures > 3, torch.accelerator.memory_allocated(0) - before)
        """,
        "stream_sync:2*",
    )
    assert out == ["True 0"]
