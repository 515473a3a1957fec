"""Data-parallel training, in every rank: gradients are those of one process with all ranks' data."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.optim import ZeroRedundancyOptimizer

import tefl.distributed
from tefl.distributed import DistributedDataParallel

ROWS = 3


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2))


def rows_of(rank: int) -> Tensor:
    return torch.randn(ROWS, 5, generator=torch.Generator().manual_seed(10 + rank))


def loss_of(net: nn.Module, rows: Tensor) -> Tensor:
    return F.mse_loss(net(rows), rows.sum(1, keepdim=True).expand(-1, 2))


def wanted_gradients(size: int) -> list[Tensor]:
    """Of the mean loss over all ranks' rows, on the CPU in one process."""
    net = model()
    loss_of(net, torch.cat([rows_of(rank) for rank in range(size)])).backward()
    return [parameter.grad for parameter in net.parameters()]


def gradients_of(ddp: nn.Module, rank: int) -> list[Tensor]:
    loss_of(ddp, rows_of(rank).to("maca")).backward()
    return [parameter.grad.cpu() for parameter in ddp.parameters()]


def close(gradients: list[Tensor], wanted: list[Tensor], **tolerance: float) -> None:
    for gradient, want in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(gradient, want, **tolerance)


def check_both_ways_to_average_give_the_gradients_of_one_process(rank: int, size: int) -> None:
    for in_collective, as_view in itertools.product((True, False), repeat=2):
        ddp = DistributedDataParallel(
            model().to("maca"), average_in_collective=in_collective, gradient_as_bucket_view=as_view
        )
        close(gradients_of(ddp, rank), wanted_gradients(size))


def check_torchs_own_class_works_too(rank: int, size: int) -> None:
    close(gradients_of(nn.parallel.DistributedDataParallel(model().to("maca")), rank), wanted_gradients(size))


def check_communication_hooks_honour_the_choice(rank: int, size: int) -> None:
    half = {"rtol": 5e-3, "atol": 2e-3}  # float16 keeps 11 bits
    brain = {"rtol": 4e-2, "atol": 2e-2}  # bfloat16 keeps 8
    hooks = {
        default_hooks.allreduce_hook: {},
        default_hooks.fp16_compress_hook: half,
        default_hooks.bf16_compress_hook: brain,
    }
    for (hook, tolerance), in_collective in itertools.product(hooks.items(), (True, False)):
        ddp = DistributedDataParallel(model().to("maca"), average_in_collective=in_collective)
        ddp.register_comm_hook(None, hook)
        close(gradients_of(ddp, rank), wanted_gradients(size), **tolerance)


def check_a_hook_of_the_users_runs_as_it_is_written(rank: int, size: int) -> None:
    def doubled(state, bucket):
        work = dist.all_reduce(bucket.buffer(), op=dist.ReduceOp.AVG, async_op=True)
        return work.get_future().then(lambda done: done.value()[0] * 2)

    for in_collective in (True, False):
        ddp = DistributedDataParallel(model().to("maca"), average_in_collective=in_collective)
        ddp.register_comm_hook(None, doubled)
        close(gradients_of(ddp, rank), [2 * gradient for gradient in wanted_gradients(size)])


def check_a_built_in_hook_is_the_users_choice_as_well(rank: int, size: int) -> None:
    for in_collective in (True, False):
        ddp = DistributedDataParallel(model().to("maca"), average_in_collective=in_collective)
        ddp._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)
        close(gradients_of(ddp, rank), wanted_gradients(size))


def check_a_hook_can_be_registered_after_forwards_that_reduce_nothing(rank: int, size: int) -> None:
    rows = rows_of(rank).to("maca")
    for in_collective in (True, False):
        ddp = DistributedDataParallel(model().to("maca"), average_in_collective=in_collective)
        with torch.no_grad():
            ddp(rows)
        with ddp.no_sync():
            ddp(rows)
        ddp.register_comm_hook(None, default_hooks.allreduce_hook)
        close(gradients_of(ddp, rank), wanted_gradients(size))


def check_forwards_that_reduce_nothing_leave_the_choice_of_the_average(rank: int, size: int) -> None:
    ddp = DistributedDataParallel(model().to("maca"))
    with torch.no_grad():
        ddp(rows_of(rank).to("maca"))
    close(gradients_of(ddp, rank), wanted_gradients(size))
    assert ddp._get_ddp_logging_data()["comm_hook"] == "all_reduce_hook"


def check_accumulated_gradients(rank: int, size: int) -> None:
    for in_collective in (True, False):
        ddp = DistributedDataParallel(model().to("maca"), average_in_collective=in_collective)
        with ddp.no_sync():
            loss_of(ddp, rows_of(rank).to("maca")).backward()
        close(gradients_of(ddp, rank), [2 * gradient for gradient in wanted_gradients(size)])


def check_unused_parameters(rank: int, size: int) -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = model(), nn.Linear(3, 3)

        def forward(self, rows: Tensor) -> Tensor:
            return self.used(rows)

    for in_collective in (True, False):
        net = Half().to("maca")
        ddp = DistributedDataParallel(net, average_in_collective=in_collective, find_unused_parameters=True)
        loss_of(ddp, rows_of(rank).to("maca")).backward()
        close([p.grad.cpu() for p in net.used.parameters()], wanted_gradients(size))
        assert net.unused.weight.grad is None


