"""Random numbers: one generator a device. Seeding starts no runtime.

Where the device shares a GPU with PyTorch's CUDA, the generator is CUDA's own: both draw from one sequence.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch

from tefl import _native
from tefl.privateuse1.indexing import Device, device_index

__all__ = [
    "default_generators",
    "get_rng_state",
    "get_rng_state_all",
    "initial_seed",
    "manual_seed",
    "manual_seed_all",
    "seed",
    "seed_all",
    "set_rng_state",
    "set_rng_state_all",
]


def _generator(index: int) -> torch.Generator:
    generator: torch.Generator = _native.load().default_generator(index)
    return generator


class _Generators(Sequence[torch.Generator]):
    """The generators by device index. Made on demand, for the number of devices is asked when needed."""

    def __len__(self) -> int:
        return int(_native.load().device_count())

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        if isinstance(index, slice):
            return [_generator(i) for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"no generator {index}: there are {len(self)} devices")
        return _generator(index % len(self))

    def __iter__(self) -> Iterator[torch.Generator]:
        return (_generator(index) for index in range(len(self)))


default_generators: Sequence[torch.Generator] = _Generators()


def manual_seed(seed: int) -> None:
    """Seed the current device's generator."""
    if _native.load().shares_gpu():
        return torch.cuda.manual_seed(seed)  # which keeps it until the runtime starts
    _generator(device_index(None)).manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seed every device's generator. `torch.manual_seed` calls this."""
    if _native.load().shares_gpu():
        return torch.cuda.manual_seed_all(seed)
    for generator in default_generators:
        generator.manual_seed(int(seed))


def seed() -> int:
    """Seed the current device's generator from a non-deterministic source; return the seed."""
    return _generator(device_index(None)).seed()


def seed_all() -> int:
    """Seed every device's generator with one non-deterministic seed; return it."""
    value = seed()
    manual_seed_all(value)
    return value


def initial_seed() -> int:
    """Return the seed that the current device's generator was given."""
    return _generator(device_index(None)).initial_seed()


def get_rng_state(device: Device | None = None) -> torch.Tensor:
    """Return the state of a device's generator, a ByteTensor on the CPU."""
    return _generator(device_index(device)).get_state()


def get_rng_state_all() -> list[torch.Tensor]:
    """Return the states of all devices' generators."""
    return [generator.get_state() for generator in default_generators]


def set_rng_state(new_state: torch.Tensor, device: Device | None = None) -> None:
    """Set the state of a device's generator, as `get_rng_state` returned it."""
    _generator(device_index(device)).set_state(new_state)


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Set the states of all devices' generators, in order."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)
