"""Plugins that were written for TE-FL run as they are, named in TE_FL_PLUGIN_MODULES and nothing else."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest

SEED_OUT_OF_TREE = '''
from transformer_engine.plugin.core import OpImpl, BackendImplKind

def my_rmsnorm(input, weight, eps=1e-5, **kwargs):
    import torch
    variance = input.pow(2).mean(-1, keepdim=True)
    return input * torch.rsqrt(variance + eps) * weight, torch.rsqrt(variance + eps)

def register(registry):
    """由 TE-FL 自动调用"""
    registry.register_impl(OpImpl(
        op_name="rmsnorm_fwd",
        impl_id="vendor.myvendor",
        kind=BackendImplKind.VENDOR,
        vendor="myvendor",
        fn=my_rmsnorm,
        priority=200,
    ))
'''

SEED_IN_TREE = """
import torch
from transformer_engine.plugin.core import (
    OpRegistry, OpManager, OpImpl, BackendImplKind
)

def my_rmsnorm(input, weight, eps=1e-5, **kwargs):
    variance = input.pow(2).mean(-1, keepdim=True)
    return input * torch.rsqrt(variance + eps) * weight, torch.rsqrt(variance + eps)

registry = OpRegistry()
registry.register_impl(OpImpl(
    op_name="rmsnorm_fwd",
    impl_id="vendor.mybackend",
    kind=BackendImplKind.VENDOR,
    vendor="mybackend",
    fn=my_rmsnorm,
    priority=200,
))

manager = OpManager(registry)

def run(input, weight):
    output, rsigma = manager.call("rmsnorm_fwd", input, weight)
    return output, rsigma
"""

# As vendors' packages are written: a class, bound methods with `_is_available`, a list of implementations.
FULL = """
import functools
import torch
from transformer_engine.plugin.core.ops import DType, TEFLBackendBase
from transformer_engine.plugin.core.logger_manager import get_logger

logger = get_logger()
calls = []

class Backend(TEFLBackendBase):
    def is_available(self):
        return True

    def rmsnorm_fwd(self, input, weight, eps, ln_out, quantizer, otype, sm_margin, zero_centered_gamma):
        calls.append(("rmsnorm_fwd", ln_out, quantizer, otype, sm_margin))
        x = input.float()
        rsigma = torch.rsqrt(x.pow(2).mean(-1) + eps)
        gamma = weight.float() + 1 if zero_centered_gamma else weight.float()
        dtypes = {DType.kFloat32: torch.float32, DType.kBFloat16: torch.bfloat16}
        return [(x * rsigma.unsqueeze(-1) * gamma).to(dtypes[otype]), None, rsigma]

    def rmsnorm_bwd(self, dz, x, rsigma, gamma, sm_margin, zero_centered_gamma):
        calls.append(("rmsnorm_bwd", sm_margin))
        w = gamma + 1 if zero_centered_gamma else gamma
        xhat = x * rsigma.unsqueeze(-1)
        g = dz * w
        dx = (g - xhat * (g * xhat).mean(-1, keepdim=True)) * rsigma.unsqueeze(-1)
        return [dx, (dz * xhat).reshape(-1, x.shape[-1]).sum(0)]

def _bind_is_available(fn, is_available_fn):
    @functools.wraps(fn)
    def wrapper(*args, **kwargs):
        return fn(*args, **kwargs)
    wrapper._is_available = is_available_fn
    return wrapper

def te_fl_register(registry):
    from transformer_engine.plugin.core.types import OpImpl, BackendImplKind
    backend = Backend()
    impls = [
        OpImpl(op_name=name, impl_id="vendor.full", kind=BackendImplKind.VENDOR,
               fn=_bind_is_available(getattr(backend, name), backend.is_available),
               vendor="full", priority=100, supported_dtypes={"float32", "bf16"}, min_arch=None)
        for name in ("rmsnorm_fwd", "rmsnorm_bwd")
    ]
    registry.register_many(impls)
    assert "vendor.full" in [impl.impl_id for impl in registry.get_implementations("rmsnorm_fwd")]
    assert "rmsnorm_bwd" in registry.list_operators()
