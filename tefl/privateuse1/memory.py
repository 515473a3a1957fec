"""Memory statistics: torch.accelerator's, under the names that torch.cuda has."""

from __future__ import annotations

import pickle
from os import PathLike
from typing import Any

import torch

from tefl import _native
from tefl.privateuse1.absent import IN_MEMORY
from tefl.privateuse1.indexing import Device, device_index

__all__ = [
    "device_memory_used",
    "empty_cache",
    "get_per_process_memory_fraction",
    "host_memory_stats",
    "host_memory_stats_as_nested_dict",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "reset_accumulated_host_memory_stats",
    "reset_accumulated_memory_stats",
    "reset_peak_host_memory_stats",
    "reset_peak_memory_stats",
    "set_per_process_memory_fraction",
]


def empty_cache() -> None:
    """Give cached memory that no tensor uses back to the device."""
    torch.accelerator.empty_cache()


def memory_allocated(device: Device | None = None) -> int:
    """Return the bytes that tensors occupy on a device."""
    return torch.accelerator.memory_allocated(device_index(device))


def max_memory_allocated(device: Device | None = None) -> int:
    """Return the most bytes that tensors occupied since the start or `reset_peak_memory_stats`."""
    return torch.accelerator.max_memory_allocated(device_index(device))


def memory_reserved(device: Device | None = None) -> int:
    """Return the bytes taken from a device, the cached ones included."""
    return torch.accelerator.memory_reserved(device_index(device))


def max_memory_reserved(device: Device | None = None) -> int:
    """Return the most bytes taken from a device since the start or `reset_peak_memory_stats`."""
    return torch.accelerator.max_memory_reserved(device_index(device))


def memory_stats(device: Device | None = None) -> dict[str, Any]:
    """Return the allocator's statistics, as `torch.accelerator.memory_stats` names them."""
    return torch.accelerator.memory_stats(device_index(device))


def reset_peak_memory_stats(device: Device | None = None) -> None:
    """Let the peaks start anew from what is in use now."""
    torch.accelerator.reset_peak_memory_stats(device_index(device))


def reset_accumulated_memory_stats(device: Device | None = None) -> None:
    """Let the counts of allocations and frees start anew from zero."""
    torch.accelerator.reset_accumulated_memory_stats(device_index(device))


def mem_get_info(device: Device | None = None) -> tuple[int, int]:
    """Return the bytes free and in all on a device."""
    return torch.accelerator.get_memory_info(device_index(device))


def device_memory_used(device: Device | None = None) -> int:
    """Return the bytes of a device that any process uses."""
    free, total = mem_get_info(device)
    return total - free


def memory_stats_as_nested_dict(device: Device | None = None) -> dict[str, Any]:
    """Return `memory_stats` with a dict for each part of a name between dots."""
    nested: dict[str, Any] = {}
    for name, value in memory_stats(device).items():
        *parents, last = name.split(".")
        place = nested
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = value
    return nested


# ---------------------------------------------------------------------------------- pinned host memory --


def host_memory_stats() -> dict[str, Any]:
    """Return the statistics of pinned host memory, under the names that torch.cuda has; {} before the start.

    ``allocations`` and ``allocated_bytes`` are of all blocks, the cached ones included, ``active_requests``
    and ``active_bytes`` of those in use, each with ``.current``, ``.peak``, ``.allocated`` and ``.freed``; a
    block has a power of two of bytes. ``num_host_alloc`` and ``num_host_free`` count the provider's calls,
    ``host_alloc_time`` and ``host_free_time`` are their microseconds, with ``.total``, ``.max``, ``.min``,
    ``.count`` and ``.avg``.
    """
    flat: dict[str, Any] = {}
    for name, value in host_memory_stats_as_nested_dict().items():
        parts = value.items() if isinstance(value, dict) else [("", value)]
        flat.update({f"{name}.{part}".rstrip("."): number for part, number in parts})
    return dict(sorted(flat.items()))


def host_memory_stats_as_nested_dict() -> dict[str, Any]:
    """Return `host_memory_stats` with a dict for each name before a dot."""
    native = _native.load()
    return native.host_memory_stats() if native.is_initialized() else {}


def reset_accumulated_host_memory_stats() -> None:
    """Let the counts of pinned blocks that came and went start anew from zero."""
    _native.load().reset_accumulated_host_memory_stats()


def reset_peak_host_memory_stats() -> None:
    """Let the peaks of pinned memory start anew from what is in use now."""
    _native.load().reset_peak_host_memory_stats()


# -------------------------------------------------------------------------------------------- a limit --

_fractions: dict[int, float] = {}


def set_per_process_memory_fraction(fraction: float, device: Device | None = None) -> None:
    """Let this process take no more than a fraction, from 0 to 1, of a device's memory from now on.

    An allocation beyond it raises `torch.OutOfMemoryError`; what is taken already stays.
    """
    if not isinstance(fraction, float):
        raise TypeError(f"fraction is a {type(fraction).__name__}, want a float")
    if not 0 <= fraction <= 1:
        raise ValueError(f"fraction is {fraction}, want a number from 0 to 1")
    native, index = _native.load(), device_index(device)
    if native.shares_gpu():
        torch.cuda.set_per_process_memory_fraction(fraction, index)
    else:
        native.limit_memory(index, int(fraction * mem_get_info(index)[1]))
    _fractions[index] = fraction


