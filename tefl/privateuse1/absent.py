"""Names of torch.cuda that a device module has not, and why. docs/limits.md shows the same."""

from __future__ import annotations

__all__ = ["GRAPHS", "IN_MEMORY", "absent"]

_CAPTURE = "work on the device is not captured into graphs"
_POOLS = "the allocator has one pool a stream, and no other can take its place"
_SENSORS = "a provider tells no sensors; use the vendor's own tool"
_NVIDIA = "a library or tool of NVIDIA's"
_LEGACY = "a type from before torch.device: write torch.empty(..., dtype=..., device=...)"
_DEPRECATED = "deprecated on torch.cuda: use reset_peak_memory_stats, memory_reserved, max_memory_reserved"
_RAW = "other libraries take device memory by torch.empty(size, dtype=torch.uint8) and its data_ptr()"
_SYNC = "the device does not watch for calls that wait"
_PEERS = "a provider copies between any two of its devices; whether directly, it does not tell"
_FOREIGN = "a provider makes its streams; the handle of one is torch.Stream.native_handle"

_KINDS = ["BFloat16", "Bool", "Byte", "Char", "Double", "Float", "Half", "Int", "Long", "Short"]
_COMPLEX = ["ComplexDoubleStorage", "ComplexFloatStorage"]
_TYPES = [f"{kind}{what}" for kind in _KINDS for what in ("Storage", "Tensor")] + _COMPLEX

#: What captures work, which a device that shares a GPU with PyTorch's CUDA has: it does so under either name.
GRAPHS = ("CUDAGraph", "graph", "graph_pool_handle", "graphs", "make_graphed_callables")

_ABSENT: dict[str, str] = {
    **dict.fromkeys(_TYPES, _LEGACY),
    **dict.fromkeys(GRAPHS, _CAPTURE),
    **dict.fromkeys(
        ["MemPool", "use_mem_pool", "CUDAPluggableAllocator", "change_current_allocator"], _POOLS
    ),
    **dict.fromkeys(
        ["caching_allocator_enable", "caching_allocator_disabled", "get_allocator_backend"], _POOLS
    ),
    **dict.fromkeys(["utilization", "memory_usage", "temperature", "power_draw", "clock_rate"], _SENSORS),
    **dict.fromkeys(["list_gpu_processes"], _SENSORS),
    **dict.fromkeys(["CudaError", "cudaStatus", "cudart", "check_error", "current_blas_handle"], _NVIDIA),
    **dict.fromkeys(
        ["current_solver_handle", "nccl", "nvtx", "gds", "GreenContext", "green_contexts"], _NVIDIA
    ),
    **dict.fromkeys(["jiterator", "tunable", "profiler", "sparse", "has_half", "has_magma"], _NVIDIA),
    **dict.fromkeys(["reset_max_memory_allocated", "reset_max_memory_cached"], _DEPRECATED),
    **dict.fromkeys(["memory_cached", "max_memory_cached"], _DEPRECATED),
    **dict.fromkeys(["caching_allocator_alloc", "caching_allocator_delete"], _RAW),
    **dict.fromkeys(["get_sync_debug_mode", "set_sync_debug_mode"], _SYNC),
    **dict.fromkeys(["ExternalStream", "get_stream_from_external"], _FOREIGN),
    "can_device_access_peer": _PEERS,
    "DeferredCudaCallError": "nothing is deferred to the start of the runtime",
}

_TRACES = "where a block was asked for is not recorded; memory_snapshot shows what is there"

#: Names of torch.cuda.memory that the device module's `memory` has not; CUDA's own where a GPU is shared.
IN_MEMORY = {"_record_memory_history": _TRACES}


def absent(shares_gpu: bool) -> dict[str, str]:
    """Return each name that the device module has not, with the reason.

    `shares_gpu`: of a device that shares a GPU with PyTorch's CUDA, as that of the provider `cuda` does.
    """
    return {name: why for name, why in _ABSENT.items() if not (shares_gpu and name in GRAPHS)}
