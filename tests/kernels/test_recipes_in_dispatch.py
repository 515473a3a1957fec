"""What dispatch promises holds for implementations by recipe as for others: checks, fallback, autograd."""

from __future__ import annotations

import textwrap

from .conftest import Sim


def test_checking_recording_and_contexts(sim: Sim) -> None:
    sim("""
        register(both)
        register(reference, "reference.torch")
        a, b = random(4, 6), random(4, 6)
        for _ in range(3):
            check(a, b)
        with tefl.record() as calls:
            check(a, b)
        assert calls == {("both", "vendor.acme", "maca"): 1}, calls
        with tefl.with_preference("reference"), tefl.record() as calls:
            check(a, b)
        assert calls == {("both", "reference.torch", "maca"): 1}, calls
        with tefl.with_denied_vendors("acme"):
            for _ in range(2):
                check(a, b)
        tefl.get_registry().unregister("vendor.acme", "both")
        before = len(written)
        for _ in range(2):
            check(a, b)
        assert len(written) == before
    """)


def test_under_TEFL_CHECK_every_call_is_compared_with_the_reference(sim: Sim) -> None:
    out = sim(
        """
        @by_recipe
        def wrong(a, b, scale=2.0):
            return both.write(a, b, scale + (len(written) == 3))
        register(wrong)
        a, b = random(4, 6), random(4, 6)
        for _ in range(3):
            check(a, b)
        print(raised(lambda: check(a, b)))
        """,
        TEFL_CHECK="1",
    )
    assert out.startswith(
        "Deviation: Op 'both': implementation 'vendor.acme', result 0 differs from the reference"
    )


def test_results_of_another_form_than_promised_are_brought_to_it(sim: Sim) -> None:
    """So Python serves such calls, and one warning says what was amiss."""
    sim("""
        @by_recipe
        def narrow(a, b, scale=2.0):
            written.append(1)
            total, out = Buffer((1, *a.shape), torch.float32), Buffer(tuple(a.shape), torch.float32)
            return Recipe(a.device, [
                launch(add, (3,), (1,), total, a, b, a.numel()),
                launch(mix, (a.numel(),), (1,), out, total, 0, 0, scale, 0.0),
            ], (out, total))
        register(narrow)
        for calls in range(1, 4):
            check(random(4, 6), random(4, 6))
            assert len(written) == 1 + calls
    """)


def test_a_tensor_that_is_no_argument_is_left_to_python(sim: Sim) -> None:
    sim("""
        zeros = torch.zeros(24, device="maca")
        @by_recipe
        def with_a_table(a, b, scale=2.0):
            written.append(1)
            recipe = both.write(a, b, scale)
            total = recipe.results[1]
            more = launch(add, (1,), (1,), total, total, zeros, 24)
            return Recipe(a.device, [recipe.launches[0], more, recipe.launches[1]], recipe.results)
        register(with_a_table)
        for _ in range(3):
            check(random(4, 6), random(4, 6))
    """)


def test_a_launch_that_fails_is_fallen_back_from_once(sim: Sim) -> None:
    """The kernel is right on one device and, for want of a parameter, not on the other."""
    out = sim("""
        import logging
        seen = []
        handler = logging.Handler()
        handler.emit = lambda record: seen.append(record.getMessage())
        logging.getLogger("TE-FL").addHandler(handler)
        short = BinaryKernel(library, "add", "ppp")

        @by_recipe
        def fragile(a, b, scale=2.0):
            written.append(a.data_ptr() % 16)
            recipe = both.write(a, b, scale)
            if len(written) < 4:  # the first two calls and the hand-over of the first
                return recipe
            total = recipe.results[1]
            failing = launch(short, (3,), (1,), total, a, b)
            return Recipe(a.device, [failing, recipe.launches[1]], recipe.results)
        register(fragile)
        register(reference, "reference.torch")
        with tefl.record() as calls:
            for _ in range(4):
                check(random(4, 6), random(4, 6))
        assert calls[("both", "reference.torch", "maca")] >= 1, calls
        print([line for line in seen if "failed" in line])
        with tefl.with_strict_mode():
            print(raised(lambda: check(random(4, 6), random(4, 6))))
    """)
    assert "'vendor.acme' failed on maca:0 (float32, float32)" in out
    assert "kernel 'add' takes 4 parameters, got 3" in out
    assert "while launching kernel 'add' on maca:0: grid (3, 1, 1), block (1, 1, 1)" in out


