"""torch's DistributedDataParallel with a choice of how gradients are averaged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch._C._distributed_c10d import BuiltinCommHookType, GradBucket, ProcessGroup
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel as TorchDistributedDataParallel

from tefl.distributed import averaging
from tefl.distributed.averaging import Averaging

__all__ = ["DistributedDataParallel"]

Hook = Callable[[Any, GradBucket], Any]

# torch's own hooks that average, and what does the same by the module's choice.
_OURS: dict[Hook, Hook] = {
    default_hooks.allreduce_hook: averaging.all_reduce_hook,
    default_hooks.fp16_compress_hook: averaging.float16_hook,
    default_hooks.bf16_compress_hook: averaging.bfloat16_hook,
}


class DistributedDataParallel(TorchDistributedDataParallel):
    """torch's `DistributedDataParallel`, whose gradients are averaged as `average_in_collective` says.

    True, the default: one AVG collective for each bucket, and no scaling before it. False: gradients are
    divided by the number of ranks first, then summed. Gradients are equal up to rounding. Everything else is
    torch's: arguments, `no_sync`, unused parameters, static graphs.

    The choice holds for torch's communication hooks `allreduce_hook`, `fp16_compress_hook` and
    `bf16_compress_hook` as well. Any other hook averages as it is written. A hook is registered before the
    first forward that a backward with communication can follow: later torch says that there is one.

    TypeError: `average_in_collective` is no bool.
    """

    def __init__(
        self, module: nn.Module, *args: Any, average_in_collective: bool = True, **kwargs: Any
    ) -> None:
        averaging.check_choice("DistributedDataParallel", average_in_collective)
        super().__init__(module, *args, **kwargs)
        self.average_in_collective = average_in_collective
        self._hook_is_chosen = False

    def register_comm_hook(self, state: object, hook: Hook) -> None:
        """Register a communication hook, as torch's class does; its averaging hooks follow the choice."""
        if (ours := _OURS.get(hook)) is not None:
            group = state if isinstance(state, ProcessGroup) else self.process_group
            state, hook = Averaging(group, self.average_in_collective), ours
        super().register_comm_hook(state, hook)
        self._hook_is_chosen = True

    def _register_builtin_comm_hook(self, comm_hook_type: BuiltinCommHookType) -> None:
        """Register one of torch's hooks in C++, as torch's class does; it averages as it is written."""
        super()._register_builtin_comm_hook(comm_hook_type)  # type: ignore[no-untyped-call]
        self._hook_is_chosen = True

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Run the module; its gradients are averaged during the backward that follows."""
        if torch.is_grad_enabled() and self.require_backward_grad_sync:  # else no reduction follows
            self._settle_hook()
        return super().forward(*inputs, **kwargs)  # type: ignore[no-untyped-call]

    def _settle_hook(self) -> None:
        """Register ours unless there is one: a hook can be registered once only, and the user comes first."""
        if not self._hook_is_chosen:
            self._hook_is_chosen = True
            if self.average_in_collective:
                state = Averaging(self.process_group, in_collective=True)
                super().register_comm_hook(state, averaging.all_reduce_hook)

    def join(
        self,
        divide_by_initial_world_size: bool = True,
        enable: bool = True,
        throw_on_early_termination: bool = False,
    ) -> Any:
        """Train with uneven inputs, as torch's class does; an AVG divides by the number of all ranks."""
        if self.average_in_collective and not divide_by_initial_world_size:
            raise ValueError(
                "join: divide_by_initial_world_size=False, with average_in_collective=True: the collective "
                "divides by all ranks. Construct the module with average_in_collective=False"
            )
        if enable:
            self._settle_hook()  # a rank without any input reduces as well
        return super().join(divide_by_initial_world_size, enable, throw_on_early_termination)
