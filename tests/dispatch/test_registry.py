"""Registering, refusing duplicates, undoing, and taking another package's implementations."""

from __future__ import annotations

import enum
import functools
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import tefl
from tefl import OpImpl, OpManager, OpRegistry


def make(impl_id: str, op: str = "op", **fields: Any) -> OpImpl:
    return OpImpl(op, impl_id, "flagos", fields.pop("fn", print), **fields)


def ids(registry: OpRegistry, op: str = "op") -> list[str]:
    return [impl.impl_id for impl in registry.implementations(op)]


def first_function() -> None: ...


def second_function() -> None: ...


def test_a_second_implementation_of_one_name_is_refused_with_both_shown(registry: OpRegistry) -> None:
    registry.register_impl(make("default.x", fn=first_function, priority=7))
    with pytest.raises(ValueError) as caught:
        registry.register_impl(make("default.x", fn=second_function, priority=9))
    message = str(caught.value)
    assert "first_function" in message
    assert "priority=7" in message
    assert "second_function" in message
    assert "priority=9" in message
    assert registry.get("op", "default.x").fn is first_function


def test_one_name_may_serve_many_ops(registry: OpRegistry) -> None:
    registry.register_many([make("default.x", "a"), make("default.x", "b")])
    assert registry.op_names() == ("a", "b")
    assert registry.impl_ids() == ("default.x",)


def test_several_are_registered_together_or_not_at_all(registry: OpRegistry) -> None:
    registry.register_impl(make("default.taken"))
    with pytest.raises(ValueError, match=r"default\.taken"):
        registry.register_many([make("default.new"), make("default.taken")])
    assert ids(registry) == ["default.taken"]


def test_what_yields_implementations_may_register_others(registry: OpRegistry) -> None:
    def found():
        registry.register_impl(make("default.meanwhile"))
        yield make("default.yielded")

    registry.register_many(found())
    assert ids(registry) == ["default.meanwhile", "default.yielded"]


async def later(*args: Any) -> bool:
    return True


def many(*args: Any) -> Iterator[bool]:
    yield True


class Later:
    async def __call__(self, *args: Any) -> bool:
        return True


@pytest.mark.parametrize(
    "fields",
    [
        {"op_name": None},
        {"op_name": " "},
        {"impl_id": 3},
        {"impl_id": ""},
        {"impl_id": "vendor.x fast"},
        {"impl_id": "vendor|x"},
        {"impl_id": "vendor;x"},
        {"vendor": "big corp"},
        {"vendor": "x|y"},
        {"vendor": "x,y"},
        {"vendor": 3},
        {"priority": "high"},
        {"priority": float("nan")},
        {"supported_dtypes": torch.float32},
        {"supported_dtypes": ["float32"]},
        {"supported_dtypes": []},
        {"devices": [None]},
        {"devices": 0},
        {"supports": 5},
        {"supports": True},
        {"supports": "no"},
        {"is_available": 5},
        {"is_available": "no"},
    ],
    ids=str,
)
def test_a_field_that_would_break_calls_of_the_op_is_refused_when_it_is_given(fields: dict) -> None:
    (name,) = fields
    good = {"op_name": "op", "impl_id": "vendor.x", "kind": "vendor", "fn": print, "vendor": "x"}
    with pytest.raises(TypeError, match=rf"{name} must be .*, got "):
        OpImpl(**{**good, **fields})


@pytest.mark.parametrize("name", ["fn", "supports", "is_available"])
@pytest.mark.parametrize("function", [later, many, functools.partial(later), Later()], ids=range(4))
def test_a_function_that_computes_nothing_when_called_is_refused(name: str, function: object) -> None:
    fields = {"fn": print, name: function}
    with pytest.raises(TypeError, match=f"{name} must be an ordinary function, .*, got "):
        OpImpl("op", "default.x", "flagos", **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["triton", "DEFAULT", None, 3])
def test_a_kind_that_there_is_not_is_refused_with_those_that_there_are(kind: object) -> None:
    with pytest.raises(ValueError) as caught:
        OpImpl("some_op", "default.x", kind, print)  # type: ignore[arg-type]
    assert str(caught.value) == (
        f"OpImpl 'default.x' for op 'some_op': kind must be one of flagos, vendor, reference, got {kind!r}"
    )


def test_another_packages_kind_is_refused_alike(registry: OpRegistry) -> None:
    with pytest.raises(ValueError, match=r"OpImpl 'vendor\.f' for op 'op': kind must be one of flagos, "):
        registry.register_impl(foreign(kind="triton"))


