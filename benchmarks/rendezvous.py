"""Processes that are ranks of one group, started without torchrun."""

from __future__ import annotations

import socket


def rank_environments(ranks: int) -> list[dict[str, str]]:
    """Return the environment variables by which `init_process_group()` finds its group, for each rank."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(ranks)}
    return [{**where, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]
