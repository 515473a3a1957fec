"""A device whose memory can be computed on nowhere else: operators run on copies in host memory.

The simulator is opaque here, so that whatever touches device memory on the host ends the process.
"""

from __future__ import annotations


def test_operators_compute_on_copies_and_land_on_the_operands_device(opaque):
    assert opaque(
        """
        torch.manual_seed(0)
        a, b = torch.randn(5, 6), torch.randn(6, 7)
        for device in ("maca:0", "maca:1"):
            x, y = a.to(device), b.to(device)
            for f in (lambda x, y: x @ y, lambda x, y: torch.cat([x, x.exp()]), lambda x, y: x.sort(dim=1)[1],
                      lambda x, y: x.t().contiguous(), lambda x, y: x.to(torch.float64),
                      lambda x, y: x[1:3, ::2] + 1):
                result = f(x, y)
                assert result.device == torch.device(device) == result.untyped_storage().device
                close(result.cpu(), f(a, b), rtol=0, atol=0)
        print("ok")
        """
    ).endswith("ok")


def test_results_of_writes_in_place_come_back_also_through_views(opaque):
    assert opaque(
        """
        cpu = torch.arange(24.0).reshape(4, 6)
        x = cpu.to("maca")
        for t in (x, cpu):
            t.add_(1)
            t[1].mul_(3)
            t[:, 2].fill_(-1)
            t.t()[3:5].zero_()
            t.view(-1)[::5].sub_(7)
            t.unfold(1, 2, 4).mul_(2)
            t.as_strided((2, 2), (12, 3), 1).copy_(torch.ones(2, 2))
            torch.view_as_complex(t.view(4, 3, 2)).conj().mul_(2j)
        close(x.cpu(), cpu, rtol=0, atol=0)
        print("ok")
        """
    ).endswith("ok")


def test_a_column_is_written_back_without_what_lies_between(opaque):
    # Two threads write columns of one matrix; a copy of the whole range would undo the other's.
    assert opaque(
        """
        import threading
        x = torch.zeros(64, 8, device="maca")
        def work(column):
            with torch.Stream("maca"):
                for _ in range(25):
                    x[:, column].add_(1)
        threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
        [t.start() for t in threads], [t.join() for t in threads]
        print(x.unique().tolist())
        """
    ).endswith("[25.0]")


def test_out_is_the_callers_tensor_and_grows_with_its_storage(opaque):
    assert opaque(
        """
        out, storage = (lambda t: (t, t.untyped_storage()))(torch.empty(0, device="maca:1"))
        assert torch.add(torch.ones(2, 3, device="maca:1"), 1, out=out) is out
        assert (out.tolist(), storage.nbytes(), storage.data_ptr()) == ([[2.0] * 3] * 2, 24, out.data_ptr())
        values, indices = torch.empty(0, device="maca"), torch.empty(0, dtype=torch.int64, device="maca")
        torch.sort(torch.tensor([3.0, 1, 2], device="maca"), out=(values, indices))
        assert (values.tolist(), indices.tolist()) == ([1, 2, 3], [1, 2, 0])
        grid = torch.zeros(3, 3, device="maca")
        torch.add(torch.ones(3, device="maca"), 1, out=grid[:, 1])
        assert grid.tolist() == [[0, 2, 0]] * 3
        print("ok")
        """
    ).endswith("ok")


def test_resize_keeps_what_the_storage_held_beyond_the_tensor(opaque):
    assert opaque(
        """
        x = torch.arange(6.0, device="maca")
        view = x[1:3]
        view.resize_(4)
        assert view.tolist() == [1, 2, 3, 4]
        x.resize_(100)
        assert x[:6].tolist() == [0, 1, 2, 3, 4, 5]
        x[1] = 9
        assert view[0].item() == 9
        y = torch.empty(0, device="maca").set_(x.untyped_storage(), 2, (2, 2), (2, 1))
        assert y.tolist() == [[2, 3], [4, 5]]
        torch.use_deterministic_algorithms(True)
        w = torch.arange(2.0, device="maca:1").resize_(4)
        assert w[:2].tolist() == [0, 1] and w[2:].isnan().all() and w.device.index == 1
        z = torch.arange(3.0, device="maca")
        z.set_(z.untyped_storage(), 0, (2, 8), (8, 1))
        assert z[0, :3].tolist() == [0, 1, 2]
        print("ok")
        """
    ).endswith("ok")


