"""The example provider: what an outside package has to do is enough, and what it computes is right."""

from __future__ import annotations

import ctypes
import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "examples" / "maca_provider"

RunPython = Callable[..., "subprocess.CompletedProcess[str]"]


def succeed(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# ----------------------------------------------------------------------------------- the two ways to build --


def test_import_torch_is_all_that_the_installed_package_needs(run_python: RunPython) -> None:
    done = run_python("-c", "import torch; print(torch.ones(2, device='maca') * 3)")
    assert succeed(done) == "tensor([3., 3.], device='maca:0')\n"
    assert done.stderr == ""


def test_importing_torch_starts_no_engine_and_loads_no_plugin(run_python: RunPython) -> None:
    code = """
import sys, torch
print(torch.maca.is_initialized(), "maca_provider.plugin" in sys.modules)
"""
    assert succeed(run_python("-c", code)) == "False False\n"


def test_an_autoload_hook_without_tefl_is_a_warning_and_torch_works(run_python: RunPython) -> None:
    code = "import sys, torch, _maca_autoload; sys.modules['_tefl_autoload'] = None; "
    code += "_maca_autoload.autoload(); print(torch.ones(1))"
    done = run_python("-c", code, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert succeed(done) == "tensor([1.])\n"
    assert "RuntimeWarning: the device 'maca' is not available: ModuleNotFoundError" in done.stderr


class ProviderTable(ctypes.Structure):
    """The beginning of `tefl_provider` in tefl_provider.h."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("abi_major", ctypes.c_uint32),
        ("abi_minor", ctypes.c_uint32),
        ("name", ctypes.c_char_p),
        ("version", ctypes.c_char_p),
        ("alias", ctypes.c_int32),
    ]


def test_cmake_finds_tefl_and_builds_a_library_with_the_entry_symbol(cmake_library: Path) -> None:
    library = ctypes.CDLL(str(cmake_library))
    library.tefl_provider_get.restype = ctypes.POINTER(ProviderTable)
    table = library.tefl_provider_get().contents
    assert (table.abi_major, table.name, table.alias) == (1, b"maca", 1)


def test_the_library_alone_makes_a_device_when_it_is_registered_by_its_path(
    run_python: RunPython, cmake_library: Path
) -> None:
    code = f"""
import torch
from tefl.privateuse1 import PrivateUse1Backend, register_backend
register_backend(PrivateUse1Backend(name="maca", provider={str(cmake_library)!r}))
print(torch.arange(3, device="maca").sum())
"""
    done = run_python("-c", code, TEFL_PROVIDER="none")
    assert succeed(done) == "tensor(3, device='maca:0')\n"


def test_the_library_exports_its_entry_symbol_and_its_kernels_and_nothing_else(maca: Path) -> None:
    library = maca / "maca_provider" / "libmaca.so"
    command = ["nm", "-D", "--defined-only", str(library)]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    ours = {line.split()[-1] for line in listing.splitlines() if line.split()[1] == "T"}
    assert ours - {"_init", "_fini"} == {"tefl_provider_get", "maca_rmsnorm_fwd", "maca_last_error"}


def test_the_sources_include_nothing_of_tefl_but_the_public_header() -> None:
    sources = list((SOURCE / "src").iterdir())
    included = {name for path in sources for name in re.findall(r'#include "(.*)"', path.read_text())}
    assert included - {path.name for path in sources} == {"tefl_provider.h"}


def test_a_copy_without_the_kernel_needs_nothing_of_it() -> None:
    kept = [path for path in (SOURCE / "src").iterdir() if path.name not in ("rmsnorm.cpp", "maca.h")]
    included = {name for path in kept for name in re.findall(r'#include "(.*)"', path.read_text())}
    assert included - {path.name for path in kept} == {"tefl_provider.h"}


# ---------------------------------------------------------------------------------------------- the kernel --

NUMERICS = """
import itertools, json, torch, tefl

def formula(x, w, eps, zero_centered_gamma):
    x, w = x.cpu().double(), w.cpu().double() + zero_centered_gamma
    rsigma = 1 / torch.sqrt((x * x).mean(-1) + eps)
    return x * rsigma[..., None] * w, rsigma

torch.manual_seed(0)
shapes = [(1, 1), (3, 5), (7, 64), (2, 3, 4, 5, 9), (0, 8), (33, 4099)]
dtypes = [torch.float32, torch.bfloat16, torch.float16]
report = []
with tefl.record() as calls:
    for case in itertools.product(shapes, dtypes, dtypes, [None, *dtypes], [False, True]):
        shape, dtype, weight_dtype, out_dtype, centered = case
        x = torch.randn(shape).to(dtype).to("maca")
        w = torch.randn(shape[-1]).to(weight_dtype).to("maca")
        options = {"zero_centered_gamma": centered, "out_dtype": out_dtype}
        out, rsigma = torch.ops.tefl.rmsnorm_fwd(x, w, 1e-5, **options)
        want, want_rsigma = formula(x, w, 1e-5, centered)
        assert (out.dtype, out.shape, out.device) == (out_dtype or dtype, x.shape, x.device)
        assert (rsigma.dtype, rsigma.shape, rsigma.device) == (torch.float32, x.shape[:-1], x.device)
        # Rounding to the output's type costs half its eps (or half of its smallest number), float32 the rest.
        bound = (torch.finfo(out.dtype).eps / 2 + 2e-6) * want.abs() + torch.finfo(out.dtype).tiny
        wrong = int((~((out.cpu().double() - want).abs() <= bound)).sum())
        wrong += int((~((rsigma.cpu().double() - want_rsigma).abs() <= 2e-6 * want_rsigma)).sum())
        report.append([str(case), wrong])
print(json.dumps([report, [[*key, count] for key, count in calls.items()]]))
"""


def test_the_kernel_agrees_with_the_float64_formula_for_every_dtype_and_shape(run_python: RunPython) -> None:
    report, calls = json.loads(succeed(run_python("-c", NUMERICS)))
    assert [case for case in report if case[1] != 0] == []
    assert calls == [["rmsnorm_fwd", "vendor.maca", "maca", len(report)]]


def test_half_precision_results_round_like_torch_over_the_whole_range(run_python: RunPython) -> None:
    # One column: rsigma is 1 / |x| to float32, so the output is +-weight, rounded to the output's type.
    code = """
import torch, tefl
w = torch.cat([torch.logspace(-9, 5.5, 20011), torch.tensor([65504.0, 65519.9, 65520.0, 2.0**-24, 2.0**-25])])
for dtype in (torch.float16, torch.bfloat16):
    for sign in (1.0, -1.0):
        x = torch.full((1, len(w)), sign)
        out, _ = torch.ops.tefl.rmsnorm_fwd(x.to("maca"), w.to("maca"), 0.0, out_dtype=dtype)
        assert torch.equal(out.cpu()[0], (sign * w).to(dtype)), dtype
"""
    succeed(run_python("-c", code))


def test_non_contiguous_and_expanded_operands_are_read_by_their_strides(run_python: RunPython) -> None:
    code = """
import torch, tefl
import torch.nn.functional as F
x, w = torch.randn(6, 10).to("maca").t(), torch.randn(12).to("maca")[::2]
out, _ = torch.ops.tefl.rmsnorm_fwd(x, w, 1e-5)
torch.testing.assert_close(out.cpu(), F.rms_norm(x.cpu(), (6,), w.cpu(), 1e-5))
y = torch.randn(4).to("maca").expand(3, 4)
out, _ = torch.ops.tefl.rmsnorm_fwd(y, w[:4], 1e-5)
torch.testing.assert_close(out.cpu(), F.rms_norm(y.cpu(), (4,), w[:4].cpu(), 1e-5))
"""
    succeed(run_python("-c", code))


def test_the_kernel_runs_behind_the_call_on_the_current_stream_of_its_own_card(run_python: RunPython) -> None:
    code = """
import torch, tefl
x, w = torch.randn(1 << 14, 1 << 10).to("maca:1"), torch.ones(1 << 10, device="maca:1")
streams = [torch.maca.default_stream(0), torch.maca.default_stream(1), torch.Stream(device="maca:1")]

def run_and_see():
    results = [torch.ops.tefl.rmsnorm_fwd(x, w) for _ in range(3)]  # kept, as freeing memory waits for work
    busy = [not stream.query() for stream in streams]
    torch.maca.synchronize(1)
    return busy, results[0][0].device

torch.ops.tefl.rmsnorm_fwd(x[:1], w)  # everything is loaded and chosen before it counts
print(*run_and_see(), torch.maca.current_device())
with streams[2]:
    print(*run_and_see())
print([not stream.query() for stream in streams])
"""
    expected = ["[False, True, False] maca:1 0", "[False, False, True] maca:1", "[False, False, False]"]
    assert succeed(run_python("-c", code)).splitlines() == expected


def test_operands_dropped_after_the_call_keep_their_values_for_the_kernel(run_python: RunPython) -> None:
    code = """
import torch, tefl
w = torch.ones(1 << 10, device="maca")
for _ in range(20):
    x = torch.full((1 << 12, 1 << 10), 3.0, device="maca")
    out, _ = torch.ops.tefl.rmsnorm_fwd(x, w, 0.0)
    del x
    other = torch.full((1 << 12, 1 << 10), float("nan"), device="maca")  # may take the memory of x
    assert torch.equal(out.cpu(), torch.ones(1 << 12, 1 << 10))
"""
    succeed(run_python("-c", code))


# ---------------------------------------------------------------------------- choosing it, and its reasons --

EXPLAIN = """
import torch, tefl
x, w = torch.ones(2, 4{dtype}).to({device!r}), torch.ones(4{dtype}).to({device!r})
choice = tefl.explain("rmsnorm_fwd", x, w)
print(choice.winner.impl_id)
for candidate in choice.candidates:
    print(candidate.impl_id, "|", candidate.reason)
"""


def explain(run_python: RunPython, device: str = "maca", dtype: str = "", **variables: str) -> dict[str, str]:
    """Return reasons by impl_id, and the winner under "winner"."""
    code = EXPLAIN.format(device=device, dtype=dtype)
    winner, *lines = succeed(run_python("-c", code, **variables)).splitlines()
    return {"winner": winner, **dict(line.split(" | ", 1) for line in lines)}


def test_it_is_chosen_on_maca_where_triton_has_nothing_to_run_on_and_says_so(run_python: RunPython) -> None:
    reasons = explain(run_python)
    assert reasons["winner"] == "vendor.maca"
    assert "Triton" in reasons["default.flagos"]


def test_it_is_no_candidate_for_tensors_of_the_cpu(run_python: RunPython) -> None:
    reasons = explain(run_python, device="cpu")
    assert reasons["winner"] == "reference.torch"
    assert "cpu" in reasons["vendor.maca"]


def test_it_leaves_float64_to_the_reference_and_says_so(run_python: RunPython) -> None:
    reasons = explain(run_python, dtype=", dtype=torch.float64")
    assert reasons["winner"] == "reference.torch"
    assert "float64" in reasons["vendor.maca"]


def test_it_asks_who_provides_the_device_not_what_the_device_is_called(run_python: RunPython) -> None:
    reasons = explain(run_python, TEFL_PROVIDER="sim", TEFL_DEVICE_NAME="maca")
    assert reasons["winner"] == "reference.torch"
    assert reasons["vendor.maca"].startswith("runs on the devices of provider 'maca'")
    assert explain(run_python, device="acme", TEFL_DEVICE_NAME="acme")["winner"] == "vendor.maca"


CALL = """
import torch, tefl
with tefl.record() as calls:
    for _ in range(3):
        x, w = torch.full((2, 4), 2.0, device="maca"), torch.ones(4, device="maca")
        out, _ = torch.ops.tefl.rmsnorm_fwd(x, w, 0.0)
assert torch.equal(out.cpu(), torch.ones(2, 4))
print(dict(calls))
"""


def test_another_copy_of_the_library_does_not_touch_the_streams_of_the_first(
    run_python: RunPython, cmake_library: Path
) -> None:
    done = run_python("-c", CALL, TEFL_PROVIDER=str(cmake_library), TEFL_DEVICE_NAME="maca")
    assert "reference.torch" in succeed(done)
    assert "another copy of the maca library" in done.stderr


# ------------------------------------------------------------------------------------------- when it fails --


def test_a_kernel_that_fails_behind_its_call_is_reported_once_and_the_card_goes_on(
    run_python: RunPython,
) -> None:
    code = """
import torch
from maca_provider import library
from tefl.privateuse1 import raw_stream
x = torch.ones(4, device="maca")
stream = raw_stream()
columns = 1 << 61  # more than any vector can hold: the kernel fails where it runs, on the engine's thread
status = library._library().maca_rmsnorm_fwd(*[x.data_ptr()] * 4, 0, 0, 0, 1, columns, 1e-5, 0, stream)
try:
    torch.maca.synchronize()
except RuntimeError as error:
    print(status, "work enqueued earlier on card 0 failed" in str(error))
torch.maca.synchronize()
print((x + 1).sum().item())
"""
    assert succeed(run_python("-c", code)) == "0 True\n8.0\n"


def test_asking_for_more_than_a_card_has_is_torchs_out_of_memory_error(run_python: RunPython) -> None:
    code = """
import torch
try:
    torch.empty(5 << 30, dtype=torch.uint8, device="maca")
except torch.OutOfMemoryError as error:
    print(error)
print(torch.ones(1, device="maca").item())
"""
    out = succeed(run_python("-c", code))
    assert "card 0" in out
    assert out.endswith("1.0\n")


def test_a_script_may_end_right_after_a_backward(run_python: RunPython) -> None:
    # The thread that ran the backward still holds objects of the caller's. The long switch interval keeps the
    # interpreter from it: without an orderly end, two of three such processes abort.
    code = """
import sys, torch
sys.setswitchinterval(100)
torch.ones(4, device="maca", requires_grad=True).sum().backward()
"""
    for _ in range(3):
        assert run_python("-c", code).returncode == 0