def get_per_process_memory_fraction(device: Device | None = None) -> float:
    """Return what `set_per_process_memory_fraction` set for a device, 1.0 if nothing."""
    return _fractions.get(device_index(device), 1.0)


# --------------------------------------------------------------------------------- what memory holds --


def memory_snapshot(mempool_id: None = None, include_traces: bool = True) -> list[dict[str, Any]]:
    """Return the pieces of memory taken from all devices and how they are cut, as torch.cuda does.

    Each segment is a dict with device, address, total_size, allocated_size, active_size, requested_size (in
    bytes), stream, segment_type ("small" or "large"), and blocks in the order of their addresses, each with
    address, size, requested_size, state ("active_allocated", "active_pending_free" while another stream may
    use it, or "inactive") and frames, which is empty: where a block was asked for is not recorded. There are
    no pools to choose by `mempool_id` and no traces to include.
    """
    if mempool_id is not None:
        raise ValueError(f"mempool_id is {mempool_id!r}, want None: the allocator has no such pools")
    native = _native.load()
    if native.shares_gpu():
        return torch.cuda.memory_snapshot()  # type: ignore[no-any-return, no-untyped-call]
    return [
        _segment(index, *segment)
        for index in range(native.device_count())
        for segment in native.memory_snapshot(index)
    ]


def _segment(
    index: int, address: int, size: int, stream: int, pool: str, pieces: list[tuple[int, int, int, str]]
) -> dict[str, Any]:
    blocks = [
        {"address": begin, "size": bytes_, "requested_size": requested, "state": state, "frames": []}
        for begin, bytes_, requested, state in pieces
    ]
    active = [block for block in blocks if block["state"] != "inactive"]
    allocated = [block for block in blocks if block["state"] == "active_allocated"]
    return {
        "device": index,
        "address": address,
        "total_size": size,
        "allocated_size": sum(block["size"] for block in allocated),
        "active_size": sum(block["size"] for block in active),
        "requested_size": sum(block["requested_size"] for block in allocated),
        "stream": stream,
        "segment_type": pool,
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": blocks,
    }


def _snapshot(device: Device | None = None) -> dict[str, Any]:
    """Return what the viewer of PyTorch reads: `memory_snapshot`, and for each device an empty trace.

    Of a GPU shared with CUDA it is CUDA's own, with the traces that `_record_memory_history` asked for.
    """
    if _native.load().shares_gpu():
        return torch.cuda.memory._snapshot(device)  # type: ignore[no-any-return]
    traces: list[list[Any]] = [[] for _ in range(_native.load().device_count())]
    return {"segments": memory_snapshot(), "device_traces": traces, "allocator_settings": {}}


def _dump_snapshot(filename: str | PathLike[str] = "dump_snapshot.pickle") -> None:
    """Write `_snapshot` to a file that torch.cuda._memory_viz and pytorch.org/memory_viz can show."""
    with open(filename, "wb") as file:
        pickle.dump(_snapshot(), file)


def __getattr__(name: str) -> Any:
    """Return what CUDA has, where a GPU is shared with it; else say why it is not here."""
    why = IN_MEMORY.get(name)
    if why is not None and _native.load().shares_gpu():
        return getattr(torch.cuda.memory, name)
    device = torch._C._get_privateuse1_backend_name()
    told = f"module 'torch.{device}.memory' has no attribute {name!r}"
    raise AttributeError(f"{told}: {why}" if why else told)


# ------------------------------------------------------------------------------------------- a summary --

_ROWS = {
    "allocated_bytes": "allocated",
    "active_bytes": "active",
    "requested_bytes": "requested",
    "reserved_bytes": "reserved",
    "inactive_split_bytes": "not releasable",
    "allocation": "allocations",
    "active": "active blocks",
    "segment": "segments",
    "inactive_split": "blocks not releasable",
}
_POOLS = {"all": "", "large_pool": "  large pool", "small_pool": "  small pool"}
_COLUMNS = ("current", "peak", "allocated", "freed")


def memory_summary(device: Device | None = None, abbreviated: bool = False) -> str:
    """Return `memory_stats` as a table: now, at most, what came, what went; by pool unless `abbreviated`."""
    index, stats = device_index(device), memory_stats(device)
    name = f"{torch._C._get_privateuse1_backend_name()}:{index}"
    lines = [
        f"{name}: out of memory {stats['num_ooms']} times, {stats['num_alloc_retries']} retries",
        f"{'':24}" + "".join(f"{column:>12}" for column in _COLUMNS),
    ]
    for key, title in _ROWS.items():
        for pool, indented in _POOLS.items():
            if pool == "all" or not abbreviated:
                cells = [_amount(stats[f"{key}.{pool}.{column}"], "bytes" in key) for column in _COLUMNS]
                lines.append(f"{indented or title:24}" + "".join(f"{cell:>12}" for cell in cells))
    return "\n".join(lines)


def _amount(value: int, is_bytes: bool) -> str:
    """Return a count, or bytes in the largest unit of which there is at least one."""
    if not is_bytes or value < 1024:
        return f"{value} B" if is_bytes else str(value)
    power = min((value.bit_length() - 1) // 10, 5)
    return f"{value / 1024**power:.1f} {'KMGTP'[power - 1]}iB"
