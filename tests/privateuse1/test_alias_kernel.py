"""Every operator runs on the device's memory, with CUDA's rules on overlap, devices, out= and autocast."""

from __future__ import annotations

import itertools

import pytest
import torch
from claimed import ALIAS, OTHER

pytestmark = pytest.mark.usefixtures("maca")

SAME_DEVICE = "Expected all tensors to be on the same device, but found at least two devices, {} and {}!"


# ------------------------------------------------------------------------- operands that share memory --


def test_an_in_place_operator_sees_that_its_operands_overlap():
    x = torch.arange(8.0, device="maca")
    with pytest.raises(RuntimeError, match="unsupported operation: some elements of the input tensor"):
        x[1:].add_(x[:-1])
    assert x.tolist() == list(range(8))


def test_an_operator_sees_that_out_overlaps_an_input():
    x = torch.arange(8.0, device="maca")
    with pytest.raises(RuntimeError, match="unsupported operation"):
        torch.add(x[1:], 1, out=x[:-1])


def test_a_tensor_given_twice_is_one_tensor_to_the_kernel():
    x = torch.arange(4.0, device="maca")
    assert x.add_(x) is x
    assert torch.mul(x, x, out=x) is x
    assert x.tolist() == [0, 4, 16, 36]


def test_internal_overlap_is_refused_as_on_the_cpu():
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
        torch.zeros(1, device="maca").expand(3).add_(1)


# ------------------------------------------------------------------------------- whose tensor comes back --


def test_out_is_the_callers_tensor_and_takes_the_results_shape():
    out = torch.empty(0, device="maca")
    storage = out.untyped_storage()
    result = torch.add(torch.ones(2, 3, device="maca"), 1, out=out)
    assert result is out
    assert out.tolist() == [[2, 2, 2], [2, 2, 2]]
    assert storage.nbytes() == 24
    assert storage.data_ptr() == out.data_ptr()


def test_several_outs_are_resized_at_once():
    values, indices = torch.empty(0, device="maca"), torch.empty(0, dtype=torch.int64, device="maca")
    result = torch.sort(torch.tensor([3.0, 1, 2], device="maca"), out=(values, indices))
    assert result[0] is values
    assert result[1] is indices
    assert (values.tolist(), indices.tolist()) == ([1, 2, 3], [1, 2, 0])


def test_resize_keeps_what_fits_and_the_device():
    x = torch.arange(4.0, device=OTHER)
    assert x.resize_(6) is x
    assert x[:4].tolist() == [0, 1, 2, 3]
    assert x.device == torch.device(OTHER)
    assert x.untyped_storage().device == x.device


def test_two_views_of_a_storage_that_grows_stay_views_of_it():
    x = torch.arange(4.0, device="maca")
    view = x[:2]
    x.resize_(100)
    x[0] = 9
    assert view[0].item() == 9


def test_a_result_in_the_operands_memory_shares_the_operands_storage():
    x = torch.zeros(3, 4, device="maca")
    with torch.library._scoped_library("tefl_test_alias", "DEF") as library:
        library.define("row(Tensor(a) x) -> Tensor(a)")
        library.impl("row", lambda x: x[1], ALIAS.upper())
        row = torch.ops.tefl_test_alias.row(x)
    row.fill_(2)
    assert row.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert x.sum().item() == 8


def test_results_that_share_new_memory_share_one_storage():
    with torch.library._scoped_library("tefl_test_alias", "DEF") as library:
        library.define("pair(Tensor x) -> (Tensor, Tensor)")
        library.impl("pair", lambda x: (lambda y: (y, y[1:]))(x + 1), ALIAS.upper())
        whole, rest = torch.ops.tefl_test_alias.pair(torch.zeros(3, device=OTHER))
    rest.fill_(7)
    assert whole.tolist() == [1, 7, 7]
    assert whole.device == rest.device == torch.device(OTHER)


def test_results_land_on_the_operands_device_whichever_is_current(maca):
    with maca.device(0):
        results = [
            torch.ones(2, device="maca:1") + 1,
            torch.nonzero(torch.ones(2, device="maca:1")),
            torch.empty(0, device="maca:1").sum(),
            torch.zeros(0, 3, device="maca:1").clone(),
            *torch.ones(2, 2, device="maca:1").sort(),
        ]
    assert {r.device for r in results} == {torch.device("maca:1")}
    assert {r.untyped_storage().device for r in results} == {torch.device("maca:1")}


# ------------------------------------------------------------------------------ kinds of arguments --


def test_lists_of_tensors_go_in_and_come_back():
    xs = [torch.full((2,), float(i), device="maca") for i in range(40)]  # more than are searched linearly
    assert torch.cat(xs).tolist() == [i for i in range(40) for _ in range(2)]
    sums = torch._foreach_add(xs, xs)
    assert [s[0].item() for s in sums] == [2 * i for i in range(40)]
    torch._foreach_mul_(xs, 3)
    assert [x[1].item() for x in xs] == [3 * i for i in range(40)]
    assert {s.device for s in sums} == {torch.device("maca:0")}


