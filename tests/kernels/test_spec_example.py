"""The example backend: the same numbers by other code, visible as such, at no cost for a call."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ..ops.samples.norm import GOOD
from .spec_trees import ROOT, TRUNK, install_acme

RESULTS = """
    import sys, torch, tefl
    from tefl.kernels.triton.ops import norm
    torch.use_deterministic_algorithms(True)
    calls = torch.load(sys.argv[1])
    torch.save([getattr(norm, op)(*args, **kwargs) for op, args, kwargs in calls], sys.argv[2])
"""


@pytest.fixture(autouse=True)
def _needs_triton() -> None:
    pytest.importorskip("triton", reason="Triton is an optional dependency: pip install tefl[triton]")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    install_acme(folder)
    return folder


def test_every_op_gives_the_same_bits_with_and_without_the_backend(
    fresh_python, site: Path, tmp_path: Path
) -> None:
    dtypes = (torch.float32, torch.bfloat16, torch.float16)
    calls = [(op, s.args, s.kwargs) for op in GOOD for dtype in dtypes for s in GOOD[op](dtype)]
    torch.save(calls, tmp_path / "calls")
    (tmp_path / "main.py").write_text("\n".join(line[4:] for line in RESULTS.splitlines()))
    results = []
    for variables in ({}, {"TEFL_KERNEL_BACKEND": "acme"}):
        args = [str(tmp_path / name) for name in ("main.py", "calls", "results")]
        fresh_python(args=args, path=[site], TRITON_INTERPRET="1", **variables)
        results.append(torch.load(tmp_path / "results"))
    assert len(results[0]) == len(calls) > 100
    for (op, _, _), trunk, acme in zip(calls, *results, strict=True):
        for one, other in zip(trunk, acme, strict=True):
            assert (one.shape, one.dtype) == (other.shape, other.dtype)
            assert torch.equal(*(t.reshape(-1).view(torch.uint8) for t in (one, other))), op


EXPLAIN = "import torch, tefl; print(tefl.explain('rmsnorm_fwd', torch.ones(2, 4), torch.ones(4)))"


def test_explain_shows_what_the_backend_changes(fresh_python, site: Path) -> None:
    plain = fresh_python(EXPLAIN, path=[site], TRITON_INTERPRET="1").stdout
    acme = fresh_python(EXPLAIN, path=[site], TRITON_INTERPRET="1", TEFL_KERNEL_BACKEND="acme").stdout
    said = (
        " [kernels of backend 'acme' (TEFL_KERNEL_BACKEND=acme): "
        "language/convert.py, extend_language, norm_forward_tile]"
    )
    assert "acme" not in plain
    assert acme.replace(said, "") == plain
    (line,) = [line for line in acme.splitlines() if said in line]
    assert line.lstrip().startswith("-> default.flagos")


PROVENANCE = """
    import json, sys
    import tefl.kernels.triton.ops.norm
    from tefl.kernels.triton import _utils, language
    modules = {n: m.__file__ for n, m in sys.modules.items() if n.startswith("tefl.kernels.triton.")}
    print(json.dumps([modules, _utils.norm_forward_tile.__module__, "widen_bits" in language.__all__]))
"""


def test_only_the_provenance_changes(fresh_python, site: Path) -> None:
    plain, acme = (
        json.loads(fresh_python(PROVENANCE, path=[site], **variables).stdout)
        for variables in ({}, {"TEFL_KERNEL_BACKEND": "acme"})
    )
    assert plain[0].keys() == acme[0].keys()
    moved = {name: file for name, file in acme[0].items() if file != plain[0][name]}
    tree = site / "acme_kernels" / "spec"
    assert moved == {"tefl.kernels.triton.language.convert": str(tree / "language" / "convert.py")}
    assert plain[1:] == ["tefl.kernels.triton._utils", False]
    assert acme[1:] == ["acme_kernels.spec._utils", True]


CALLS = """
    import sys, torch
    from tefl.kernels.triton.ops import norm
    norm._FORWARD = norm._BACKWARD = norm._REDUCE = lambda *args, **kwargs: None  # the launches themselves
    x, w = torch.randn(4, 64), torch.ones(64)
    called = []
    def profile(frame, event, argument):
        if event == "call":
            called.append(frame.f_globals["__name__"] + "." + frame.f_code.co_qualname)
        elif event == "c_call":
            called.append(argument.__name__)
    for _ in range(2):
        called.clear()
        sys.setprofile(profile)
        out, rsigma = norm.rmsnorm_fwd(x, w)
        norm.rmsnorm_bwd(out, x, rsigma, w)
        sys.setprofile(None)
    print("\\n".join(called))
"""


def test_a_call_runs_the_same_functions_with_and_without_the_backend(fresh_python, site: Path) -> None:
    if sys.version_info < (3, 11):
        pytest.skip("code objects have no qualified name before Python 3.11")
    plain, acme = (
        fresh_python(CALLS, path=[site], **variables).stdout.splitlines()
        for variables in ({}, {"TEFL_KERNEL_BACKEND": "acme"})
    )
    assert plain == acme
    assert "tefl.kernels.triton.ops.norm.rmsnorm_fwd" in plain
    assert [name for name in plain if "spec" in name] == []


def test_nothing_selected_loads_nothing_that_finds_or_checks_trees(fresh_python, site: Path) -> None:
    done = fresh_python(
        """
        import sys, torch, tefl
        torch.ops.tefl.rmsnorm_fwd(torch.ones(2, 4), torch.ones(4))
        print("tefl.kernels.spec" in sys.modules)
        import tefl.kernels.triton.ops.norm
        print(sorted(name for name in sys.modules if name.startswith("tefl.kernels._spec.")))
        """,
        path=[site],
    )
    assert done.stdout.splitlines() == ["False", "['tefl.kernels._spec.rules']"]


def test_pip_installs_the_example_so_that_it_is_found(fresh_python, tmp_path: Path) -> None:
    source = tmp_path / "source"  # pip builds inside the source folder
    shutil.copytree(ROOT / "examples" / "acme_kernels", source)
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"]
    command = [*pip, "--target", str(tmp_path / "installed"), str(source)]
    subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ)
    listed = fresh_python(
        args=["-m", "tefl", "spec", "list", "--json"],
        path=[tmp_path / "installed"],
        TEFL_KERNEL_BACKEND="acme",
    )
    result = json.loads(listed.stdout)
    assert {"name": "acme", "source": "acme-kernels", "tree": "acme_kernels.spec"} in result["installed"]
    files = {module["module"]: module["file"] for module in result["modules"]}
    inside = tmp_path / "installed" / "acme_kernels" / "spec" / "language" / "convert.py"
    assert files["tefl.kernels.triton.language.convert"] == str(inside)
    assert files["tefl.kernels.triton.language.rows"] == str(TRUNK / "language" / "rows.py")
