"""What users get wrong, or a vendor's machine does: the error has the vendor's name in it and the way out."""

from __future__ import annotations

import pytest
import torch
from claimed import DEVICES


@pytest.mark.parametrize(
    "use",
    [
        lambda maca: torch.ones(2, device="maca:100"),
        lambda maca: torch.ones(2).to("maca:100"),
        lambda maca: torch.ones(2).maca(100),
        lambda maca: torch.nn.Linear(2, 2).to("maca:100"),
        lambda maca: maca.set_device(100),
        lambda maca: maca.synchronize(100),
        lambda maca: maca.get_device_properties(100),
        lambda maca: maca.memory_allocated(100),
        lambda maca: torch.Stream("maca:100"),
        lambda maca: torch.Generator("maca:100"),
        lambda maca: torch.accelerator.set_device_index(100),
        lambda maca: torch.accelerator.synchronize(100),
    ],
)  # fmt: skip
def test_a_device_that_is_not_there_is_named_with_how_many_there_are(maca, use):
    before = maca.current_device()
    with pytest.raises(RuntimeError) as caught:
        use(maca)
    many = f"this process sees {DEVICES} maca device(s), numbered from 0"
    assert f"maca:100 does not exist: {many}" in str(caught.value)
    assert maca.current_device() == before


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.uint32], ids=str)
def test_a_dtype_that_an_operator_lacks_is_told_with_operator_and_device(maca, dtype):
    x = torch.ones(2, 2).to(dtype).to("maca:1")
    with pytest.raises(NotImplementedError, match="not implemented for") as caught:
        torch.linalg.vector_norm(x) if dtype.is_floating_point else torch.bincount(x.flatten())
    assert "ran on maca:1" in str(caught.value)


def test_a_runtime_that_does_not_start_says_why_at_each_use_and_the_cpu_goes_on(python):
    out = python(
        """
        import torch
        from tefl.privateuse1 import PrivateUse1Backend, register_backend
        register_backend(PrivateUse1Backend("maca", "sim"))
        for use in (lambda: torch.ones(2, device="maca"), lambda: torch.ones(2).pin_memory("maca"),
                    lambda: torch.maca.synchronize(), lambda: torch.Stream("maca"),
                    lambda: torch.maca.mem_get_info(0)):
            try:
                use()
            except RuntimeError as error:
                print(str(error).splitlines()[0])
        print((torch.ones(2) + 1).tolist())
        """,
        TEFL_SIM_CAPACITY="plenty",
    ).splitlines()
    told = (
        "maca: init failed: TEFL_SIM_CAPACITY='plenty': want a whole number of bytes above 0, or one with K"
    )
    assert len(out) == 6
    assert all(line.startswith(told) for line in out[:-1])
    assert out[-1] == "[2.0, 2.0]"


def test_a_provider_that_sees_no_device_is_available_nowhere(python, compile_library):
    from provider_source import provider_source

    source = provider_source().replace(
        "*count = 3; return TEFL_OK;", "(void)count; return TEFL_ERR_INTERNAL;"
    )
    library = compile_library("dead", source, "-w")
    out = python(
        f"""
        import torch
        from tefl.privateuse1 import PrivateUse1Backend, register_backend
        register_backend(PrivateUse1Backend("maca", {str(library)!r}))
        print(torch.maca.is_available(), torch.maca.device_count())
        for use in (lambda: torch.ones(2, device="maca:0"), lambda: torch.maca.set_device(1)):
            try:
                use()
            except RuntimeError as error:
                print(str(error).splitlines()[0])
        """
    ).splitlines()
    assert out[0] == "False 0"
    assert out[1].startswith("maca:0 does not exist: this process sees 0 maca device(s)")
    assert out[2].startswith("maca:1 does not exist: this process sees 0 maca device(s)")


def test_a_provider_that_dies_is_an_error_of_every_call_and_the_process_ends_cleanly(fresh_python):
    dead = ",".join(
        f"{name}:2*,{name}:3*"
        for name in ("malloc", "memcpy_async", "stream_sync", "device_sync", "event_create")
    )
    done = fresh_python.run(
        """
        import torch
        from tefl.privateuse1 import PrivateUse1Backend, register_backend
        register_backend(PrivateUse1Backend("maca", "sim"))
        x = torch.ones(4, device="maca")
        kinds = set()
        uses = (lambda: x + 1, lambda: x.cpu(), lambda: x.to("maca:1"), lambda: torch.maca.synchronize(),
                lambda: torch.empty(1 << 25, device="maca"))
        for _ in range(20):
            for use in uses:
                try:
                    use()
                except RuntimeError as error:
                    assert str(error).startswith("maca"), error
                    kinds.add(type(error).__name__)
        print(sorted(kinds))
        """,
        TEFL_SIM_FAULTS=dead,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "['AcceleratorError', 'OutOfMemoryError', 'RuntimeError']\n"
