"""Registering a backend: all is checked before torch is touched, and a failure leaves nothing behind."""

from __future__ import annotations

import pickle

import pytest
import torch
from provider_source import provider_source

from tefl.privateuse1 import BackendError, Defect, register_backend
from tefl.privateuse1.checks import declaration_defects, kernel_defects

PRELUDE = """
import sys, warnings
import torch, tefl
from tefl.privateuse1 import *
from tefl.privateuse1.library import open_library
"""


@pytest.fixture(scope="module")
def opaque(compile_library) -> str:
    """A provider whose memory can be computed on nowhere."""
    return str(compile_library("opaque", provider_source(alias="TEFL_ALIAS_NONE"), "-w"))


# ---------------------------------------------------------------------------------------------- success


def test_a_registered_device_computes_under_its_name(python):
    out = python(
        PRELUDE
        + """
register_backend(PrivateUse1Backend(name="maca", provider="sim"))
x = torch.ones(2, device="maca") * 3
print(x.device, x.cpu().tolist(), is_registered(), backend_name(), x.is_maca, x)
"""
    )
    assert out == "maca:0 [3.0, 3.0] True maca True tensor([3., 3.], device='maca:0')"


def test_registration_starts_no_runtime_and_neither_does_naming_counting_or_seeding(python):
    out = python(
        PRELUDE
        + """
import os
def threads(): return len(os.listdir("/proc/self/task"))
before = threads()
register_backend(PrivateUse1Backend(name="maca", provider="sim"))
str(torch.device("maca:1")); parse_device_type("maca"); status()
torch.manual_seed(3)
print(torch.maca.is_available(), torch.maca.device_count(), torch.maca.is_initialized(), threads() - before)
torch.empty(1, device="maca")
print(torch.maca.is_initialized())
""",
        TEFL_SIM_DEVICES="3",
    )
    assert out.split() == ["True", "3", "False", "0", "True"]


def test_dispatch_learns_who_provides_the_device(python):
    out = python(
        PRELUDE
        + """
from tefl.dispatch.facts import gather
register_backend(PrivateUse1Backend(name="maca", provider="sim"))
facts = gather(torch.device("maca", 0), ())
print(facts.device_type, facts.provider, facts.alias, facts.arch)
"""
    )
    assert out == "privateuse1 sim cpu None"


def test_the_device_name_of_the_environment_is_for_chosen_providers_not_for_explicit_ones(python):
    code = (
        PRELUDE + 'register_backend(PrivateUse1Backend(name="maca", provider="sim")); print(backend_name())'
    )
    assert python(code, TEFL_DEVICE_NAME="other") == "maca"


def test_the_ccl_is_registered_after_the_name_is_claimed(python):
    out = python(
        PRELUDE
        + """
def ccl(): print(torch._C._get_privateuse1_backend_name(), torch.ones(1, device="maca").item())
register_backend(PrivateUse1Backend(name="maca", provider="sim", register_ccl=ccl))
"""
    )
    assert out == "maca 1.0"


def test_a_failing_ccl_is_told_and_leaves_a_working_device(python):
    out = python(
        PRELUDE
        + """
def ccl(): raise OSError("no network")
try:
    register_backend(PrivateUse1Backend(name="maca", provider="sim", register_ccl=ccl))
except BackendError as error:
    print(error)
print(is_registered(), torch.ones(1, device="maca").item(), [d["what"] for d in status()["defects"]])
"""
    )
    assert out.splitlines() == [
        "the device 'maca' is registered without collectives:",
        "  - register_ccl raised OSError: no network -> the device works, collectives on it do not: see the "
        "traceback",
        "True 1.0 ['register_ccl raised OSError: no network']",
    ]


# ------------------------------------------------------------------------------------------ vendor kernels

KERNELS = """
from torch.library import Library
KEPT = []
def register():
    library = Library("aten", "IMPL")
    library.impl("sinh", lambda x: x + 100, "PrivateUse1")
    KEPT.append(library)
    kind = tefl.BackendImplKind.VENDOR
    impl = tefl.OpImpl("rmsnorm_fwd", "vendor.acme", kind, lambda *a: None, vendor="acme")
    tefl.get_registry().register_impl(impl)
    return KEPT if RETURN else None
def has_kernel(): return torch._C._dispatch_has_kernel_for_dispatch_key("aten::sinh", "PrivateUse1")
def has_impl(): return "vendor.acme" in tefl.get_registry().impl_ids()
"""