@pytest.mark.parametrize("vendor", [None, "", " "])
def test_a_vendors_implementation_must_name_it(vendor: str | None) -> None:
    with pytest.raises(ValueError, match="kind 'vendor' needs vendor="):
        OpImpl("op", "vendor.x", "vendor", print, vendor=vendor)


def test_unregister_removes_from_one_op_or_from_all_and_returns_what_it_removed(registry: OpRegistry) -> None:
    registry.register_many([make("default.x", op) for op in ("a", "b", "c")])
    assert [impl.op_name for impl in registry.unregister("default.x", "a")] == ["a"]
    assert [impl.op_name for impl in registry.unregister("default.x")] == ["b", "c"]
    assert registry.op_names() == ()


def test_unregister_of_nothing_is_an_error_with_the_nearest_name(registry: OpRegistry) -> None:
    registry.register_impl(make("vendor.acme"))
    with pytest.raises(KeyError, match=r"no implementation 'vendor.acmee' is registered.*'vendor.acme'"):
        registry.unregister("vendor.acmee")


@pytest.mark.parametrize(
    ("op", "impl_id", "says"),
    [
        ("op", "vendor.acmee", "no implementation 'vendor.acmee' for op 'op' is registered.*'vendor.acme'"),
        ("op", "vendor.other", "no implementation 'vendor.other' for op 'op' is registered"),
        (
            "opp",
            "vendor.acme",
            "no implementation 'vendor.acme' for op 'opp' is registered.* is 'op'",
        ),
    ],
)
@pytest.mark.parametrize("ask", ["get", "unregister"])
def test_an_implementation_that_is_not_there_is_an_error_with_the_nearest_name(
    registry: OpRegistry, ask: str, op: str, impl_id: str, says: str
) -> None:
    registry.register_many([make("vendor.acme"), make("vendor.other", "another")])
    with pytest.raises(KeyError, match=says):
        registry.get(op, impl_id) if ask == "get" else registry.unregister(impl_id, op)
    assert len(registry.implementation_keys()) == 2


def test_what_was_unregistered_can_be_registered_again(registry: OpRegistry) -> None:
    registry.register_impl(make("default.x"))
    registry.register_many(registry.unregister("default.x"))
    assert ids(registry) == ["default.x"]


def test_a_transaction_that_raises_leaves_the_registry_as_it_was(registry: OpRegistry) -> None:
    registry.register_impl(make("default.before"))

    def interrupted() -> None:
        with registry.transaction():
            registry.register_impl(make("default.inside"))
            registry.unregister("default.before")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert ids(registry) == ["default.before"]


def test_an_inner_transaction_is_undone_alone(registry: OpRegistry) -> None:
    def inner() -> None:
        with registry.transaction():
            registry.register_impl(make("default.inner"))
            raise RuntimeError

    with registry.transaction():
        registry.register_impl(make("default.outer"))
        with pytest.raises(RuntimeError):
            inner()
    assert ids(registry) == ["default.outer"]


def on_another_thread(function: Callable[[], Any]) -> Any:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(function()), daemon=True)
    thread.start()
    thread.join(60)
    return results.pop()  # empty where it waits for something


def test_what_a_transaction_changes_is_seen_by_its_own_thread_alone_until_the_end(
    registry: OpRegistry,
) -> None:
    registry.register_impl(make("default.before"))
    with registry.transaction():
        registry.unregister("default.before")
        with registry.transaction():
            registry.register_impl(make("default.inside"))
        assert ids(registry) == ["default.inside"]
        assert on_another_thread(lambda: ids(registry)) == ["default.before"]
    assert on_another_thread(lambda: ids(registry)) == ["default.inside"]


def test_others_register_while_a_transaction_is_open(registry: OpRegistry) -> None:
    with registry.transaction():
        registry.register_impl(make("default.inside"))
        on_another_thread(lambda: registry.register_impl(make("default.outside")))
        assert sorted(ids(registry)) == ["default.inside", "default.outside"]
    assert sorted(ids(registry)) == ["default.inside", "default.outside"]


def test_an_implementation_may_be_replaced_in_a_transaction(registry: OpRegistry) -> None:
    registry.register_impl(make("default.x"))
    new = make("default.x")
    with registry.transaction():
        registry.unregister("default.x")
        with registry.transaction():
            registry.register_impl(make("default.x"))
            registry.unregister("default.x")
        registry.register_impl(new)
        assert registry.get("op", "default.x") is new
    assert registry.get("op", "default.x") is new


def test_the_same_registered_by_two_at_a_time_is_the_error_of_the_later_one(registry: OpRegistry) -> None:
    first = make("default.x")

    def late() -> None:
        with registry.transaction():
            registry.register_many([make("default.x"), make("default.y")])
            on_another_thread(lambda: registry.register_impl(first))

    with pytest.raises(ValueError, match=r"two implementations called 'default\.x'"):
        late()
    assert ids(registry) == ["default.x"]
    assert registry.get("op", "default.x") is first