def test_an_asynchronous_error_and_want_of_memory_are_the_callers(sim: Sim) -> None:
    out = sim(
        """
        register(both)
        register(reference, "reference.torch")
        a, b = random(4, 6), random(4, 6)
        check(a, b), check(a, b)
        big = random(1 << 20)
        check(big, big), torch.maca.synchronize()
        torch.ops.tefl.both(big, big)
        kept = []
        print(raised(lambda: [kept.append(torch.ops.tefl.both(big, big)) for _ in range(100)]))
        kept.clear()
        BinaryKernel(library, "fail", "p")((1,), (1,), a)
        torch.ops.tefl.both(a, b)
        with tefl.record() as calls:
            torch.ops.tefl.both(a, b)
        print(raised(torch.maca.synchronize))
        assert calls == {("both", "vendor.acme", "maca"): 1}, calls
        assert "failed" not in str(tefl.explain("both", a, b))
        """,
        TEFL_SIM_CAPACITY="256M",
    )
    assert out.startswith("OutOfMemoryError")
    assert "AcceleratorError" in out
    assert "kernel 'fail' failed with code 7" in out


GRADIENTS = """
    from torch.utils.checkpoint import checkpoint
    from tefl.dispatch import Backward

    @by_recipe
    def both_bwd(grad, scale):
        written.append("backward")
        out = Buffer(tuple(grad.shape), torch.float32)
        return Recipe(grad.device, [
            launch(mix, (grad.numel(),), (1,), out, dense(grad, torch.float32), 0, 0, scale, 0.0)
        ], (out,))

    def fake_bwd(grad, scale):
        return grad.new_empty(grad.shape)

    tefl.ops.register(OpDecl(
        "sum_fwd", "test", "(Tensor a, Tensor b, float scale=2.0) -> (Tensor, Tensor)", fake, reference,
        backward=Backward("sum_bwd", (("grad", 0), ("input", "scale")), {"a": 0, "b": 0}),
    ))
    tefl.ops.register(OpDecl("sum_bwd", "test", "(Tensor grad, float scale) -> Tensor", fake_bwd, torch.mul))
    for op, fn in (("sum_fwd", both), ("sum_bwd", both_bwd)):
        tefl.get_registry().register_impl(tefl.OpImpl(op, "vendor.acme", "vendor", fn, vendor="acme"))
    op = torch.ops.tefl.sum_fwd
    a, b = random(4, 6).requires_grad_(), random(4, 6).requires_grad_()
    grad = random(4, 6)

    def right(gradients):
        for gradient in gradients:
            torch.testing.assert_close(gradient.cpu(), grad.cpu() * 3, rtol=0, atol=0)

    def gradients(function=lambda a, b: op(a, b, 3.0)[0]):
        return torch.autograd.grad(function(a, b), (a, b), grad)

    for _ in range(3):
        right(gradients())
    assert written.count("backward") == 2 and len(written) == 4, written
"""


def test_forward_and_backward_in_native_code_under_what_autograd_offers(sim: Sim) -> None:
    """Anomaly mode, hooks on saved tensors, checkpointing, torch.func, in-place changes of results."""
    sim(
        textwrap.dedent(GRADIENTS)
        + textwrap.dedent("""
        with torch.autograd.set_detect_anomaly(True):
            right(gradients())
        packed = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t):
            right(gradients(lambda a, b: op(a * 1, b, 3.0)[0]))
        right(gradients(lambda a, b: checkpoint(lambda *ab: op(*ab, 3.0)[0], a, b, use_reentrant=False)))
        _, pull = torch.func.vjp(lambda a, b: op(a, b, 3.0)[0], a.detach(), b.detach())
        right(pull(grad))
        each = torch.func.vmap(lambda a, b: op(a, b, 3.0)[0])(a.detach(), b.detach())
        torch.testing.assert_close(each, op(a, b, 3.0)[0].detach(), rtol=0, atol=0)

        def changed(a, b):
            out, total = op(a, b, 1.0)
            out *= 3
            return out
        right(gradients(changed))
        with torch.inference_mode():
            out, total = op(a, b, 3.0)
            assert out.is_inference()
        assert written.count("backward") <= 6, written
        """)
    )


def test_compiled_graphs_with_gradients(sim: Sim) -> None:
    """As AOTAutograd traces them, run by PyTorch itself, and under compiled autograd."""
    sim(
        textwrap.dedent(GRADIENTS)
        + textwrap.dedent("""
        compiled = torch.compile(lambda a, b: op(a, b, 3.0)[0], fullgraph=True, backend="aot_eager")
        for _ in range(3):
            right(gradients(compiled))
        import torch._dynamo.compiled_autograd as compiled_autograd
        for _ in range(3):
            with compiled_autograd._enable(lambda graph: torch.compile(graph, backend="eager")):
                out = op(a, b, 3.0)[0]
                right(torch.autograd.grad(out, (a, b), grad))
        """)
    )