def test_a_vendors_kernel_wins_over_the_alias_kernel(python):
    out = python(
        PRELUDE
        + "RETURN = True\n"
        + KERNELS
        + """
register_backend(PrivateUse1Backend(name="maca", provider="sim", register_kernels=register))
print(torch.zeros(1, device="maca").sinh().item(), torch.ones(1, device="maca").cosh().item(), has_impl())
"""
    )
    assert out.split() == ["100.0", str(torch.ones(1).cosh().item()), "True"]


def test_the_libraries_that_register_kernels_returns_are_kept_alive(python):
    out = python(
        PRELUDE
        + """
import gc
from torch.library import Library
def register():
    library = Library("aten", "IMPL")
    library.impl("sinh", lambda x: x + 100, "PrivateUse1")
    return library
register_backend(PrivateUse1Backend(name="maca", provider="sim", register_kernels=register))
gc.collect()
print(torch.zeros(1, device="maca").sinh().item())
"""
    )
    assert out == "100.0"


@pytest.mark.parametrize("returned", [True, False])
def test_kernels_are_undone_where_a_mandatory_one_is_missing(python, opaque, returned):
    out = python(
        PRELUDE
        + f"RETURN = {returned}\n"
        + KERNELS
        + f"""
try:
    register_backend(PrivateUse1Backend(name="acme", provider={opaque!r}, register_kernels=register))
except BackendError as error:
    print([d.what.split(",")[1].strip() for d in error.defects if "mandatory kernel" in d.what])
print(has_kernel(), has_impl(), is_registered(), hasattr(torch, "acme"))
print(torch._C._get_privateuse1_backend_name())
register_backend(PrivateUse1Backend(name="maca", provider="sim", register_kernels=register))
print(has_kernel(), has_impl(), backend_name())
"""
    )
    assert out.splitlines() == [
        "['aten::_copy_from', 'aten::fill_.Scalar', 'aten::view', 'aten::_reshape_alias']",
        "False False False False",
        "privateuseone",
        "True True maca",
    ]


def test_kernels_are_undone_where_register_kernels_raises_half_way(python):
    out = python(
        PRELUDE
        + "RETURN = False\n"
        + KERNELS
        + """
def half():
    register()
    raise ValueError("the second kernel is not built")
try:
    register_backend(PrivateUse1Backend(name="maca", provider="sim", register_kernels=half))
except BackendError as error:
    print(error.defects[0].what, "|", repr(error.__cause__))
print(has_kernel(), has_impl(), is_registered())
print([d["what"] for d in status()["defects"]])
"""
    )
    assert out.splitlines() == [
        "register_kernels raised ValueError: the second kernel is not built | "
        "ValueError('the second kernel is not built')",
        "False False False",
        "['register_kernels raised ValueError: the second kernel is not built']",
    ]


# ------------------------------------------------------------------------------------------------ defects


def test_all_defects_come_in_one_exception_each_with_its_remedy(python):
    out = python(
        PRELUDE
        + """
try:
    register_backend(PrivateUse1Backend(
        name="maca1", provider="/nowhere/lib.so", default_autocast_dtype=torch.float32,
        register_kernels=3, register_ccl="nccl"))
except BackendError as error:
    print(str(error))
print(is_registered(), torch._C._get_privateuse1_backend_name())
"""
    )
    lines = out.splitlines()
    assert lines[0] == "the device 'maca1' of provider /nowhere/lib.so cannot be registered:"
    assert [line.partition(" -> ")[0] for line in lines[1:-1]] == [
        "  - no provider library at '/nowhere/lib.so'",
        "  - the device name 'maca1' does not match [a-z_]+",
        "  - default_autocast_dtype is torch.float32",
        "  - register_kernels is 3, which cannot be called",
        "  - register_ccl is 'nccl', which cannot be called",
    ]
    assert all(line.partition(" -> ")[2] for line in lines[1:-1])
    assert lines[-1] == "False privateuseone"


@pytest.mark.parametrize("name", ["meta", "xla", "nn", "ops", "cuda", "add", "train"])
def test_a_name_of_torchs_is_refused_and_a_right_one_may_follow(python, name):
    out = python(
        PRELUDE
        + f"""
try:
    register_backend(PrivateUse1Backend(name={name!r}, provider="sim"))
except BackendError as error:
    print(error.defects[0].what)
register_backend(PrivateUse1Backend(name="maca", provider="sim"))
print(torch.ones(1, device="maca").item(), status()["defects"])
"""
    )
    assert out.splitlines()[0].startswith(f"the device name {name!r} is taken by torch: ")
    assert out.splitlines()[1] == "1.0 []"


