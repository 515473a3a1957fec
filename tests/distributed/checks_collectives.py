"""Every collective: values are those that PyTorch computes on the CPU from all ranks' inputs."""

from __future__ import annotations

import itertools
import os
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8)
OPS = {
    dist.ReduceOp.SUM: lambda stack: stack.sum(0),
    dist.ReduceOp.MIN: lambda stack: stack.amin(0),
    dist.ReduceOp.MAX: lambda stack: stack.amax(0),
    dist.ReduceOp.PRODUCT: lambda stack: stack.prod(0),
    dist.ReduceOp.AVG: lambda stack: mean(stack),
}


def mean(stack: torch.Tensor) -> torch.Tensor:
    total = stack.sum(0).to(stack.dtype)
    if stack.dtype.is_floating_point:
        return total / len(stack)
    return torch.div(total, len(stack), rounding_mode="trunc")


def given(rank: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """What rank `rank` puts in: small whole numbers, so that no order of additions rounds."""
    count = torch.Size(shape).numel()
    values = (torch.arange(count) * (rank + 3) + rank) % 7
    return (values - (3 if dtype.is_signed else 0)).to(dtype).reshape(shape)


def everyone(size: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.stack([given(rank, *shape, dtype=dtype) for rank in range(size)])


def same(result: torch.Tensor, wanted: torch.Tensor) -> None:
    assert result.device.type == "maca"
    torch.testing.assert_close(result.cpu(), wanted.to(result.dtype), rtol=0, atol=0)


def check_init_process_group_alone_has_chosen_ours(rank: int, size: int) -> None:
    group = dist.distributed_c10d._get_default_group()
    assert group._get_backend(torch.device("maca")).name() == "tefl"
    assert (dist.get_rank(), dist.get_world_size()) == (rank, size)


def check_all_reduce_of_every_dtype_and_reduction(rank: int, size: int) -> None:
    for dtype, (op, formula) in itertools.product(DTYPES, OPS.items()):
        tensor = given(rank, 5, 3, dtype=dtype).to("maca")
        dist.all_reduce(tensor, op=op)
        same(tensor, formula(everyone(size, 5, 3, dtype=dtype)))


def check_an_average_of_integers_is_cut_towards_zero(rank: int, size: int) -> None:
    tensor = torch.tensor([-7 if rank == 0 else 0, 7 if rank == 0 else 0], device="maca")
    dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
    assert tensor.tolist() == [int(-7 / size), int(7 / size)]


def check_large_and_empty_tensors(rank: int, size: int) -> None:
    for count in (0, 1, size - 1, 1_000_003):
        tensor = given(rank, count).to("maca")
        dist.all_reduce(tensor)
        same(tensor, everyone(size, count).sum(0))


def check_a_multiplied_sum(rank: int, size: int) -> None:
    tensor = given(rank, 6).to("maca")
    dist.all_reduce(tensor, op=dist._make_nccl_premul_sum(0.5))
    same(tensor, everyone(size, 6).sum(0) * 0.5)


def check_all_reduce_coalesced(rank: int, size: int) -> None:
    tensors = [given(rank, n).to("maca") for n in (3, 1, 8)]
    with dist._coalescing_manager(device=torch.device("maca", 0)):
        for tensor in tensors:
            dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
    for tensor, n in zip(tensors, (3, 1, 8), strict=True):
        same(tensor, mean(everyone(size, n)))


def check_broadcast(rank: int, size: int) -> None:
    for root in range(size):
        tensor = given(rank, 4).to("maca")
        dist.broadcast(tensor, src=root)
        same(tensor, given(root, 4))


def check_reduce_gives_the_root_the_result(rank: int, size: int) -> None:
    for op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
        tensor = given(rank, 9).to("maca")
        dist.reduce(tensor, dst=1, op=op)
        if rank == 1:
            same(tensor, OPS[op](everyone(size, 9)))


def check_reduce_leaves_the_others_tensors_as_the_library_beneath_does(rank: int, size: int) -> None:
    tensor, twin = given(rank, 9).to("maca"), given(rank, 9)
    dist.reduce(tensor, dst=1)
    if os.environ["BENEATH"] == "gloo":  # the others leave them alone
        dist.reduce(twin, dst=1, group=dist.new_group(backend="gloo"))
    if rank != 1:
        same(tensor, twin)


def check_all_gather(rank: int, size: int) -> None:
    outputs = [torch.zeros(2, 3, device="maca") for _ in range(size)]
    mine = given(rank, 2, 3).to("maca")
    dist.all_gather(outputs, mine)
    for other, output in enumerate(outputs):
        same(output, given(other, 2, 3))
    same(mine, given(rank, 2, 3))


def check_parameters_are_sent_and_received_into_as_any_tensor(rank: int, size: int) -> None:
    def parameters(values: list[torch.Tensor]) -> list[torch.Tensor]:
        return [value.to("maca").requires_grad_() for value in values]

    outputs, (mine,) = parameters([torch.zeros(3)] * size), parameters([given(rank, 3)])
    dist.all_gather(outputs, mine)
    same(torch.stack(outputs).detach(), everyone(size, 3))
    outputs, inputs = parameters([torch.zeros(3)] * size), parameters([given(rank, 3)] * size)
    dist.all_to_all(outputs, inputs)
    same(torch.stack(outputs).detach(), everyone(size, 3))
    output = torch.zeros(3, device="maca")
    dist.reduce_scatter(output, inputs)
    same(output, everyone(size, 3).sum(0))
    assert not output.requires_grad
    assert all(output.is_leaf for output in outputs)


def check_lists_want_one_tensor_a_rank(rank: int, size: int) -> None:
    few, enough = ([torch.zeros(3, device="maca") for _ in range(n)] for n in (size - 1, size))
    for outputs, inputs, wrong in ((few, enough, "outputs"), (enough, few, "inputs")):
        with pytest.raises(ValueError, match=f"all_to_all: got {size - 1} {wrong}, wants one for each of"):
            dist.all_to_all(outputs, inputs)


def check_all_gather_into_tensor(rank: int, size: int) -> None:
    for dtype in (torch.float32, torch.bool, torch.float8_e4m3fn):
        mine = given(rank, 4).to(dtype).to("maca")
        output = torch.zeros(size * 4, dtype=torch.float32).to(dtype).to("maca")
        dist.all_gather_into_tensor(output, mine)
        wanted = torch.cat([given(other, 4).to(dtype) for other in range(size)])
        torch.testing.assert_close(output.cpu().float(), wanted.float(), rtol=0, atol=0)


def check_coalesced_gathers_and_scatters(rank: int, size: int) -> None:
    mine = [given(rank, n).to("maca") for n in (2, 5)]
    outputs = [torch.zeros(size * n, device="maca") for n in (2, 5)]
    with dist._coalescing_manager(device=torch.device("maca", 0)):
        for output, tensor in zip(outputs, mine, strict=True):
            dist.all_gather_into_tensor(output, tensor)
    for output, n in zip(outputs, (2, 5), strict=True):
        same(output, everyone(size, n).flatten())
    inputs = [given(rank, size * n).to("maca") for n in (2, 5)]
    with dist._coalescing_manager(device=torch.device("maca", 0)):
        for output, tensor in zip(mine, inputs, strict=True):
            dist.reduce_scatter_tensor(output, tensor)
    for output, n in zip(mine, (2, 5), strict=True):
        same(output, everyone(size, size * n).sum(0).view(size, n)[rank])


def check_reduce_scatter_leaves_its_inputs(rank: int, size: int) -> None:
    for op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.MAX):
        wanted = OPS[op](everyone(size, size, 3))[rank]
        whole, output = given(rank, size, 3).to("maca"), torch.zeros(3, device="maca")
        dist.reduce_scatter_tensor(output, whole, op=op)
        same(output, wanted)
        same(whole, given(rank, size, 3))
        parts = [part.clone() for part in whole]
        dist.reduce_scatter(output.zero_(), parts, op=op)
        same(output, wanted)
        same(torch.stack(parts), given(rank, size, 3))


def check_all_to_all(rank: int, size: int) -> None:
    inputs = [given(rank, other + 1).to("maca") for other in range(size)]
    outputs = [torch.zeros(rank + 1, device="maca") for _ in range(size)]
    dist.all_to_all(outputs, inputs)
    for other, output in enumerate(outputs):
        same(output, given(other, rank + 1))


def check_all_to_all_single_with_even_and_uneven_splits(rank: int, size: int) -> None:
    mine, output = given(rank, size * 2, 3).to("maca"), torch.zeros(size * 2, 3, device="maca")
    dist.all_to_all_single(output, mine)
    same(output, torch.cat([given(other, size * 2, 3)[2 * rank : 2 * rank + 2] for other in range(size)]))
    sent = list(range(size))  # to rank r, r rows
    mine, output = given(rank, sum(sent), 2).to("maca"), torch.zeros(rank * size, 2, device="maca")
    dist.all_to_all_single(output, mine, output_split_sizes=[rank] * size, input_split_sizes=sent)
    start = sum(sent[:rank])
    wanted = [given(other, sum(sent), 2)[start : start + rank] for other in range(size)]
    same(output, torch.cat(wanted))


def check_gather_and_scatter(rank: int, size: int) -> None:
    mine = given(rank, 3).to("maca")
    parts = [torch.zeros(3, device="maca") for _ in range(size)] if rank == 2 % size else None
    dist.gather(mine, parts, dst=2 % size)
    if parts is not None:
        same(torch.stack(parts), everyone(size, 3))
    rows = [given(7 + other, 3).to("maca") for other in range(size)] if rank == 1 else None
    dist.scatter(mine, rows, src=1)
    same(mine, given(7 + rank, 3))


def check_send_and_recv(rank: int, size: int) -> None:
    if rank == 0:
        dist.send(given(0, 300_000).to("maca"), dst=1)
    elif rank == 1:
        output = torch.zeros(300_000, device="maca")
        assert dist.recv(output, src=0) == 0
        same(output, given(0, 300_000))


def check_a_ring_of_isend_and_irecv_in_any_order(rank: int, size: int) -> None:
    mine, output = given(rank, 300_000).to("maca"), torch.zeros(300_000, device="maca")
    right, left = (rank + 1) % size, (rank - 1) % size
    works = [dist.isend(mine, right), dist.irecv(output, left)]
    for work in works:
        assert work is not None
        work.wait()
    same(output, given(left, 300_000))
    output.zero_()
    operations = [dist.P2POp(dist.irecv, output, left), dist.P2POp(dist.isend, mine, right)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    same(output, given(left, 300_000))


def check_a_barrier_waits_for_whoever_comes_last(rank: int, size: int) -> None:
    """The last comes once the others have been in the barrier for a while and have not come out."""
    device = torch.maca.current_device()

    def barrier() -> None:
        torch.maca.set_device(device)  # a thread begins on the first
        dist.barrier()

    for last in (0, size - 1):
        store = dist.PrefixStore(f"barrier {last}", dist.distributed_c10d._get_default_store())
        if rank == last:
            store.wait([f"{other} waits" for other in range(size) if other != last], timedelta(seconds=60))
            store.set("the last comes", "yes")
            dist.barrier()
            continue
        with ThreadPoolExecutor(1) as thread:
            passed = thread.submit(barrier)
            was_held = not wait([passed], timeout=0.2).done
            store.set(f"{rank} waits", "yes")
            passed.result()
        assert was_held
        assert store.check(["the last comes"])


def check_objects(rank: int, size: int) -> None:
    gathered: list[object] = [None] * size
    dist.all_gather_object(gathered, {"rank": rank, "text": "x" * rank})
    assert gathered == [{"rank": other, "text": "x" * other} for other in range(size)]
    objects = [("from", 1), [rank]] if rank == 1 else [None, None]
    dist.broadcast_object_list(objects, src=1)
    assert objects == [("from", 1), [1]]
    received: list[object] = [None]
    dist.scatter_object_list(
        received, [f"for {other}" for other in range(size)] if rank == 0 else None, src=0
    )
    assert received == [f"for {rank}"]


def check_futures_hold_the_results_on_the_device(rank: int, size: int) -> None:
    tensor = given(rank, 4).to("maca")
    future = dist.all_reduce(tensor, op=dist.ReduceOp.AVG, async_op=True).get_future()
    doubled = future.then(lambda done: done.value()[0] * 2)
    same(doubled.wait(), mean(everyone(size, 4)) * 2)
    same(future.wait()[0], mean(everyone(size, 4)))
    assert future.value()[0].data_ptr() == tensor.data_ptr()


def check_sub_groups(rank: int, size: int) -> None:
    groups = [dist.new_group([0, 1]), dist.new_group(list(range(1, size)))]
    tensor = given(rank, 3).to("maca")
    if rank in (0, 1):
        dist.all_reduce(tensor, group=groups[0])
        same(tensor, everyone(2, 3).sum(0))
    if rank >= 1:
        other = given(rank, 3).to("maca")
        dist.all_reduce(other, group=groups[1], op=dist.ReduceOp.AVG)
        same(other, mean(everyone(size, 3)[1:]))
    dist.barrier()
    for group in groups:
        if group is not dist.GroupMember.NON_GROUP_MEMBER:
            dist.destroy_process_group(group)


def check_functional_collectives(rank: int, size: int) -> None:
    import torch.distributed._functional_collectives as functional

    group = dist.group.WORLD
    mine = given(rank, size, 2).to("maca")
    same(functional.all_reduce(mine, "avg", group).wait(), mean(everyone(size, size, 2)))
    same(functional.all_gather_tensor(mine, 0, group).wait(), everyone(size, size, 2).flatten(0, 1))
    same(
        functional.reduce_scatter_tensor(mine, "sum", 0, group).wait(),
        everyone(size, size, 2).sum(0)[rank : rank + 1],
    )
    same(functional.broadcast(mine, 1, group).wait(), given(1, size, 2))
    same(mine, given(rank, size, 2))


def check_device_mesh_and_dtensor(rank: int, size: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("maca", (2, size // 2), mesh_dim_names=("outer", "inner"))
    whole = given(5, 8, 4).to("maca")
    sharded = distribute_tensor(whole, mesh["inner"], [Shard(0)])
    assert sharded.to_local().shape == (8 // (size // 2), 4)
    same(sharded.redistribute(mesh["inner"], [Replicate()]).to_local(), whole.cpu())
    same((sharded * 2).sum().full_tensor(), whole.cpu().sum() * 2)


def check_tensors_elsewhere_are_refused(rank: int, size: int) -> None:
    with pytest.raises(RuntimeError, match="cpu"):
        dist.all_reduce(torch.ones(2))
    with pytest.raises(ValueError, match="gaps or overlaps"):
        dist.all_reduce(torch.ones(4, 4, device="maca")[:, ::2])
