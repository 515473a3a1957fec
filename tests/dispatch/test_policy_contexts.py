"""Contexts that apply a policy: to whom, for how long, and what they leave behind."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import tefl
from tefl import SelectionPolicy
from tefl.dispatch import policy as policies
from tefl.dispatch.policy import current_policy, current_token, use_token


def test_a_context_applies_inside_and_is_gone_after() -> None:
    before = current_policy()
    with tefl.policy_context(SelectionPolicy(prefer="vendor", strict=True)):
        assert current_policy() == SelectionPolicy(prefer="vendor", strict=True)
    assert current_policy() == before


def test_each_context_changes_what_it_names_and_keeps_the_rest() -> None:
    outer = SelectionPolicy(prefer="reference", per_op_order={"op": "flagos"}, deny_vendors=["acme"])
    with tefl.policy_context(outer):
        with tefl.with_strict_mode():
            assert current_policy().strict
            assert current_policy().order("op") == (("flagos",), True)
        with tefl.with_preference("vendor"):
            assert current_policy().prefer == "vendor"
            assert current_policy().deny_vendors == {"acme"}
        with tefl.with_denied_vendors("ZORG", "cuda"):
            assert current_policy().deny_vendors == {"acme", "zorg", "nvidia"}
        with tefl.with_allowed_vendors("Zorg"), tefl.with_allowed_vendors("acme"):
            assert current_policy().allow_vendors == {"acme"}


def test_strict_mode_states_no_order() -> None:
    with tefl.with_strict_mode():
        assert current_policy().order("op")[1] is False
    with tefl.with_strict_mode(), tefl.with_preference("flagos"):
        assert current_policy().order("op")[1] is True


@pytest.mark.parametrize("function", [tefl.with_allowed_vendors, tefl.with_denied_vendors])
def test_a_context_for_vendors_without_a_name_is_refused(function) -> None:
    with pytest.raises(ValueError, match="give at least one vendor name"):
        function()
    with pytest.raises(ValueError, match="give at least one vendor name"):
        function(" ")


def test_a_wrong_preference_is_refused_when_the_context_is_made() -> None:
    with pytest.raises(ValueError, match="prefer='triton'"):
        tefl.with_preference("triton")


def test_nested_contexts_restore_one_by_one() -> None:
    seen = []
    with tefl.with_preference("vendor"):
        with tefl.with_preference("reference"):
            seen.append(current_policy().prefer)
        seen.append(current_policy().prefer)
    seen.append(current_policy().prefer)
    assert seen == ["reference", "vendor", "flagos"]


def test_one_context_can_be_entered_again_and_inside_itself() -> None:
    context = tefl.with_preference("vendor")
    for _ in range(2):
        with context:
            with tefl.with_preference("reference"):
                with context:
                    assert current_policy().prefer == "vendor"
                assert current_policy().prefer == "reference"
            assert current_policy().prefer == "vendor"
        assert current_policy().prefer == "flagos"


def test_an_exception_restores_the_policy() -> None:
    with pytest.raises(KeyError), tefl.with_preference("vendor"):
        raise KeyError
    assert current_policy().prefer == "flagos"
    assert policies.open_contexts == 0


def test_a_context_is_a_decorator_too() -> None:
    @tefl.with_preference("vendor")
    def inside() -> str:
        return current_policy().prefer

    assert (inside(), inside(), current_policy().prefer) == ("vendor", "vendor", "flagos")


async def coroutine() -> None: ...


def generator() -> Iterator[None]:
    yield


async def asynchronous_generator() -> AsyncIterator[None]:
    yield


@pytest.mark.parametrize("function", [coroutine, generator, asynchronous_generator])
def test_what_would_run_after_the_context_is_left_cannot_be_decorated(function) -> None:
    with pytest.raises(TypeError, match=rf"'{function.__name__}' is a coroutine or generator .* use `with`"):
        tefl.with_preference("vendor")(function)


def test_leaving_more_often_than_entering_is_an_error_that_changes_nothing() -> None:
    context = tefl.with_preference("vendor")
    with pytest.raises(RuntimeError, match="left more often than it was entered"):
        context.__exit__()
    with context:
        pass
    with pytest.raises(RuntimeError, match="left more often than it was entered"):
        context.__exit__()
    assert (current_token(), policies.open_contexts) == (0, 0)


def test_another_thread_does_not_see_a_context() -> None:
    with tefl.with_preference("vendor"), ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: current_policy().prefer).result() == "flagos"
        assert current_policy().prefer == "vendor"


def test_threads_with_contexts_of_their_own_do_not_disturb_each_other() -> None:
    barrier, seen = threading.Barrier(2), {}

    def work(prefer: str) -> None:
        with tefl.with_preference(prefer):
            barrier.wait(10)
            seen[prefer] = current_policy().prefer
            barrier.wait(10)
        seen[prefer, "after"] = current_policy().prefer

    threads = [threading.Thread(target=work, args=(prefer,)) for prefer in ("vendor", "reference")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {
        "vendor": "vendor",
        "reference": "reference",
        ("vendor", "after"): "flagos",
        ("reference", "after"): "flagos",
    }


def test_tasks_of_one_loop_keep_their_own_contexts() -> None:
    async def work(prefer: str) -> str:
        with tefl.with_preference(prefer):
            await asyncio.sleep(0)
            return current_policy().prefer

    async def both() -> list[str]:
        return await asyncio.gather(work("vendor"), work("reference"))

    assert asyncio.run(both()) == ["vendor", "reference"]


def test_a_task_that_inherited_a_context_sees_it_until_it_is_left() -> None:
    with tefl.with_preference("vendor"):
        inherited = contextvars.copy_context()
        assert inherited.run(lambda: current_policy().prefer) == "vendor"
    with tefl.with_strict_mode():  # some context is open, so that the context variable is looked at
        assert inherited.run(lambda: current_policy().prefer) == "flagos"


def test_a_generator_closed_by_another_thread_leaves_no_context_open() -> None:
    def generate() -> Iterator[None]:
        with tefl.with_preference("vendor"):
            yield

    generator = generate()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(next, generator).result()
        assert policies.open_contexts == 1
        generator.close()
    assert policies.open_contexts == 0
    assert current_policy().prefer == "flagos"


def test_no_context_means_token_zero_whatever_the_global_policy() -> None:
    assert current_token() == 0
    tefl.set_global_policy(SelectionPolicy(prefer="reference"))
    assert current_token() == 0
    assert current_policy().prefer == "reference"


def test_a_token_brings_its_policy_back_on_any_thread() -> None:
    with tefl.with_preference("vendor"):
        token = current_token()

    def backward() -> str:
        with use_token(token):
            return current_policy().prefer

    assert token != 0
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(backward).result() == "vendor"


def test_the_token_of_no_context_means_the_global_policy_inside_a_context_too() -> None:
    with tefl.with_preference("vendor"), use_token(0):
        assert current_policy().prefer == "flagos"


def test_equal_policies_share_a_token() -> None:
    def token() -> int:
        with tefl.with_preference("vendor"), tefl.with_denied_vendors("acme"):
            return current_token()

    assert token() == token()


def test_checkpoint_recomputes_under_the_policy_of_the_forward() -> None:
    with tefl.with_preference("vendor"):
        forward, recompute = tefl.checkpoint_contexts()
        with forward:
            assert current_policy().prefer == "vendor"
    with recompute:
        assert current_policy().prefer == "vendor"


def test_resetting_the_global_policy_reads_the_environment_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    assert current_policy().prefer == "flagos"
    monkeypatch.setenv("TE_FL_PREFER", "vendor")
    assert current_policy().prefer == "flagos"
    tefl.reset_global_policy()
    assert current_policy().prefer == "vendor"
    tefl.set_global_policy(SelectionPolicy(prefer="reference"))
    assert current_policy().prefer == "reference"
