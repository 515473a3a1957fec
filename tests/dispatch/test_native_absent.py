"""Where the compiled part was not built: the same ops, in Python."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest

import tefl


def test_ops_run_and_are_differentiated_under_the_policy_of_their_forward(
    fresh_python, unbuilt: Path
) -> None:
    code = """
        import sys
        sys.path.insert(0, sys.argv[1])  # before the folder that this runs in
        import torch, tefl
        from torch.nn.functional import rms_norm
        assert not tefl.dispatch.native.is_attached() and "tefl._C" not in sys.modules
        print(tefl.__file__)
        x, w = torch.randn(3, 4, requires_grad=True), torch.ones(4, requires_grad=True)
        registry = tefl.get_registry()
        registry.register_impl(
            tefl.OpImpl("rmsnorm_bwd", "vendor.spy", "vendor", vendor="spy", priority=900,
                        fn=lambda *a, **k: registry.get("rmsnorm_bwd", "reference.torch").fn(*a, **k))
        )
        with tefl.with_preference("vendor"):
            loss = torch.ops.tefl.rmsnorm_fwd(x, w)[0].square().sum()
        with tefl.record() as calls, tefl.with_preference("reference"):
            got = torch.autograd.grad(loss, (x, w))
        expected = torch.autograd.grad(rms_norm(x, (4,), w, 1e-5).square().sum(), (x, w))
        torch.testing.assert_close(got, expected)
        print(calls)
        try:
            torch.ops.tefl.rmsnorm_fwd(x, w[:2])
        except ValueError as error:
            print(error)
        from tefl.dispatch import Backward, OpDecl
        add = lambda x, others: x + sum(others)
        tefl.ops.register(OpDecl("add_bwd", "test", "(Tensor grad) -> Tensor", torch.empty_like, torch.clone))
        tefl.ops.register(OpDecl(
            "add", "test", "(Tensor x, Tensor[] others) -> Tensor", lambda x, _: torch.empty_like(x), add,
            backward=Backward("add_bwd", (("grad", 0),), {"x": 0}),
        ))
        for op, fn in (("add", add), ("add_bwd", torch.clone)):
            registry.register_impl(tefl.OpImpl(op, "reference.torch", "reference", fn))
        torch.ops.tefl.add(w, [w.detach()]).sum().backward()
        assert w.grad.tolist() == [1.0] * 4
        try:
            torch.ops.tefl.add(w, [w.detach(), w])
        except NotImplementedError as error:
            print(error)
    """
    done = fresh_python(args=["-c", textwrap.dedent(code), str(unbuilt)])
    where, calls, error, dropped = done.stdout.splitlines()
    assert where.startswith(str(unbuilt))
    assert calls == "{('rmsnorm_bwd', 'vendor.spy', 'cpu'): 1}"
    assert "weight has shape (2,)" in error
    assert "tefl::add has no derivative with regard to the tensors in the list others" in dropped


def test_info_says_so_once(fresh_python, unbuilt: Path) -> None:
    code = "import sys; sys.path.insert(0, sys.argv.pop(1)); from tefl.cli import main; sys.exit(main())"
    said = "Python: the compiled part was not built"
    start = ["-c", code, str(unbuilt), "info"]  # no provider, which would want the compiled part
    assert fresh_python(args=start, TEFL_PROVIDER="none").stdout.count(said) == 1
    told = json.loads(fresh_python(args=[*start, "--json"], TEFL_PROVIDER="none").stdout)
    assert told["dispatch"] == said


@pytest.mark.skipif(not tefl.dispatch.native.is_attached(), reason="says what a build shows")
def test_info_says_where_it_is_native(fresh_python) -> None:
    told = json.loads(fresh_python(args=["-m", "tefl", "info", "--json"]).stdout)
    assert told["dispatch"] == "native"