def check_sharded_training_follows_one_process(rank: int, size: int) -> None:
    mesh = dist.init_device_mesh("maca", (size,))
    single = model()
    plain = torch.optim.SGD(single.parameters(), lr=0.1)
    nets = [model().to("maca") for _ in range(2)]
    for net, in_collective in zip(nets, (True, False), strict=True):
        for layer in (net[0], net[2], net):
            tefl.distributed.fully_shard(layer, mesh=mesh, average_in_collective=in_collective)
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in nets]
    for _ in range(3):
        plain.zero_grad()
        loss_of(single, torch.cat([rows_of(other) for other in range(size)])).backward()
        for net, optimizer in zip(nets, optimizers, strict=True):
            optimizer.zero_grad()
            loss_of(net, rows_of(rank).to("maca")).backward()
            close(
                [p.grad.full_tensor().cpu() for p in net.parameters()], [p.grad for p in single.parameters()]
            )
            optimizer.step()
        plain.step()


class Noting:
    """A reduce-scatter for FSDP2 that notes how it reduces."""

    def __init__(self) -> None:
        self.ops: list[dist.ReduceOp] = []

    def allocate(self, size, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group, op, async_op: bool = False):
        self.ops.append(op)
        return dist.reduce_scatter_tensor(output_tensor, input_tensor, op, group, async_op)


def check_a_list_of_modules_is_sharded_as_one_and_follows_the_choice(rank: int, size: int) -> None:
    mesh = dist.init_device_mesh("maca", (size,))
    for in_collective, op in {True: dist.ReduceOp.AVG, False: dist.ReduceOp.SUM}.items():
        net, noting = model().to("maca"), Noting()
        layers = [net[0], net[2]]
        for part in (layers, net):
            assert tefl.distributed.fully_shard(part, mesh=mesh, average_in_collective=in_collective) is part
        layers[0].set_custom_reduce_scatter(noting)
        loss_of(net, rows_of(rank).to("maca")).backward()
        close([p.grad.full_tensor().cpu() for p in net.parameters()], wanted_gradients(size))
        assert noting.ops == [op]


def check_a_custom_divisor_of_sharded_training(rank: int, size: int) -> None:
    net = tefl.distributed.fully_shard(model().to("maca"), mesh=dist.init_device_mesh("maca", (size,)))
    net.set_gradient_divide_factor(size * 2)
    loss_of(net, rows_of(rank).to("maca")).backward()
    close([p.grad.full_tensor().cpu() * 2 for p in net.parameters()], wanted_gradients(size))


def check_zero_redundancy_optimizer(rank: int, size: int) -> None:
    for in_collective in (True, False):
        reference = model()
        plain = torch.optim.AdamW(reference.parameters(), lr=0.01)
        ddp = DistributedDataParallel(model().to("maca"), average_in_collective=in_collective)
        optimizer = ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.AdamW, lr=0.01)
        for _ in range(2):
            plain.zero_grad(), optimizer.zero_grad()
            loss_of(reference, torch.cat([rows_of(other) for other in range(size)])).backward()
            loss_of(ddp, rows_of(rank).to("maca")).backward()
            plain.step(), optimizer.step()
        close(
            [p.detach().cpu() for p in ddp.parameters()], list(reference.parameters()), rtol=1e-4, atol=1e-5
        )


def check_uneven_inputs(rank: int, size: int) -> None:
    for in_collective in (True, False):
        ddp = DistributedDataParallel(model().to("maca"), average_in_collective=in_collective)
        with ddp.join():
            for _ in range(1 + (rank == 0)):
                ddp.zero_grad()
                loss_of(ddp, rows_of(rank).to("maca")).backward()
        if rank == 0:  # the second time alone: its own gradients, divided by all ranks
            net = model()
            loss_of(net, rows_of(0)).backward()
            close([p.grad.cpu() for p in ddp.parameters()], [p.grad / size for p in net.parameters()])


def check_a_rank_without_any_input_averages_as_the_others_do(rank: int, size: int) -> None:
    for in_collective in (True, False):
        ddp = DistributedDataParallel(model().to("maca"), average_in_collective=in_collective)
        with ddp.join():
            for _ in range(rank == 0):
                loss_of(ddp, rows_of(rank).to("maca")).backward()
        if rank == 0:
            net = model()
            loss_of(net, rows_of(0)).backward()
            close([p.grad.cpu() for p in ddp.parameters()], [p.grad / size for p in net.parameters()])


def check_bad_arguments_are_refused(rank: int, size: int) -> None:
    with pytest.raises(TypeError, match="average_in_collective is 'yes'"):
        DistributedDataParallel(model().to("maca"), average_in_collective="yes")
    net = model().to("maca")
    for choice in ("no", None, 1, 2.5):
        with pytest.raises(
            TypeError, match=f"fully_shard: average_in_collective is {choice!r}, want True or"
        ):
            tefl.distributed.fully_shard(net, average_in_collective=choice)
    assert type(net) is nn.Sequential  # nothing was sharded
    ddp = DistributedDataParallel(model().to("maca"))
    with pytest.raises(ValueError, match="average_in_collective=False"):
        ddp.join(divide_by_initial_world_size=False)