def test_optional_tensors_and_lists_of_them_may_be_absent():
    x = torch.arange(6.0, device="maca").reshape(2, 3)
    rows = torch.tensor([1, 0], device="maca")
    assert torch.ops.aten.index.Tensor(x, [None, rows]).tolist() == [[1, 0], [4, 3]]
    assert torch.native_layer_norm(x, [3], None, None, 0.0)[0].device == x.device


def test_a_python_number_does_not_promote_a_device_tensor():
    half = torch.ones(2, dtype=torch.float16, device="maca")
    assert (half * 2.5).dtype == torch.float16
    assert torch.where(half > 0, half, 1.5).dtype == torch.float16
    assert torch.result_type(half, torch.tensor(1.0, device="maca")) == torch.float16
    assert torch.ops.aten.where.ScalarOther(half > 0, half, 1.5).dtype == torch.float16


def test_an_absent_gradient_stays_absent():
    x = torch.randn(2, 3, device="maca", requires_grad=True)
    y = torch.nn.functional.layer_norm(x, (3,))
    y.sum().backward()
    assert x.grad.device == x.device


# ----------------------------------------------------------------------------------- mixed devices --


PAIRS = list(itertools.permutations(["cpu", "maca:0", "maca:1"], 2))
BINARY = {
    "add": torch.add,
    "cat": lambda a, b: torch.cat([a, b]),
    "mm": torch.mm,
    "out": lambda a, b: torch.add(a, a, out=b),
    "in place": lambda a, b: a.add_(b),
    "where": lambda a, b: torch.where(a > 0, a, b),
    "foreach": lambda a, b: torch._foreach_add([a], [b]),
    "linear": torch.nn.functional.linear,
}


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("pair", PAIRS, ids=" and ".join)
def test_operands_on_two_devices_are_an_error_that_names_both(name, pair):
    a, b = (torch.ones(2, 2, device=device) for device in pair)
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device") as caught:
        BINARY[name](a, b)
    assert all(device in str(caught.value) for device in pair)


def test_the_error_names_operator_and_argument():
    with pytest.raises(RuntimeError) as caught:
        torch.ones(2, 2, device="maca") @ torch.ones(2, 2)
    assert SAME_DEVICE.format("maca:0", "cpu") in str(caught.value)
    assert "argument 'mat2' of aten::mm" in str(caught.value)


def test_a_mismatch_changes_nothing():
    x = torch.ones(2, device="maca")
    with pytest.raises(RuntimeError, match="same device"):
        x.add_(torch.ones(2))
    assert x.tolist() == [1, 1]


def test_a_number_on_the_cpu_may_meet_device_tensors():
    x = torch.ones(2, device=OTHER)
    for result in (x + torch.tensor(2.0), torch.tensor(2.0) + x, x.add_(torch.tensor(2.0)) - 0):
        assert result.device == torch.device(OTHER)
        assert result.tolist() == [3, 3]


@pytest.mark.parametrize(
    ("number", "other"),
    [("maca:0", "cpu"), ("maca:1", "maca:0")],
    ids=["a device number and a CPU tensor", "a number of another device"],
)
def test_a_number_on_a_device_may_not_meet_tensors_elsewhere(number, other):
    with pytest.raises(RuntimeError, match="same device"):
        torch.tensor(2.0, device=number) + torch.ones(2, device=other)


def test_a_number_on_the_cpu_cannot_take_a_devices_result():
    with pytest.raises(RuntimeError, match="same device"):
        torch.tensor(0.0).add_(torch.tensor(1.0, device="maca"))
    with pytest.raises(RuntimeError, match="same device"):
        torch.sum(torch.ones(2, device="maca"), 0, out=torch.tensor(0.0))


def test_indices_may_lie_on_the_cpu():
    x = torch.arange(6.0, device="maca")
    rows = torch.tensor([4, 0])
    assert x[rows].tolist() == [4, 0]
    assert x[rows].device == x.device
    x[rows] = torch.tensor([10.0, 20.0], device="maca")
    x.index_put_((torch.tensor([1]),), torch.tensor(30.0))
    assert x.tolist() == [20, 30, 2, 3, 10, 5]


# ------------------------------------------------------------------------------------ lazy tensors --


def test_conjugated_and_negated_views_compute_as_on_the_cpu():
    cpu = torch.randn(3, 3, dtype=torch.complex64)
    x = cpu.to("maca")
    for f in (
        lambda t: t.conj() @ t.mH,
        lambda t: t.conj().imag * 2,
        lambda t: t.conj().clone(),
        lambda t: torch.resolve_conj(t.conj()),
        lambda t: t.clone().conj().mul_(2j),
        lambda t: torch.view_as_real(t.conj().resolve_conj()),
        lambda t: torch._neg_view(t.real) + 1,
    ):
        torch.testing.assert_close(f(x).cpu(), f(cpu))
    assert x.conj().is_conj()
    assert x.conj().imag.is_neg()


