"""Triton's interpreter, which runs kernels on the host under TRITON_INTERPRET=1, in programs with threads."""

from __future__ import annotations

import pytest

from ..conftest import RunPython

THREADS = """
import sys, threading, torch, tefl

def work(seed):
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(seed))
    start.wait()
    got = [torch.ops.tefl.rmsnorm_fwd(x, torch.ones(64))[0] for _ in range(5)]
    torch.testing.assert_close(got, [torch.nn.functional.rms_norm(x, (64,), eps=1e-5)] * 5)
    right.append(seed)

sys.setswitchinterval(1e-6)
start, right = threading.Barrier(8), []
threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
with tefl.record() as calls:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
print(sorted(right), {impl_id: count for (_, impl_id, _), count in calls.items()})
"""


def test_threads_may_make_their_first_calls_at_once(fresh_python: RunPython) -> None:
    pytest.importorskip("triton", reason="Triton is an optional dependency: pip install tefl[triton]")
    done = fresh_python(THREADS, TRITON_INTERPRET="1", TE_FL_STRICT="1")
    assert done.stdout.strip() == "[0, 1, 2, 3, 4, 5, 6, 7] {'default.flagos': 40}"
