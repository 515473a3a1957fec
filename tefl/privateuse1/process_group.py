"""Process groups for the device: `torch.distributed`'s backend "tefl", the device's default.

Beneath it work the provider's own collectives where it has a CCL table (`tefl_provider.h`), else the process
group of the alias device, gloo for the CPU or NCCL for a GPU, on zero-copy aliases of the device's tensors.
"""

from __future__ import annotations

from typing import Any

import torch

from tefl import _env, _native
from tefl.privateuse1.workarounds import settle_default_backend

__all__ = ["BACKEND", "create", "description", "register"]

BACKEND = "tefl"


def register(device_name: str, alias: str) -> None:
    """Make "tefl" a backend of torch.distributed and the default one for the device; starts nothing.

    Without effect where this torch or tefl's compiled part has no torch.distributed. `import torch` has
    imported `torch.distributed` already, so that this costs no import.
    """
    if not torch.distributed.is_available() or not hasattr(_native.load(), "ccl"):
        return

    def factory(options: Any, backend_options: object = None) -> Any:
        return create(options, alias, backend_options)

    torch.distributed.Backend.register_backend(BACKEND, factory, extended_api=True, devices=[device_name])


def description(alias: str | None, has_table: bool | None) -> str | None:
    """Say who does the collectives of a provider with that alias device; None where nothing is known."""
    if has_table is None:
        return None
    if not torch.distributed.is_available():
        return "none: this PyTorch has no torch.distributed"
    if has_table:
        return "the provider's own (its CCL table)"
    beneath = {"cpu": "gloo, through the host", "cuda": "NCCL"}.get(alias or "", "none")
    return f"{beneath}: the provider has no CCL table, so its own links are not used"


def create(options: Any, alias: str, backend_options: object = None) -> Any:
    """Make the process group that `options` (torch's `_DistributedBackendOptions`) describe.

    `backend_options` are what a user passes as `pg_options`: over NCCL `ProcessGroupNCCL.Options`, else a
    TypeError. Raises torch.distributed.DistBackendError, which names rank and size, where not all ranks come
    within the time-out.
    """
    over_table = _native.load().ccl.has_table()
    if (over_table or alias == "cpu") and _are_for_us(backend_options, options):
        beneath = "the provider's own collectives" if over_table else "gloo"
        raise TypeError(f"pg_options: got {_kind(backend_options)}; {BACKEND!r} over {beneath} takes none")
    backend = _over_table(options) if over_table else _over_alias(options, alias, backend_options)
    settle_default_backend()
    if _env.get("TEFL_CCL_CHECK"):
        from tefl.privateuse1.collective_check import (
            check_collectives,
        )  # a torch may have no torch.distributed

        check_collectives(backend)
    return backend


def _over_table(options: Any) -> Any:
    rank, size = options.group_rank, options.group_size
    return _native.load().ccl.table_backend(_store(options), rank, size, options.timeout)


def _store(options: Any) -> Any:
    """Return the store for this attempt: ranks that were started again find the old ones' keys in it."""
    prefix = f"tefl/attempt {_env.get('TORCHELASTIC_RESTART_COUNT')}"
    return torch.distributed.distributed_c10d.PrefixStore(prefix, options.store)


def _are_for_us(backend_options: Any, options: Any) -> bool:
    """Whether any are given, and not those that torch has made NCCL's group of: of "cuda:nccl,maca:tefl" it
    hands these on to us."""
    return backend_options is not None and getattr(backend_options, "group_name", None) != options.group_id


def _kind(given: object) -> str:
    return f"{type(given).__module__}.{type(given).__qualname__}"


def _over_alias(options: Any, alias: str, backend_options: object) -> Any:
    rank, size, timeout = options.group_rank, options.group_size, options.timeout
    try:
        inner = _gloo(options) if alias == "cpu" else _nccl(options, backend_options)
    except RuntimeError as error:
        raise torch.distributed.DistBackendError(
            f"rank {rank} of {size} could not form the process group {options.group_id!r}: not every rank "
            f"joined within {timeout.total_seconds():g} s, or the connection failed ({error})"
        ) from error
    return _native.load().ccl.alias_backend(inner, _store(options), timeout)


def _gloo(options: Any) -> Any:
    from torch.distributed.distributed_c10d import PrefixStore, ProcessGroupGloo

    store = PrefixStore("inner", _store(options))
    inner = ProcessGroupGloo(store, options.group_rank, options.group_size, timeout=options.timeout)
    _describe(inner.options, options)
    return inner


def _nccl(options: Any, given: Any) -> Any:
    from torch.distributed.distributed_c10d import PrefixStore, ProcessGroupNCCL

    if given is not None and not isinstance(given, ProcessGroupNCCL.Options):
        raise TypeError(
            f"pg_options: got {_kind(given)}; {BACKEND!r} over NCCL takes ProcessGroupNCCL.Options"
        )
    settings = ProcessGroupNCCL.Options()
    for name in ("is_high_priority_stream", "config"):  # the rest is the group's, or another's
        if hasattr(given, name):
            setattr(settings, name, getattr(given, name))
    settings._timeout = options.timeout
    _describe(settings, options)
    store = PrefixStore("inner", _store(options))
    return ProcessGroupNCCL(store, options.group_rank, options.group_size, settings)


def _describe(settings: Any, options: Any) -> None:
    settings.global_ranks_in_group = options.global_ranks_in_group
    settings.group_name = options.group_id