def test_zero_tensors_of_forward_mode_stay_without_memory():
    zero = torch._efficientzerotensor((2, 3), device=OTHER)
    assert zero._is_zerotensor()
    assert zero.device == torch.device(OTHER)
    assert (zero + torch.ones(2, 3, device=OTHER)).tolist() == [[1, 1, 1], [1, 1, 1]]
    assert torch.ones(2, 3, device=OTHER).copy_(zero).tolist() == [[0, 0, 0], [0, 0, 0]]
    assert zero.cpu().tolist() == [[0, 0, 0], [0, 0, 0]]
    with pytest.raises(RuntimeError, match="ZeroTensors are immutable"):
        zero.copy_(torch.ones(2, 3, device=OTHER))


def test_a_copy_on_write_clone_is_its_own_after_a_write():
    x = torch.arange(4.0, device="maca")
    lazy = torch._lazy_clone(x)
    x.add_(10)
    assert lazy.tolist() == [0, 1, 2, 3]
    lazy.mul_(2)
    assert x.tolist() == [10, 11, 12, 13]


# --------------------------------------------------------------------------- autocast and other libraries --


def test_autocast_of_the_cpu_does_not_reach_the_device():
    x = torch.randn(4, 4, device="maca")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (x @ x).dtype == torch.float32
        assert (x.cpu() @ x.cpu()).dtype == torch.bfloat16


def test_autocast_of_the_device_casts_by_torchs_lists():
    x, half = torch.randn(4, 4, device="maca"), torch.ones(4, 4, dtype=torch.bfloat16, device="maca")
    with torch.autocast("maca"):
        assert (x @ x).dtype == torch.bfloat16
        assert torch.nn.functional.linear(x, x).dtype == torch.bfloat16
        assert torch.exp(half).dtype == torch.float32
        assert half.sum().dtype == torch.float32
        assert half.norm().dtype == torch.float32
        assert torch.addcmul(x, half, half).dtype == torch.float32
        assert (half + 1).dtype == torch.bfloat16
        with pytest.raises(RuntimeError, match="unsafe to autocast"):
            torch.nn.functional.binary_cross_entropy(half.sigmoid(), half)
        assert (x.cpu() @ x.cpu()).dtype == torch.float32
    assert (x @ x).dtype == torch.float32


def test_another_librarys_operator_runs_by_its_kernel_of_the_alias_device():
    with torch.library._scoped_library("tefl_test_alias", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, ALIAS.upper())
        result = torch.ops.tefl_test_alias.twice(torch.ones(2, device=OTHER))
        assert result.device == torch.device(OTHER)
        assert result.tolist() == [2, 2]


def test_an_operator_without_any_kernel_says_where_it_was_looked_for():
    with torch.library._scoped_library("tefl_test_alias", "DEF") as library:
        library.define("nowhere(Tensor x) -> Tensor")
        with pytest.raises(NotImplementedError, match=rf"nowhere has no kernel for maca, nor for {ALIAS}"):
            torch.ops.tefl_test_alias.nowhere(torch.ones(2, device="maca"))


# ------------------------------------------------------------------------------------- alias tensors --


def test_as_alias_shows_the_same_memory_on_the_alias_device():
    from tefl.privateuse1 import as_alias, from_alias

    x = torch.arange(6.0, device=OTHER).reshape(2, 3).t()
    alias = as_alias(x)
    assert (alias.device.type, alias.stride(), alias.data_ptr()) == (ALIAS, x.stride(), x.data_ptr())
    alias.add_(1)
    assert x.tolist() == [[1, 4], [2, 5], [3, 6]]
    back = from_alias(alias[1:])
    assert back.device == torch.device(OTHER)
    back.zero_()
    assert x.tolist() == [[1, 4], [0, 0], [0, 0]]


def test_an_alias_keeps_its_memory_alive():
    from tefl.privateuse1 import as_alias

    alias = as_alias(torch.full((1000,), 3.0, device="maca"))
    torch.full((1000,), 4.0, device="maca")
    assert alias.eq(3).all()


def test_aliases_are_made_of_the_right_devices_tensors_only():
    from tefl.privateuse1 import as_alias, from_alias

    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], device="maca")
    with pytest.raises(RuntimeError, match=r"as_alias\(\) takes a strided tensor on maca, got a nested one"):
        as_alias(nested)
    quantized = torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8).to(ALIAS)
    with pytest.raises(
        RuntimeError, match=rf"from_alias\(\) takes a strided tensor on {ALIAS}, .* a quantized"
    ):
        from_alias(quantized)
    with pytest.raises(RuntimeError, match=r"as_alias\(\) takes a strided tensor on maca, got .* on cpu"):
        as_alias(torch.ones(2))
    wrong = {"cpu": "ordinary host memory, not in memory of maca", "cuda": r"a strided tensor on cuda"}
    with pytest.raises(RuntimeError, match=wrong[ALIAS]):
        from_alias(torch.ones(2))
    with pytest.raises(
        RuntimeError, match=r"from_alias\(\) was asked for maca:0 and got a tensor in memory of maca:1"
    ):
        from_alias(as_alias(torch.ones(2, device="maca:1")), 0)
