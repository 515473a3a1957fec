"""Things that go wrong between ranks: `python scenarios.py --provider sim --out FILE`.

Each function `scenario_*` runs in three forked ranks of its own. What a rank ends with, an exception or a
value, is written down: FILE is name -> list of {"type", "text"} by rank; a rank that was killed, on purpose
or because it hung, has None.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from world import claim, fork, wait

SIZE = 3
TIMEOUT = 4.0  # seconds, of a process group in which something goes wrong
PATIENCE = 120.0  # until a rank counts as hanging; the time-out of what is to succeed
AT_ONCE = 4  # scenarios

Scenario = Callable[[int, Path], object]
Outcomes = dict[str, list[dict[str, object] | None]]


def join(rank: int, folder: Path, seconds: float = TIMEOUT) -> None:
    method = f"file://{folder}/store"
    dist.init_process_group(
        init_method=method, rank=rank, world_size=SIZE, timeout=timedelta(seconds=seconds)
    )


def settle(tensor: torch.Tensor) -> list[float]:
    """Use a result, which is when an asynchronous error arrives at the latest."""
    return tensor.cpu().tolist()


def scenario_a_rank_is_killed(rank: int, folder: Path) -> object:
    join(rank, folder)
    tensor = torch.ones(1000, device="maca")
    dist.all_reduce(tensor)
    settle(tensor)
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    for _ in range(3):
        dist.all_reduce(tensor)
        settle(tensor)
    return "went on"


def scenario_a_rank_is_killed_and_the_next_call_comes_later(rank: int, folder: Path) -> object:
    join(rank, folder)
    tensor = torch.ones(1000, device="maca")
    dist.all_reduce(tensor)
    settle(tensor)
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        dist.all_reduce(tensor)
        settle(tensor)
    except RuntimeError:
        dist.broadcast(tensor, src=2)  # in gloo's from another rank, some ranks have no need of this one
    return "went on"


def scenario_rank_0_is_killed_and_the_store_with_it(rank: int, folder: Path) -> object:
    port = folder / "port"
    if rank == 0:
        store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        port.with_suffix(".part").write_text(str(store.port))
        port.with_suffix(".part").rename(port)
    while not port.exists():
        time.sleep(0.01)
    if rank > 0:
        store = dist.TCPStore("localhost", int(port.read_text()))
    dist.init_process_group(store=store, rank=rank, world_size=SIZE, timeout=timedelta(seconds=10 * PATIENCE))
    settle_all_reduce(1000)
    if rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return [failure(partial(settle_all_reduce, count)) for count in (1000, 8, 9)]  # the last are of new forms


def settle_after(collective: Callable[..., object], tensor: torch.Tensor, *arguments: object) -> None:
    collective(tensor, *arguments)
    settle(tensor)


def settle_all_reduce(count: int, dtype: torch.dtype = torch.float32) -> None:
    settle_after(dist.all_reduce, torch.ones(count, dtype=dtype, device="maca"))


def failure(call: Callable[[], None]) -> str:
    """Return what kind of error ends the call."""
    try:
        call()
    except RuntimeError as error:
        return type(error).__name__
    return "none"


def scenario_a_rank_never_starts(rank: int, folder: Path) -> object:
    if rank == 2:
        return "not started"
    join(rank, folder)
    dist.barrier()
    return "went on"


def scenario_a_rank_calls_too_late(rank: int, folder: Path) -> object:
    join(rank, folder)
    dist.barrier()
    if rank == 1:
        time.sleep(2 * TIMEOUT)
    tensor = torch.ones(7, device="maca")
    dist.all_reduce(tensor)
    return settle(tensor)


def scenario_shapes_differ(rank: int, folder: Path) -> object:
    join(rank, folder)
    tensor = torch.ones(8 if rank == 1 else 6, device="maca")
    dist.all_reduce(tensor)
    return settle(tensor)


def scenario_dtypes_differ(rank: int, folder: Path) -> object:
    join(rank, folder)
    tensor = torch.ones(6, device="maca", dtype=torch.int32 if rank == 1 else torch.float32)
    dist.all_reduce(tensor)
    return settle(tensor)


def scenario_layouts_differ(rank: int, folder: Path) -> object:
    join(rank, folder)
    tensor = torch.ones(3, 2, device="maca").t() if rank == 1 else torch.ones(2, 3, device="maca")
    dist.all_reduce(tensor)
    return settle(tensor)


def scenario_pieces_differ(rank: int, folder: Path) -> object:
    join(rank, folder)
    tensors = [torch.ones(count, device="maca") for count in ((2, 4) if rank == 1 else (4, 2))]
    dist.all_reduce_coalesced(tensors)
    return [settle(tensor) for tensor in tensors]


def scenario_collectives_differ(rank: int, folder: Path) -> object:
    join(rank, folder)
    tensor = torch.ones(6, device="maca")
    if rank == 1:
        dist.broadcast(tensor, src=0)
    else:
        dist.all_reduce(tensor)
    return settle(tensor)


def scenario_rank_0_makes_a_new_call_where_another_repeats_one(rank: int, folder: Path) -> object:
    join(rank, folder)
    tensor = torch.ones(6, device="maca")
    dist.broadcast(tensor, src=0)
    if rank == 2:
        return time.sleep(2 * TIMEOUT)
    work = dist.broadcast(tensor, src=2 if rank == 0 else 0, async_op=True)
    return work.wait(timedelta(seconds=PATIENCE))


def rank_1_makes_a_new_call(rank: int, folder: Path, new: Callable[[], object]) -> object:
    """Where the others repeat a call."""
    join(rank, folder, PATIENCE)
    for _ in range(3):
        settle_all_reduce(6)
    return new() if rank == 1 else settle_all_reduce(6)


def scenario_rank_1_calls_another_size(rank: int, folder: Path) -> object:
    """A last batch that is shorter on one rank."""
    return rank_1_makes_a_new_call(rank, folder, lambda: settle_all_reduce(5))


def scenario_rank_1_calls_another_dtype(rank: int, folder: Path) -> object:
    return rank_1_makes_a_new_call(rank, folder, lambda: settle_all_reduce(6, torch.int32))


def scenario_rank_1_calls_another_reduction(rank: int, folder: Path) -> object:
    tensor = torch.ones(6, device="maca")
    return rank_1_makes_a_new_call(
        rank, folder, lambda: settle_after(dist.all_reduce, tensor, dist.ReduceOp.MAX)
    )


def scenario_rank_1_calls_another_layout(rank: int, folder: Path) -> object:
    tensor = torch.ones(3, 2, device="maca").t()
    return rank_1_makes_a_new_call(rank, folder, lambda: settle_after(dist.all_reduce, tensor))


def scenario_one_rank_repeats_a_call_of_another_dtype(rank: int, folder: Path) -> object:
    join(rank, folder)
    for dtype in (torch.float32, torch.int32):
        settle_all_reduce(6, dtype)
    return settle_all_reduce(6, torch.int32 if rank == 1 else torch.float32)


def sparse_ones(*sizes: int) -> torch.Tensor:
    return torch.ones(sizes).to_sparse().to("maca")


def scenario_sparse_calls_differ_that_are_known(rank: int, folder: Path) -> object:
    join(rank, folder)
    for sizes in ((6, 4), (8, 4)):
        dist.all_reduce(sparse_ones(*sizes))
    dist.all_reduce(tensor := sparse_ones(8 if rank == 1 else 6, 4))
    return settle(tensor.to_dense())


def scenario_sparse_calls_differ_and_rank_0_is_late(rank: int, folder: Path) -> object:
    join(rank, folder)
    if rank == 0:
        time.sleep(0.5)
    tensor = sparse_ones(6, 4)
    dist.all_reduce(tensor, dist.ReduceOp.AVG if rank == 1 else dist.ReduceOp.SUM)
    return settle(tensor.to_dense())


def scenario_two_of_a_group_differ_in_their_first_call(rank: int, folder: Path) -> object:
    join(rank, folder, PATIENCE)
    group = dist.new_group([1, 2], timeout=timedelta(seconds=10 * PATIENCE))
    if rank == 0:
        return "not of the group"
    dist.all_reduce(tensor := torch.ones(rank + 3, device="maca"), group=group)
    return settle(tensor)


def scenario_shapes_differ_and_rank_0_is_late(rank: int, folder: Path) -> object:
    join(rank, folder, 3 * TIMEOUT)
    dist.barrier()
    if rank == 0:
        time.sleep(2.5)  # longer than any call is held up for rank 0
    tensor = torch.ones(8 if rank == 1 else 6, device="maca")
    for _ in range(1000):  # the first may go on before rank 0 has said what it calls
        dist.all_reduce(tensor)
        settle(tensor)
    return "went on"


def scenario_rank_0_receives_first_what_comes_after_a_collective(rank: int, folder: Path) -> object:
    join(rank, folder, PATIENCE / 3)
    tensor, message = torch.ones(5, device="maca"), torch.full((3,), 7.0 * rank, device="maca")
    if rank == 0:
        dist.recv(message, src=1)
    work = dist.all_reduce(tensor, async_op=True)
    if rank == 1:
        dist.send(message, dst=0)
    work.wait()
    return [settle(tensor), settle(message)]


def scenario_rank_0_calls_when_another_rank_has_gone_on(rank: int, folder: Path) -> object:
    """A CCL table's collectives block no program, and in gloo's gather each rank needs the root alone."""
    join(rank, folder, PATIENCE / 3)
    dist.barrier()  # a CCL table's communicator is there
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        store.wait(["gone on"], timedelta(seconds=PATIENCE / 3))
    tensor = torch.full((2,), float(rank), device="maca")
    parts = [torch.zeros(2, device="maca") for _ in range(SIZE)] if rank == 2 else None
    dist.gather(tensor, parts, dst=2)
    if rank == 1:
        store.set("gone on", "yes")
    return [settle(part) for part in parts or [tensor]]


def scenario_devices_differ(rank: int, folder: Path) -> object:
    join(rank, folder)
    tensor = torch.ones(6, device="cpu" if rank == 1 else "maca")
    dist.all_reduce(tensor)
    return settle(tensor)


def scenario_each_rank_has_its_own_device_index(rank: int, folder: Path) -> object:
    join(rank, folder, PATIENCE)
    tensor = torch.ones(2, device=f"maca:{rank % 2}")
    dist.all_reduce(tensor)
    return settle(tensor)


def scenario_a_process_group_is_made_twice(rank: int, folder: Path) -> object:
    join(rank, folder, PATIENCE)
    dist.barrier()
    join(rank, folder, PATIENCE)
    return "went on"


def scenario_the_check_at_start_up(rank: int, folder: Path) -> object:
    os.environ["TEFL_CCL_CHECK"] = "1"
    join(rank, folder, PATIENCE)
    return "sound"


def scenario_a_user_aborts(rank: int, folder: Path) -> object:
    join(rank, folder)
    tensor = torch.ones(7, device="maca")
    dist.all_reduce(tensor)
    settle(tensor)
    if rank == 1:
        dist.distributed_c10d._abort_process_group()
        return "aborted"
    dist.all_reduce(tensor)
    return settle(tensor)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--provider", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    claim(options.provider)
    torch.set_num_threads(1)
    chosen = [f for name, f in globals().items() if name.startswith("scenario_") and options.only in name]
    outcomes: Outcomes = {}
    for start in range(0, len(chosen), AT_ONCE):
        outcomes |= run(chosen[start : start + AT_ONCE])
    options.out.write_text(json.dumps(outcomes, indent=1))
    return 0


def run(scenarios: list[Scenario]) -> Outcomes:
    """Run some at once: they mostly wait."""
    with tempfile.TemporaryDirectory() as name:
        folders = {scenario.__name__: Path(name) / scenario.__name__ for scenario in scenarios}
        for folder in folders.values():
            folder.mkdir()
        works = [partial(play, s, rank, folders[s.__name__]) for s in scenarios for rank in range(SIZE)]
        wait([fork(work) for work in works], PATIENCE, together=False)
        files = {name: [folder / f"{rank}.json" for rank in range(SIZE)] for name, folder in folders.items()}
        return {
            name: [json.loads(file.read_text()) if file.exists() else None for file in ranks]
            for name, ranks in files.items()
        }


def play(scenario: Scenario, rank: int, folder: Path) -> None:
    try:
        outcome = {"type": "", "text": str(scenario(rank, folder))}
    except Exception as error:  # noqa: BLE001  it is the outcome
        outcome = {"type": type(error).__name__, "text": str(error)}
    unfinished = folder / f"{rank}.part"
    unfinished.write_text(json.dumps(outcome))
    unfinished.rename(folder / f"{rank}.json")


if __name__ == "__main__":
    sys.exit(main())
