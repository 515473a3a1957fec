"""One op's calls: the short path of a call that was decided before, and all that happens when it was not.

Calls of ``torch.ops.tefl`` come from the native router, which serves those like an earlier one by itself and
asks `OpCall.serve` about all others, so that whatever needs a decision happens here.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .. import _env
from .._errors import one_line
from .._log import logger
from . import policy as policies
from . import recording
from .adapt import Adapted, Trusted
from .blame import name_implementation
from .decision import Decision, decide
from .entries import Entry, Key, Table
from .facts import gather
from .hand_over import line_of
from .lock import LOCK, epoch
from .schema import Schema, declarations, device_and_dtypes, schema_of
from .select import Raised, Verdict, accepts, available, follows_from_form, pick, rank
from .surfacing import must_surface
from .types import DispatchError, NotSupported, OpDecl, OpImpl, Slower
from .verify import Verified
from .writes import undeclared_write, versions, written

if TYPE_CHECKING:
    from .manager import OpManager

__all__ = ["OpCall"]

_NEVER = -1
"""No epoch: what was decided then is stale at once."""


class OpCall:
    """Routes the calls of one op for one manager.

    Calling it is what the op's backend keys do: arguments as the schema orders them, below autograd.
    """

    def __init__(self, manager: OpManager, op_name: str) -> None:
        self.op_name = op_name
        self._manager = manager
        self.router: Any = None
        """The native router of this op, where there is one."""
        self._table = Table(-1, False)
        self._decl: OpDecl | None = None
        self._schema: Schema | None = None
        self._check: Callable[..., Any] | None = None
        self._defaults: tuple[Any, ...] = ()
        self._keyword_defaults: Mapping[str, Any] = {}
        self._slots: tuple[int, ...] | None = None
        self._called_by: dict[str, Adapted | Trusted] = {}
        self._warned: dict[str, OpImpl] = {}
        """What has been said once, and of which implementation."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._schema is None:
            self._renew_if_stale()  # which reads the declaration
        if len(args) < len(self._defaults):  # torch leaves out what equals the schema's default
            args = (*args, *self._defaults[len(args) :])
        if len(kwargs) < len(self._keyword_defaults):
            kwargs = {**self._keyword_defaults, **kwargs}
        return self.serve(policies.current_token(), args, kwargs)

    def serve(
        self, token: int, args: tuple[Any, ...], kwargs: Mapping[str, Any],
        form: object | None = None, checked: bool = False,
    ) -> Any:  # fmt: skip
        """Run the op on all its arguments, under the policy of that number.

        ``form`` is the native router's description of the call, ``checked`` says that one like it has passed
        the check. If the next one can run without a decision, the router is told what to run.
        """
        self._renew_if_stale()
        table = self._table
        if not checked and self._check is not None:
            self._check(*args, **kwargs)
        entry = self._entry(table, token, args, kwargs)
        fast = entry.fast
        if fast is None or recording.active:
            result = self._run(entry, args, kwargs, {})
        else:
            try:
                result = fast[0](*args, **kwargs)
            except Exception as error:
                if self._is_final(entry, fast[1].impl_id, error):
                    raise
                result = self._run(entry, args, kwargs, {fast[1].impl_id: error})
        if form is not None and not recording.active:
            self._hand_over(table, entry, form, args, kwargs, checked)
        return result

    def recover(
        self, token: int, args: tuple[Any, ...], kwargs: Mapping[str, Any], impl_id: str, error: Exception
    ) -> Any:
        """Run the op on after an implementation that the native router had called has raised."""
        try:
            self._renew_if_stale()
            entry = self._entry(self._table, token, args, kwargs)
            if self._is_final(entry, impl_id, error):
                raise error
            return self._run(entry, args, kwargs, {impl_id: error})
        finally:
            del error  # its traceback holds this frame: the cycle would keep the call's arguments alive

    def wrote(self, impl_id: str, argument: str, error: Exception | None, who: str) -> None:
        """Raise about what the native router has seen write an argument."""
        raise undeclared_write(self.op_name, impl_id, argument, who) from error

    def _hand_over(
        self, table: Table, entry: Entry, form: object, args: tuple[Any, ...], kwargs: Mapping[str, Any],
        checked: bool,
    ) -> None:  # fmt: skip
        """Let the native router serve calls of this form, unless something has changed meanwhile."""
        if entry.by_form:
            impl = self._choose(entry, args, kwargs, {})
        else:
            impl = None if entry.first is None else entry.first[1]
        function = None if impl is None else self._function(impl)
        if not isinstance(function, (Adapted, Trusted)):
            if not checked:
                self.router.remember(form, table.epoch)
            return
        line = line_of(function, entry.by_form, args, kwargs, self._warned)
        with LOCK:  # so that a failure on another thread is not forgotten
            if self._table is table and function.impl.impl_id not in entry.failed:
                self.router.remember(form, table.epoch, *line)

    def _entry(self, table: Table, token: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Entry:
        key = self._key(token, args, kwargs)
        entry = table.entries.get(key)
        if entry is None:
            entry = table.entries.setdefault(key, self._resolve(key, args, kwargs))
        return entry

    def _key(self, token: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Key:
        """What decides which implementations are available, and in which order they are tried."""
        if self._slots is None or not args:
            return (token, *device_and_dtypes((*args, *kwargs.values())))
        tensors = [tensor for i in self._slots if (tensor := args[i]) is not None]
        return (token, tensors[0].device, *[tensor.dtype for tensor in tensors])

    def from_user(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """A call with arguments as a Python caller gives them, keyword or positional."""
        self._renew_if_stale()
        if self._schema is None:
            return self(*args, **kwargs)
        args, kwargs = self._schema.bind(args, kwargs)
        self._schema.demand_types(args, kwargs)
        args, kwargs = self._schema.resolved(args, kwargs)
        return self(*args, **kwargs)

    def explain(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Decision:
        """The decision for a call, every implementation judged; nothing runs."""
        self._renew_if_stale()
        if self._schema is not None and (args or kwargs):
            args, kwargs = self._schema.bind(args, kwargs)
            self._schema.demand_types(args, kwargs)
            if self._check is not None:
                self._check(*args, **kwargs)
        key = self._key(policies.current_token(), args, kwargs)
        entry = self._table.entries.get(key)
        asked = (args, kwargs) if args or kwargs else None
        decision = self._decide(key, asked, entry.failed if entry is not None else {})
        return replace(decision, verified=self._decl is not None and self._table.verifies)

    # --- deciding ----------------------------------------------------------------------------------------

    def _renew_if_stale(self) -> None:
        if self._table.epoch != epoch.now:
            self._renew()

    def _renew(self) -> None:
        """Start an empty table; the first one reads the op's declaration."""
        is_ready = self._manager.ensure_ready()
        if self._decl is None and (decl := declarations().get(self.op_name)) is not None:
            schema = schema_of(self.op_name)
            self._defaults, self._keyword_defaults = tuple(schema.positional.values()), schema.keyword
            self._schema, self._slots, self._check = schema, schema.slots, decl.check
            self._decl = decl  # last: it says to other threads that the rest is there
        self._forget_unregistered()
        self._manager.tell_undeclared()
        # What was decided by a part of the registry holds for that one call.
        self._table = table = Table(epoch.now if is_ready else _NEVER, _env.get("TEFL_CHECK"))
        if table.verifies:
            self._manager.tell_verifying()

    def _forget_unregistered(self) -> None:
        """Let go of implementations that are no longer registered, and of what they hold."""
        now = {impl.impl_id: impl for impl in self._manager.registry.serving(self.op_name)}
        called = list(self._called_by.items())
        self._called_by = {impl_id: call for impl_id, call in called if now.get(impl_id) is call.impl}
        warned = list(self._warned.items())
        self._warned = {told: impl for told, impl in warned if now.get(impl.impl_id) is impl}

    def _resolve(self, key: Key, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Entry:
        token, device, *dtypes = key
        policy, facts = policies.policy_of(token), gather(device, tuple(dtypes))
        impls = self._implementations()
        self._manager.warn_unknown_names(policy)
        if logger().isEnabledFor(logging.DEBUG):
            logger().debug("%s", self._decide(key, (args, kwargs), {}))
        ranked = rank(self.op_name, impls, policy)
        verdicts = {impl.impl_id: available(impl, facts) for impl in ranked}
        for impl in ranked:
            self._report_raised(impl, verdicts[impl.impl_id])
        fitting = [impl for impl in ranked if not isinstance(verdicts[impl.impl_id], str)]
        slower = {impl_id: v for impl_id, v in verdicts.items() if isinstance(v, Slower)}
        by_form = all(follows_from_form(impl) for impl in fitting)
        return Entry(policy, facts, device.type if device else "cpu", fitting, slower, by_form=by_form)

    def _implementations(self) -> tuple[OpImpl, ...]:
        impls = self._manager.registry.serving(self.op_name)
        if not impls and self._decl is None:
            raise DispatchError(self._manager.unknown_op(self.op_name))
        return impls

    def _decide(self, key: Key, asked: tuple[Any, Any] | None, failed: Mapping[str, str]) -> Decision:
        token, device, *dtypes = key
        facts = gather(device, tuple(dtypes))
        return decide(self.op_name, self._implementations(), policies.policy_of(token), facts, asked, failed)

    # --- running -----------------------------------------------------------------------------------------

    def _run(
        self, entry: Entry, args: tuple[Any, ...], kwargs: Mapping[str, Any], passed: dict[str, Exception]
    ) -> Any:
        """Try the candidates one after another; ``passed`` are those that have raised in this call."""
        try:
            while (impl := self._choose(entry, args, kwargs, passed)) is not None:
                function = self._function(impl)
                try:
                    result = function(*args, **kwargs)
                except Exception as error:
                    if self._is_final(entry, impl.impl_id, error):
                        raise
                    passed[impl.impl_id] = error
                else:
                    self._settle(entry, impl, function, passed)
                    return result
            raise self._nothing_left(entry, args, kwargs, passed)
        finally:
            passed.clear()  # their tracebacks hold this frame: the cycle would keep the arguments alive

    def _choose(
        self, entry: Entry, args: tuple[Any, ...], kwargs: Mapping[str, Any], passed: Mapping[str, Exception]
    ) -> OpImpl | None:
        def verdict(impl: OpImpl) -> Verdict:
            if impl.impl_id in entry.failed or impl.impl_id in passed:
                return "has failed"
            answer = self._accepts(impl, args, kwargs)
            self._report_raised(impl, answer)
            return answer or entry.slower.get(impl.impl_id)

        return pick(entry.ranked, verdict)

    def _accepts(self, impl: OpImpl, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Verdict:
        """What an implementation's predicate answers. `UndeclaredWrite` where it writes what it is shown."""
        if impl.supports is None or self._schema is None or self._manager.is_builtin(impl):
            return accepts(impl, args, kwargs)
        before = versions(self._schema, args, kwargs)
        answer = accepts(impl, args, kwargs)
        if (argument := written(before, versions(self._schema, args, kwargs))) is not None:
            raise undeclared_write(self.op_name, impl.impl_id, argument, "the predicate of")
        return answer

    def _is_final(self, entry: Entry, impl_id: str, error: Exception) -> bool:
        """Whether an implementation's exception is the caller's, with no other to run instead. It says then
        whose it is."""
        if isinstance(error, NotSupported):
            return False
        started_writing = self._schema is not None and self._schema.mutates
        is_final = entry.policy.strict or started_writing or must_surface(error)
        if is_final:
            name_implementation(error, self.op_name, impl_id)
        return is_final

    def _settle(
        self, entry: Entry, impl: OpImpl, function: Callable[..., Any], passed: Mapping[str, Exception]
    ) -> None:
        """After an implementation has served a call: remember who failed at it, announce, count."""
        for impl_id, error in passed.items():
            if not isinstance(error, NotSupported):
                self._remember(entry, impl_id, impl.impl_id, error)
        if impl.impl_id not in entry.announced:
            entry.announced.add(impl.impl_id)
            self._manager.announce(self.op_name, entry.device_type, impl)
        if recording.active:
            before = itertools.takewhile(lambda other: other is not impl, entry.ranked)
            failed = next((other.impl_id for other in before if other.impl_id in entry.failed), None)
            recording.count(self.op_name, impl.impl_id, entry.device_type, failed)
        if entry.first is None and impl.impl_id not in entry.slower:
            with LOCK:  # so that a failure on another thread is not forgotten
                if impl is next((i for i in entry.ranked if i.impl_id not in entry.failed), None):
                    entry.first = function, impl

    def _remember(self, entry: Entry, impl_id: str, ran: str, error: Exception) -> None:
        with LOCK:
            if impl_id in entry.failed:
                return
            entry.first = None
            if self.router is not None:
                self.router.forget()
            entry.failed[impl_id] = (
                f"failed before, {one_line(error)}; not tried again until policy or registry change"
            )
        logger().warning(
            "Op %r: %r failed on %s (%s), %r ran instead; not tried again until policy or registry change",
            self.op_name, impl_id, entry.facts.describe(), one_line(error), ran,
        )  # fmt: skip

    def _nothing_left(
        self, entry: Entry, args: tuple[Any, ...], kwargs: Mapping[str, Any], passed: Mapping[str, Exception]
    ) -> Exception:
        """What to raise: the last failure, caused by the first; or the explanation where none has failed."""
        raised = {name: error for name, error in passed.items() if not isinstance(error, NotSupported)}
        if errors := list(raised.values()):
            for impl_id, error in raised.items():
                name_implementation(error, self.op_name, impl_id)
            if errors[0] is not errors[-1]:
                errors[-1].__cause__ = errors[0]
            return errors[-1]
        failed = {**entry.failed, **{impl_id: one_line(error) for impl_id, error in passed.items()}}
        key = self._key(policies.current_token(), args, kwargs)
        return DispatchError(
            f"no implementation serves this call\n{self._decide(key, (args, kwargs), failed)}"
        )

    def _function(self, impl: OpImpl) -> Callable[..., Any]:
        """What to call: the implementation, and around it what its results need."""
        decl, schema = self._decl, self._schema
        if decl is None or schema is None:
            return impl.fn
        call = self._called_by.get(impl.impl_id)
        if call is None or call.impl is not impl:
            is_ours = self._manager.is_builtin(impl)
            call = Trusted(schema, impl) if is_ours else Adapted(decl, schema, impl)
            self._called_by[impl.impl_id] = call
        return Verified(decl, schema, call, impl) if self._table.verifies else call

    def _report_raised(self, impl: OpImpl, verdict: Verdict) -> None:
        if isinstance(verdict, Raised) and self._warned.get(impl.impl_id) is not impl:
            self._warned[impl.impl_id] = impl
            logger().warning("Op %r: %r is passed over: %s", self.op_name, impl.impl_id, verdict)
