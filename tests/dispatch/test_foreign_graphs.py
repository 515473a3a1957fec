"""An implementation's own autograd graph ends at the op: what it returns is detached."""

from __future__ import annotations

import textwrap
from pathlib import Path

# An implementation of rmsnorm_fwd in autograd.Function, and one that hands out leaves which it keeps.
CODE = """
    import torch, tefl
    def both(x, w, eps, **options):
        rsigma = torch.rsqrt(x.pow(2).mean(-1) + eps)
        return x * rsigma.unsqueeze(-1) * w, rsigma
    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w, eps): return both(x, w, eps)
        @staticmethod
        def backward(ctx, *grads): raise AssertionError("the implementation's own graph")
    def apply(x, w, eps, **options):
        with torch.enable_grad():
            return Function.apply(x, w, eps)
    kept = []
    def leaves(x, w, eps, **options):
        kept.append(tuple(result.detach().requires_grad_() for result in both(x, w, eps)))
        return kept[-1]
    op, manager, w = torch.ops.tefl.rmsnorm_fwd, tefl.get_manager(), torch.ones(4)
    for name, fn in (("apply", apply), ("leaves", leaves)):
        impl = tefl.OpImpl("rmsnorm_fwd", f"vendor.{name}", "vendor", fn, vendor=name, priority=900)
        tefl.get_registry().register_impl(impl)
    for name in ("apply", "leaves"):
        with tefl.policy_context(tefl.SelectionPolicy(per_op_order={"rmsnorm_fwd": [f"vendor:{name}"]})):
            for _ in range(CALLS):
                x = torch.randn(3, 4, requires_grad=True)
                with torch.no_grad():
                    assert not any(result.requires_grad for result in op(x, w)), "no_grad"
                assert not any(result.requires_grad for result in manager.call("rmsnorm_fwd", x, w)), "call"
                y, rsigma = op(x, w)
                assert y.requires_grad and not rsigma.requires_grad, "rsigma"
                y.square().sum().backward()
                want = torch.nn.functional.rms_norm(x, (4,), w, 1e-5).square().sum()
                torch.testing.assert_close(x.grad, torch.autograd.grad(want, x)[0])
    assert kept and all(leaf.grad is None for leaves in kept for leaf in leaves), "leaf"
    print(tefl.dispatch.native.is_attached())
"""


def test_in_python(fresh_python, unbuilt: Path) -> None:
    code = "import sys; sys.path.insert(0, sys.argv[1])\n" + textwrap.dedent(CODE.replace("CALLS", "3"))
    assert fresh_python(args=["-c", code, str(unbuilt)]).stdout.split() == ["False"]


def test_in_the_compiled_router(fresh_python) -> None:
    fresh_python(textwrap.dedent(CODE.replace("CALLS", "3")))


def test_where_the_compiled_router_asks_python(fresh_python) -> None:
    within = "with tefl.record():\n" + textwrap.indent(textwrap.dedent(CODE.replace("CALLS", "3")), "    ")
    fresh_python("import tefl\n" + within)
