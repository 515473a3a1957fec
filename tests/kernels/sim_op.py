"""The simulated device, and an op with an implementation by recipe on it, for scripts in fresh interpreters.

``CLAIMED.format(library=...)`` wants the path of the library that the fixture ``sim_library`` builds; so does
``PRELUDE``, which has the op besides.
"""

CLAIMED = """
import threading, torch, tefl
from pathlib import Path
from tefl import _native
from tefl.kernels.launcher import BinaryKernel
from tefl.privateuse1 import PrivateUse1Backend, register_backend

register_backend(PrivateUse1Backend("maca", "sim"))
library = Path({library!r})
mix = BinaryKernel(library, "mix", "ppilfd")

def raised(call):
    try:
        call()
    except Exception as error:
        return f"{{type(error).__name__}}: {{error}}"
    raise AssertionError("nothing was raised")
"""

PRELUDE = (
    CLAIMED
    + """
from tefl.dispatch import OpDecl
from tefl.kernels.recipe import Buffer, Recipe, by_recipe, dense, launch

add = BinaryKernel(library, "add", "pppl")
written = []

@by_recipe
def both(a, b, scale=2.0):
    "(a + b) * scale, a + b"
    written.append(tuple(a.shape))
    total, out = (Buffer(tuple(a.shape), torch.float32, zero=a.numel() == 0) for _ in range(2))
    wide = [dense(x, torch.float32) for x in (a, b)]
    launches = [
        launch(add, (3,), (1,), total, *wide, a.numel()),
        launch(mix, (a.numel(),), (1,), out, total, 0, 0, scale, 0.0),
    ]
    return Recipe(a.device, launches if a.numel() else [], (out, total))

def reference(a, b, scale=2.0):
    return (a.float() + b.float()) * scale, a.float() + b.float()

def fake(a, b, scale=2.0):
    return a.new_empty(a.shape, dtype=torch.float32), a.new_empty(a.shape, dtype=torch.float32)

tefl.ops.register(
    OpDecl("both", "test", "(Tensor a, Tensor b, float scale=2.0) -> (Tensor, Tensor)", fake, reference)
)

def register(fn, impl_id="vendor.acme", **fields):
    kind = impl_id.partition(".")[0]
    vendor = "acme" if kind == "vendor" else None
    tefl.get_registry().register_impl(tefl.OpImpl("both", impl_id, kind, fn, vendor=vendor, **fields))

def check(a, b, *scale):
    "The op against plain PyTorch on the CPU."
    got, want = torch.ops.tefl.both(a, b, *scale), reference(a.cpu(), b.cpu(), *scale)
    for have, expected in zip(got, want, strict=True):
        assert have.device == a.device
        assert have.is_contiguous()
        torch.testing.assert_close(have.cpu(), expected, rtol=0, atol=0)

def random(*shape, index=0, **options):
    return torch.randn(*shape, **options).to(f"maca:{{index}}")
"""
)
