"""What `pg_options` say reaches the process group for NCCL that is made beneath ours."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed import HashStore, distributed_c10d

from tefl.privateuse1 import process_group


class Recorder:
    """In the place of ProcessGroupNCCL, which a PyTorch for CPUs has not."""

    class Options:
        def __init__(self) -> None:
            self.is_high_priority_stream, self.config, self.split_from = False, "usual", None

    def __init__(self, store: object, rank: int, size: int, settings: Options) -> None:
        self.settings = settings


@pytest.fixture(autouse=True)
def nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed_c10d, "ProcessGroupNCCL", Recorder, raising=False)


def made_with(given: Any) -> Any:
    options = SimpleNamespace(
        store=HashStore(),
        group_rank=0,
        group_size=1,
        timeout=timedelta(seconds=7),
        group_id="a group",
        global_ranks_in_group=[0],
    )
    return process_group._nccl(options, given).settings


def test_streams_and_configuration_are_taken_over_and_the_rest_is_the_groups_own() -> None:
    given = Recorder.Options()
    given.is_high_priority_stream, given.config, given.split_from = True, "chosen", "another group"
    settings = made_with(given)
    assert settings is not given
    assert (settings.is_high_priority_stream, settings.config) == (True, "chosen")
    assert (settings.split_from, settings.group_name) == (None, "a group")
    assert settings._timeout == timedelta(seconds=7)


def test_without_any_the_settings_are_nccls_own() -> None:
    settings = made_with(None)
    assert (settings.is_high_priority_stream, settings.config) == (False, "usual")


def test_what_is_not_for_nccl_is_refused_by_its_kind() -> None:
    with pytest.raises(TypeError, match=r"pg_options: got builtins\.dict; 'tefl' over NCCL takes"):
        made_with({})
