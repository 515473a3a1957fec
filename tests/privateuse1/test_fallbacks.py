"""What copying for operators without a kernel comes to: counted for each operator, and noticed once."""

from __future__ import annotations

from interpreters import CLAIM


def test_only_the_bytes_that_an_operator_uses_are_copied(opaque):
    assert opaque(
        """
        big = torch.zeros(1 << 20, device="maca")
        reset_fallbacks()
        big[7:9].add_(1)
        big[3].item()
        row = fallbacks()
        print(row.of("aten::add_.Tensor")[1:], row.of("aten::_local_scalar_dense")[1:],
              sum(r.bytes_copied for r in row))
        """
    ).endswith("(1, 8, 8) (1, 4, 0) 20")


def test_attention_is_chosen_without_copying_for_the_choice(opaque):
    assert opaque(
        """
        torch.manual_seed(0)
        q = torch.randn(2, 2, 8, 16)
        x = q.to("maca")
        reset_fallbacks()
        result = torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)
        close(result.cpu(), torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True))
        print(sorted(row.op for row in fallbacks()))
        """
    ).endswith("['aten::_scaled_dot_product_flash_attention_for_cpu']")


def test_each_operators_copies_are_counted_in_a_table(opaque):
    out = opaque(
        """
        x = torch.ones(4, device="maca")
        reset_fallbacks()
        x.exp(), x.exp(), x + x
        table = fallbacks()
        print([tuple(row) for row in table], table[0].bytes_copied, tuple(table.of("aten::sub.Tensor")))
        print(table)
        reset_fallbacks()
        print(len(fallbacks()))
        """,
        TEFL_LOG_LEVEL="WARNING",
    ).splitlines()
    assert out[0] == (
        "[('aten::exp', 2, 32, 32), ('aten::add.Tensor', 1, 16, 16)] 64 ('aten::sub.Tensor', 0, 0, 0)"
    )
    assert [line.split() for line in out[1:]] == [
        ["op", "calls", "to", "host", "to", "device", "bytes"],
        ["aten::exp", "2", "32", "32"],
        ["aten::add.Tensor", "1", "16", "16"],
        ["0"],
    ]


def test_an_operator_is_noticed_once_on_the_log_from_whichever_thread(opaque):
    out = opaque(
        """
        import logging, threading
        lines = []
        handler = logging.Handler()
        handler.emit = lambda record: lines.append(record.getMessage())
        logging.getLogger("TE-FL").addHandler(handler)
        x = torch.ones(4, device="maca", requires_grad=True)
        def work():
            for _ in range(3):
                (x.exp() * 2).sum().backward()
        threads = [threading.Thread(target=work) for _ in range(4)]
        [t.start() for t in threads], [t.join() for t in threads]
        ops = [line.split()[0] for line in lines if "has no kernel for this device" in line]
        print(len(ops) == len(set(ops)), ops.count("aten::exp"), "fallbacks()" in lines[0])
        """
    )
    assert out.endswith("True 1 True")


def test_a_device_with_an_alias_copies_nothing(python):
    assert python(CLAIM + "torch.ones(3, device='maca').exp().sum().item(); print(fallbacks())").endswith(
        "no operator ran on copies in host memory"
    )


def test_a_vendors_own_kernels_stay_and_are_not_copied_for(python):
    out = python(
        """
        import torch
        from torch.library import Library
        from tefl.privateuse1 import PrivateUse1Backend, fallbacks, register_backend
        seen = []
        def kernel(name):
            def run(*arguments, **keywords):
                seen.append(name)
                return arguments[1] if name == "_copy_from" else arguments[0].detach()
            return run
        def register():
            library = Library("aten", "IMPL")
            for name in ("_copy_from", "fill_.Scalar", "view", "_reshape_alias"):
                library.impl(name, kernel(name), "PrivateUse1")
            return library
        register_backend(PrivateUse1Backend("maca", "sim", register_kernels=register))
        x = torch.empty(3, device="maca")
        x.fill_(1), x.view(3), x.copy_(torch.ones(3))
        print(seen, len(fallbacks()))
        """,
        TEFL_SIM_OPAQUE="1",
    )
    assert out == "['fill_.Scalar', 'view', '_copy_from'] 0"