def test_calls_go_by_what_a_transaction_has_only_when_it_has_ended(
    registry: OpRegistry, manager: tefl.OpManager
) -> None:
    registry.register_impl(tefl.OpImpl("op", "default.low", "flagos", lambda: "low", priority=1))
    better = tefl.OpImpl("op", "default.high", "flagos", lambda: "high", priority=2)
    with registry.transaction():
        registry.register_impl(better)
        assert [manager.call("op"), on_another_thread(lambda: manager.call("op"))] == ["low", "low"]
    assert manager.call("op") == "high"


class ForeignKind(enum.Enum):
    DEFAULT = "flagos"
    VENDOR = "vendor"


class OddKind(enum.Enum):
    DEFAULT = "default"


def foreign(**fields: Any) -> SimpleNamespace:
    return SimpleNamespace(
        **{
            "op_name": "op",
            "impl_id": "vendor.f",
            "kind": ForeignKind.VENDOR,
            "vendor": "F",
            "fn": max,
            **fields,
        }
    )


def test_an_implementation_of_another_package_is_taken_by_its_attributes(registry: OpRegistry) -> None:
    registry.register_impl(foreign(priority=200, supported_dtypes={"float32", torch.bfloat16}, unheard_of=1))
    impl = registry.get("op", "vendor.f")
    assert isinstance(impl, OpImpl)
    assert impl.kind is tefl.BackendImplKind.VENDOR
    assert (impl.vendor, impl.priority, impl.fn) == ("F", 200, max)
    assert impl.supported_dtypes == {torch.float32, torch.bfloat16}


@pytest.mark.parametrize("kind", [ForeignKind.DEFAULT, OddKind.DEFAULT, "flagos"])
def test_another_packages_kind_is_read_by_value_or_name(registry: OpRegistry, kind: object) -> None:
    registry.register_impl(foreign(kind=kind))
    assert registry.get("op", "vendor.f").kind is tefl.BackendImplKind.DEFAULT


def test_a_method_is_available_of_another_packages_class_is_asked(registry: OpRegistry) -> None:
    class Theirs:
        op_name, impl_id, kind, vendor, fn = (
            "op",
            "vendor.theirs",
            ForeignKind.VENDOR,
            "theirs",
            staticmethod(max),
        )

        def is_available(self) -> bool:
            return False

    registry.register_impl(Theirs())
    decision = OpManager(registry).explain("op", torch.ones(1))
    assert [(c.impl_id, c.reason) for c in decision.candidates] == [
        ("vendor.theirs", "is_available() answered False")
    ]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (max, "without op_name, impl_id, kind, fn"),
        (foreign(supported_dtypes={"float33"}), "supported_dtypes holds 'float33'"),
    ],
)
def test_what_is_no_implementation_is_refused(registry: OpRegistry, given: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        registry.register_impl(given)
    assert registry.op_names() == ()


def test_a_given_registry_receives_the_builtins_and_plugins_at_first_use_once(
    registry: OpRegistry, logged: list
) -> None:
    registry.register_impl(make("default.mine", "some_op", fn=lambda: "mine"))
    manager = OpManager(registry)
    assert registry.op_names() == ("some_op",)
    assert [manager.call("some_op"), manager.call("some_op")] == ["mine", "mine"]
    assert {"default.mine", "default.flagos", "vendor.cuda", "reference.torch"} <= set(registry.impl_ids())
    assert sum(record.getMessage().startswith("Registered impl_ids") for record in logged) == 1


def test_an_id_that_a_builtin_has_is_an_error_at_first_use_and_leaves_the_registry_as_it_was(
    registry: OpRegistry,
) -> None:
    registry.register_impl(make("reference.torch", "rmsnorm_fwd"))
    for _ in range(2):
        with pytest.raises(
            ValueError, match=r"'rmsnorm_fwd' has two implementations called 'reference.torch'"
        ):
            OpManager(registry).call("rmsnorm_fwd", torch.ones(2, 2), torch.ones(2))
        assert registry.implementation_keys() == (("rmsnorm_fwd", "reference.torch"),)


def test_an_op_that_nobody_has_is_an_error_with_the_nearest_name(manager: OpManager) -> None:
    with pytest.raises(
        tefl.DispatchError,
        match=r"op 'rmsnorm_fdw' is neither declared nor registered; the nearest known name is 'rmsnorm_fwd'",
    ):
        manager.call("rmsnorm_fdw", torch.ones(1))