def test_operands_that_share_memory_are_copied_once_and_overlap(opaque):
    assert opaque(
        """
        x = torch.arange(8.0, device="maca")
        for f in (lambda: x[1:].add_(x[:-1]), lambda: torch.add(x[1:], 1, out=x[:-1])):
            try:
                f()
            except RuntimeError as error:
                assert "unsupported operation" in str(error)
            else:
                raise AssertionError("an overlap was not seen")
        assert x.tolist() == list(range(8))
        reset_fallbacks()
        x.mul_(x)
        x[:4].add_(x[4:])
        rows = fallbacks()
        print(rows.of("aten::mul_.Tensor")[1:], rows.of("aten::add_.Tensor")[1:], x.tolist())
        """
    ).endswith("(1, 32, 32) (1, 32, 16) [16.0, 26.0, 40.0, 58.0, 16.0, 25.0, 36.0, 49.0]")


def test_random_numbers_come_from_the_devices_generator(opaque):
    assert opaque(
        """
        torch.manual_seed(3)
        expected = torch.rand(4)
        torch.maca.manual_seed_all(3)
        before = torch.get_rng_state()
        first, second = torch.rand(4, device="maca:0"), torch.rand(4, device="maca:1")
        close(first.cpu(), expected), close(second.cpu(), expected)
        assert torch.equal(torch.get_rng_state(), before)
        own = torch.Generator("maca:1").manual_seed(3)
        close(torch.empty(4, device="maca:1").uniform_(generator=own).cpu(), expected)
        mask = torch.nn.functional.dropout(torch.ones(1000, device="maca"), 0.5)
        assert 300 < mask.count_nonzero().item() < 700
        print("ok")
        """
    ).endswith("ok")


def test_running_statistics_are_written_though_no_schema_says_so(opaque):
    assert opaque(
        """
        torch.manual_seed(0)
        cpu, x = torch.nn.BatchNorm1d(4), torch.randn(8, 4)
        import copy
        device = copy.deepcopy(cpu).to("maca")
        for _ in range(2):
            close(device(x.to("maca")).cpu(), cpu(x))
        close(device.running_mean.cpu(), cpu.running_mean), close(device.running_var.cpu(), cpu.running_var)
        assert device.num_batches_tracked.item() == 2
        assert torch.batch_norm_update_stats(x.to("maca"), device.running_mean, device.running_var, 0.5)
        torch.batch_norm_update_stats(x, cpu.running_mean, cpu.running_var, 0.5)
        close(device.running_mean.cpu(), cpu.running_mean)
        print("ok")
        """
    ).endswith("ok")


def test_a_model_trains_as_on_the_cpu(opaque):
    assert opaque(
        """
        import copy
        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.conv, self.lstm = torch.nn.Conv1d(3, 8, 3), torch.nn.LSTM(8, 16, batch_first=True)
                self.attention = torch.nn.MultiheadAttention(16, 2, batch_first=True)
                self.out = torch.nn.Linear(16, 5)
            def forward(self, x):
                h, _ = self.lstm(self.conv(x).transpose(1, 2))
                return self.out(self.attention(h, h, h)[0].mean(1))
        torch.manual_seed(0)
        cpu = Net()
        x, target = torch.randn(4, 3, 10), torch.randint(5, (4,))
        device = copy.deepcopy(cpu).to("maca:1")
        losses = []
        for model, place in ((cpu, "cpu"), (device, "maca:1")):
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
            for _ in range(3):
                optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(model(x.to(place)), target.to(place))
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                losses.append(loss.item())
        close(torch.tensor(losses[:3]), torch.tensor(losses[3:]))
        print("ok")
        """
    ).endswith("ok")