"""


def test_the_seeds_plugin_runs_with_its_imports(fresh_python, plugin) -> None:
    done = fresh_python(
        """
        import torch, tefl
        x, w = torch.randn(3, 8), torch.randn(8)
        out, rsigma = torch.ops.tefl.rmsnorm_fwd(x, w, 1e-6)
        torch.testing.assert_close(out, torch.nn.functional.rms_norm(x, (8,), w, 1e-6))
        print(tefl.explain("rmsnorm_fwd", x, w).winner.impl_id, tuple(rsigma.shape))
        """,
        path=[plugin("my_vendor_plugin", SEED_OUT_OF_TREE)],
        TE_FL_PLUGIN_MODULES="my_vendor_plugin",
        TE_FL_PREFER="vendor",
    )
    assert done.stdout == "vendor.myvendor (3,)\n"
    assert "transformer_engine.plugin is not installed: supplied by tefl" in done.stderr


def test_the_seeds_program_runs_with_its_imports_once_a_plugin_has_asked_for_them(
    fresh_python, plugin
) -> None:
    plugin("my_vendor_plugin", SEED_OUT_OF_TREE)
    done = fresh_python(
        """
        import torch, tefl
        tefl.get_manager().ensure_ready()
        import my_program
        x, w = torch.randn(3, 8), torch.randn(8)
        out, rsigma = my_program.run(x, w)
        torch.testing.assert_close(out, torch.nn.functional.rms_norm(x, (8,), w, 1e-5))
        print(tuple(rsigma.shape))
        """,
        path=[plugin("my_program", SEED_IN_TREE)],
        TE_FL_PLUGIN_MODULES="my_vendor_plugin",
        TE_FL_PER_OP="rmsnorm_fwd=vendor:mybackend",
    )
    assert done.stdout == "(3, 1)\n"  # as its function returns it
    assert "Op 'rmsnorm_fwd' using 'vendor.mybackend' (kind=vendor, vendor=mybackend)" in done.stderr


def test_the_seeds_program_runs_after_install(fresh_python, plugin) -> None:
    done = fresh_python(
        """
        import torch
        from tefl.compat.transformer_engine import install
        install()
        import my_program
        out, rsigma = my_program.run(torch.randn(3, 8), torch.randn(8))
        print(tuple(rsigma.shape))
        """,
        path=[plugin("my_program", SEED_IN_TREE)],
    )
    assert done.stdout == "(3, 1)\n"


def test_a_whole_backend_computes_through_torchs_door_with_gradients(fresh_python, plugin) -> None:
    done = fresh_python(
        """
        import json, torch, tefl
        x = torch.randn(3, 8, requires_grad=True)
        w = torch.randn(8, requires_grad=True)
        with tefl.record() as calls:
            out, rsigma = torch.ops.tefl.rmsnorm_fwd(x, w, 1e-6, zero_centered_gamma=True)
            out.square().sum().backward()
        y, v = x.detach().double().requires_grad_(), w.detach().double().requires_grad_()
        torch.nn.functional.rms_norm(y, (8,), v + 1, 1e-6).square().sum().backward()
        torch.testing.assert_close(x.grad, y.grad.float())
        torch.testing.assert_close(w.grad, v.grad.float())
        half, _ = torch.ops.tefl.rmsnorm_fwd(x.detach(), w.detach(), out_dtype=torch.bfloat16)
        import full
        print(json.dumps([half.dtype == torch.bfloat16, sorted(map(list, calls)), full.calls], default=str))
        """,
        path=[plugin("full", FULL)],
        TE_FL_PLUGIN_MODULES="full",
        TE_FL_PREFER="vendor",
    )
    is_half, calls, arguments = json.loads(done.stdout)
    assert is_half
    assert [call[:2] for call in calls] == [["rmsnorm_bwd", "vendor.full"], ["rmsnorm_fwd", "vendor.full"]]
    assert arguments == [
        ["rmsnorm_fwd", None, None, 4, 0],
        ["rmsnorm_bwd", 0],
        ["rmsnorm_fwd", None, None, 6, 0],
    ]


def test_an_installed_plugin_is_served_alike(fresh_python, plugin, tmp_path: Path) -> None:
    folder = plugin("full", FULL)
    info = tmp_path / "full-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: full\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[te_fl.plugin]\nfull = full\n")
    done = fresh_python(
        "import tefl; tefl.get_manager().ensure_ready(); print(tefl.get_manager().plugins)", path=[folder]
    )
    assert "state='loaded', impl_ids=('vendor.full',)" in done.stdout


def test_a_plugin_that_asks_for_what_is_not_supplied_fails_alone_and_says_so(fresh_python, plugin) -> None:
    code = "from transformer_engine.plugin.core.ops import NVTE_Mask_Type\ndef register(registry): pass\n"
    done = fresh_python(
        "import torch, tefl; tefl.get_manager().ensure_ready()",
        path=[plugin("asks_more", code)],
        TE_FL_PLUGIN_MODULES="asks_more",
        fails=True,
    )
    assert (
        "plugin 'asks_more' (TE_FL_PLUGIN_MODULES) was not loaded: ImportError: cannot import name"
        in done.stderr
    )
    assert "'NVTE_Mask_Type'" in done.stderr.strip().splitlines()[-1]


# Each asks for the names another way than by `from transformer_engine.plugin.core import ...` at its head.
WAYS_TO_ASK = {
    "only when it registers": """
        def register(registry):
            from transformer_engine.plugin.core import BackendImplKind, OpImpl
            registry.register_impl(OpImpl("rmsnorm_fwd", "vendor.v", BackendImplKind.VENDOR, run, "v", 200))
            assert "vendor.v" in [impl.impl_id for impl in registry.get_implementations("rmsnorm_fwd")]
            assert registry.get_implementation("rmsnorm_fwd", "vendor.v").fn is run
            assert "rmsnorm_fwd" in registry.list_operators()
    """,
    "by attributes from the top": """
        import transformer_engine
        def register(registry):
            types = transformer_engine.plugin.core.types
            impl = types.OpImpl("rmsnorm_fwd", "vendor.v", types.BackendImplKind.VENDOR, run, "v", 200)
            registry.register_impl(impl)
    """,
    "by attributes of core": """
        import transformer_engine.plugin.core as core
        def register(registry):
            types = core.types
            impl = types.OpImpl("rmsnorm_fwd", "vendor.v", types.BackendImplKind.VENDOR, run, "v", 200)
            core.get_registry().register_impl(impl)
    """,
    "by a star": """
        from transformer_engine.plugin.core import *
        def te_fl_register(registry):
            registry.register_many([OpImpl("rmsnorm_fwd", "vendor.v", BackendImplKind.VENDOR, run, "v", 200)])
    """,
}


@pytest.mark.parametrize("way", WAYS_TO_ASK)
def test_a_plugin_may_ask_for_the_names_in_any_way(fresh_python, plugin, way: str) -> None:
    head = "def run(x, w, *rest): return x + w, None, x.sum(-1)\n"
    done = fresh_python(
        """
        import torch, tefl
        print(torch.ops.tefl.rmsnorm_fwd(torch.ones(2, 4), torch.ones(4))[0].sum().item())
        """,
        path=[plugin("vendor_v", head + textwrap.dedent(WAYS_TO_ASK[way]))],
        TE_FL_PLUGIN_MODULES="vendor_v",
        TE_FL_PREFER="vendor",
    )
    assert done.stdout == "16.0\n"
