"""`init_process_group()` alone: the process group's default backend is the device's, also for DDP."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import torch.distributed as dist
from ranks import environment

ALONE = """
import torch, torch.distributed as dist
from tefl.privateuse1 import PrivateUse1Backend, register_backend
{before}
register_backend(PrivateUse1Backend("maca", "sim"))
dist.init_process_group(init_method="file://{store}", rank=0, world_size=1)
group = dist.distributed_c10d._get_default_group()
print(dist.get_default_backend_for_device("maca"), group._get_backend(torch.device("maca")).name())
torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2).to("maca"))
other = dist.new_group([0])
torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2).to("maca"), process_group=other)
dist.destroy_process_group()
"""


def run(tmp_path: Path, before: str = "") -> str:
    code = ALONE.format(store=tmp_path / "store", before=before)
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "No backend of type" not in done.stderr
    return done.stdout.strip()


def test_it_is_found_by_ddp_and_by_groups_made_later(tmp_path: Path) -> None:
    assert run(tmp_path) == "tefl tefl"


def test_asking_torch_for_its_own_groups_before_the_claim_changes_nothing(tmp_path: Path) -> None:
    before = "dist.init_process_group('gloo', init_method='file://{0}', rank=0, world_size=1)"
    before += "; dist.destroy_process_group()"
    assert run(tmp_path, before.format(tmp_path / "earlier")) == "tefl tefl"


def test_torch_still_calls_the_default_backend_gloo_where_none_was_named() -> None:
    """When this fails, look whether `workarounds.settle_default_backend` can go."""
    source = inspect.getsource(dist.distributed_c10d._new_process_group_helper)
    unnamed = source.split("if backend == Backend.UNDEFINED:")[1].split("else:\n            pg._set_default")[
        0
    ]
    assert "pg._set_default_backend(ProcessGroup.BackendType.GLOO)" in unnamed