def test_defects_of_the_library_reach_the_exception_and_the_status(python, compile_library):
    library = compile_library("stale", provider_source(major="0", minor="3"), "-w")
    out = python(
        PRELUDE
        + f"""
try:
    register_backend(PrivateUse1Backend(name="maca", provider={str(library)!r}))
except BackendError as error:
    print(error.defects[0].what)
print(status()["defects"][0]["what"], status()["registered"])
"""
    )
    first, second = out.splitlines()
    assert "was built for provider ABI 0.3, this tefl speaks 1.1" in first
    assert second == f"{first} False"


def test_a_cuda_alias_needs_a_torch_with_cuda(python, compile_library):
    if torch.backends.cuda.is_built():
        pytest.skip("this torch is built with CUDA")
    library = compile_library("gpu", provider_source(alias="TEFL_ALIAS_CUDA"), "-w")
    out = python(
        PRELUDE
        + f"""
try:
    register_backend(PrivateUse1Backend(name="maca", provider={str(library)!r}))
except BackendError as error:
    print(error)
"""
    )
    assert "built without CUDA" in out


def test_only_a_backend_can_be_registered():
    with pytest.raises(TypeError, match="backend is a str, want a PrivateUse1Backend"):
        register_backend("maca")


# -------------------------------------------------------------------------------------- a second provider


def test_a_second_provider_gets_an_error_that_names_both_and_both_ways_out(python, compile_library):
    library = compile_library("second", provider_source(), "-w")
    out = python(
        PRELUDE
        + f"""
register_backend(PrivateUse1Backend(name="maca", provider="sim"))
try:
    register_backend(PrivateUse1Backend(name="acme", provider={str(library)!r}))
except BackendError as error:
    (defect,) = error.defects
    print(defect.what); print(defect.remedy)
print(backend_name(), torch.ones(1, device="maca").item())
"""
    )
    what, remedy, after = out.splitlines()
    for word in ("'maca'", "tefl_sim.so", "register_backend", "'acme'", "second.so"):
        assert word in what
    assert "use the device 'maca'" in remedy
    assert "TEFL_PROVIDER=none" in remedy
    assert after == "maca 1.0"


def test_a_name_that_another_package_took_is_told(python):
    out = python(
        PRELUDE
        + """
torch.utils.rename_privateuse1_backend("theirs")
try:
    register_backend(PrivateUse1Backend(name="maca", provider="sim"))
except BackendError as error:
    print(error)
"""
    )
    assert "another package has claimed the device as 'theirs': 'maca' comes too late" in out
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD=0" in out


def test_of_threads_that_register_at_once_one_wins_and_the_others_are_told(python):
    out = python(
        PRELUDE
        + """
import threading
barrier, lost = threading.Barrier(4), []
def race(name):
    barrier.wait()
    try:
        register_backend(PrivateUse1Backend(name=name, provider="sim"))
    except BackendError as error:
        lost.append(error.defects[0].what)
threads = [threading.Thread(target=race, args=(name,)) for name in ("aa", "bb", "cc", "dd")]
for t in threads: t.start()
for t in threads: t.join()
winner = backend_name()
print(len(lost), all(repr(winner) in what for what in lost), torch.ones(1, device=winner).item())
"""
    )
    assert out == "3 True 1.0"


# ------------------------------------------------------------------------------------------ pure functions


def test_the_error_survives_pickling():
    error = BackendError("it failed", [Defect("a", "b"), Defect("c", "d")])
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) == "it failed:\n  - a -> b\n  - c -> d"
    assert again.defects == error.defects


@pytest.mark.parametrize("dtype", [None, torch.float16, torch.bfloat16])
def test_right_declarations_have_no_defect(dtype):
    assert declaration_defects(dtype, None, lambda: None) == []


def test_an_alias_device_brings_the_mandatory_kernels():
    assert kernel_defects("cpu", lambda op: False) == kernel_defects("cuda", lambda op: False) == []


def test_each_missing_kernel_is_told_with_what_it_is_for():
    missing = kernel_defects("none", lambda op: op == "aten::view")
    assert [defect.what for defect in missing] == [
        "the mandatory kernel for cast, aten::_copy_from, is not registered for PrivateUse1",
        "the mandatory kernel for fill, aten::fill_.Scalar, is not registered for PrivateUse1",
        "the mandatory kernel for no-op backward (what the gradient of a view calls), aten::_reshape_alias, "
        "is not registered for PrivateUse1",
    ]