def test_copies_between_places_convert_and_broadcast(opaque):
    assert opaque(
        """
        cpu = torch.arange(12.0).reshape(3, 4)
        x = cpu.to("maca:0")
        close(x.t().to("maca:1", torch.float16).cpu(), cpu.t().half())
        close(x[:, ::2].cpu(), cpu[:, ::2])
        y = torch.zeros(3, 4, 2, device="maca:1")
        y[..., 1] = x
        y[..., 0] = torch.arange(4)
        close(y[..., 1].cpu(), cpu), close(y[..., 0].cpu(), torch.arange(4.0).expand(3, 4))
        z = torch.arange(4.0, device="maca")
        z[1:].copy_(z[:-1].clone()), close(z.cpu(), torch.tensor([0.0, 0, 1, 2]))
        c = torch.randn(3, dtype=torch.complex64)
        close(c.to("maca").conj().cpu(), c.conj())
        close(c.to("maca").conj().imag.clone().cpu(), c.conj().imag)
        print("ok")
        """
    ).endswith("ok")


def test_an_operator_that_fails_writes_nothing_back_and_may_be_tried_again(opaque):
    assert opaque(
        """
        x = torch.ones(3, device="maca")
        for f in (lambda: x.add_(torch.ones(4, device="maca")), lambda: x.add_(torch.ones(3)),
                  lambda: torch.linalg.cholesky(torch.zeros(2, 2, device="maca"))):
            try:
                f()
            except RuntimeError as error:
                print(type(error).__name__, str(error).splitlines()[0][:60])
        print(x.tolist())
        """
    ).splitlines()[-4:] == [
        "RuntimeError The size of tensor a (3) must match the size of tensor b (4)",
        "RuntimeError Expected all tensors to be on the same device, but found at ",
        "_LinAlgError linalg.cholesky: The factorization could not be completed be",
        "[1.0, 1.0, 1.0]",
    ]


def test_an_alias_tensor_is_refused_with_what_to_do(opaque):
    assert opaque(
        """
        from tefl.privateuse1 import as_alias, from_alias
        for f in (lambda: as_alias(torch.ones(1, device="maca")), lambda: from_alias(torch.ones(1))):
            try:
                f()
            except RuntimeError as error:
                print(str(error).splitlines()[0])
        """
    ).splitlines()[-2:] == [
        f"{name}(): the memory of maca can be computed on nowhere else, so that no other device has an alias "
        'of it; copy with .cpu() and .to("maca")'
        for name in ("as_alias", "from_alias")
    ]


def test_it_autoloads_saves_loads_and_runs_the_ops_of_tefl(fresh_python, site, tmp_path):
    site.install_tefl_hook()
    code = f"""
        import torch
        x = torch.randn(3, 8, device="sim:1")
        torch.save(x, {str(tmp_path / "x.pt")!r})
        y = torch.load({str(tmp_path / "x.pt")!r})
        assert y.device == x.device and torch.equal(x, y)
        import tefl
        out = torch.ops.tefl.rmsnorm_fwd(x, torch.ones(8, device="sim:1"))[0]
        expected = torch.nn.functional.rms_norm(x.cpu(), (8,), eps=1e-5)
        torch.testing.assert_close(out.cpu(), expected)
        print(repr(torch.ones(2, device="sim")))
        """
    environment = site.environment(TEFL_PROVIDER="sim", TEFL_SIM_OPAQUE="1", TEFL_LOG_LEVEL="ERROR")
    assert fresh_python(code, **environment) == "tensor([1., 1.], device='sim:0')"
