"""What the check at start-up finds, on a library whose faults are turned on one by one."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator

import torch
import torch.distributed as dist

from tefl.privateuse1.collective_check import check_collectives

# In the order of wrong_collectives.c, and of tefl_dtype and tefl_reduction in tefl_provider.h.
FUNCTIONS = ("all_reduce", "reduce", "reduce_scatter", "broadcast", "all_gather", "all_to_all")
REDUCTIONS = ("SUM", "PRODUCT", "MIN", "MAX", "AVG")
DTYPES = {
    torch.int32: 3,
    torch.int64: 4,
    torch.float16: 5,
    torch.bfloat16: 6,
    torch.float32: 7,
    torch.float64: 8,
}
NOTHING = {"wrong_function": -1, "wrong_reduction": -1, "wrong_dtype": -1, "refused_dtype": -1}


@contextlib.contextmanager
def faults(**numbers: int) -> Iterator[None]:
    """Turn faults on, by the names of the variables of the library; nothing else is wrong."""
    library = ctypes.CDLL(os.environ["WRONG"])
    for name, number in {**NOTHING, **numbers}.items():
        ctypes.c_int32.in_dll(library, name).value = number
    yield
    for name, number in NOTHING.items():
        ctypes.c_int32.in_dll(library, name).value = number


def found() -> str:
    """Return what the check says on this rank, "" if nothing."""
    backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("maca"))
    try:
        check_collectives(backend)
    except dist.DistBackendError as error:
        return str(error)
    return ""


def check_sound_collectives_pass(rank: int, size: int) -> None:
    with faults():
        assert found() == ""


def reduction_is_found(rank: int, size: int, function: int) -> None:
    for number, (dtype, its_number) in enumerate(DTYPES.items()):
        reduction = number % len(REDUCTIONS)
        with faults(wrong_function=function, wrong_reduction=reduction, wrong_dtype=its_number):
            text = found()
        wanted = f"{FUNCTIONS[function]}, {REDUCTIONS[reduction]} of {dtype} over {size} ranks gave ["
        assert text.startswith(wanted), (wanted, text)
        assert f"to rank {rank}, right is [" in text
        assert "Wrong as well" not in text  # it is the one of all that is wrong


def check_a_wrong_all_reduce_is_found_in_one_dtype_and_reduction(rank: int, size: int) -> None:
    reduction_is_found(rank, size, 0)


def check_a_wrong_reduce_is_found_in_one_dtype_and_reduction(rank: int, size: int) -> None:
    reduction_is_found(rank, size, 1)


def check_a_wrong_reduce_scatter_is_found_in_one_dtype_and_reduction(rank: int, size: int) -> None:
    reduction_is_found(rank, size, 2)


def check_every_wrong_reduction_is_named(rank: int, size: int) -> None:
    with faults(wrong_function=2, wrong_reduction=REDUCTIONS.index("AVG")):
        text = found()
    assert text.startswith(f"reduce_scatter, AVG of torch.float32 over {size} ranks gave [")
    for dtype in DTYPES.keys() - {torch.float32}:
        assert f"reduce_scatter, AVG of {dtype}" in text.partition("Wrong as well: ")[2]


def check_wrong_values_of_what_moves_data_are_found(rank: int, size: int) -> None:
    for function in (4, 5):
        with faults(wrong_function=function):
            text = found()
        assert text.startswith(f"{FUNCTIONS[function]} of torch.int64 over {size} ranks gave ["), text
    for function in (6, 7):  # send, recv
        with faults(wrong_function=function):
            text = found()
        assert text.startswith(f"recv from rank {(rank - 1) % size} of torch.int64 over {size} ranks"), text


def check_a_wrong_broadcast_is_found(rank: int, size: int) -> None:
    with faults(wrong_function=3):
        text = found()
    for root in {0, size - 1} - {rank}:
        assert f"broadcast from rank {root} of torch.int64" in text, text


def check_a_dtype_that_the_library_has_not_is_no_wrong_result(rank: int, size: int) -> None:
    with faults(refused_dtype=DTYPES[torch.float64]):
        assert found() == ""
