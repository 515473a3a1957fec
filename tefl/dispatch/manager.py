"""The manager: one registry, made ready at first use, and the calls of its ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .. import _env
from .._errors import nearest
from .._log import logger
from .call import OpCall
from .decision import VERIFYING, Decision
from .discovery import PluginError, PluginState, load_plugins
from .loading import LOADING, AwaitedImport
from .lock import LOCK, epoch
from .policy import SelectionPolicy
from .registry import OpRegistry
from .schema import declarations
from .spelling import misspelt_ops, unknown_names
from .types import DispatchError, OpImpl
from .values import detached

__all__ = ["OpManager", "explain", "get_manager", "get_registry", "route", "set_builtins"]

_register_builtins: Callable[[OpRegistry], None] | None = None


def set_builtins(register: Callable[[OpRegistry], None]) -> None:
    """Say which function adds the built-in implementations to a registry, at a manager's first use."""
    global _register_builtins
    _register_builtins = register


class OpManager:
    """Chooses and runs implementations out of one registry.

    The built-in implementations and the discovered plugins are added to the registry at first use, all or,
    where the environment cannot be read or names a plugin that cannot be loaded, none.
    """

    def __init__(self, registry: OpRegistry | None = None) -> None:
        self.registry = registry if registry is not None else OpRegistry()
        self.plugins: tuple[PluginState, ...] = ()
        """What was found at first use and what became of it."""
        self._ops: dict[str, OpCall] = {}
        self._builtins: dict[tuple[str, str], OpImpl] = {}
        self._running: dict[tuple[str, str], str] = {}
        self._named_unknown: set[str] = set()
        self._looked_at: set[str] = set()
        self._ready = False

    def call(self, op_name: str, *args: Any, **kwargs: Any) -> Any:
        """Run an op on these arguments, positional or by keyword, defaults filled in from its schema.

        It computes only: no autograd graph is recorded and no result requires grad, whatever arguments do.
        ``torch.ops.tefl`` has the differentiable ops. An op that is registered and not declared has no
        schema: its arguments are passed on as they are, and it must not write them, since another
        implementation runs where one fails. DispatchError where no implementation fits.
        """
        with torch.no_grad():
            return detached(self.op(op_name).from_user(args, kwargs))

    def resolve(self, op_name: str, *args: Any, **kwargs: Any) -> OpImpl:
        """The implementation that `call` would run; without arguments, judged for the CPU and any dtype.

        DispatchError with the explanation where there is none.
        """
        decision = self.explain(op_name, *args, **kwargs)
        if decision.winner is None:
            raise DispatchError(f"no implementation serves this call\n{decision}")
        return decision.winner.impl

    def explain(self, op_name: str, *args: Any, **kwargs: Any) -> Decision:
        """Which implementation `call` would run and, for every other one, why not; nothing runs."""
        decision = self.op(op_name).explain(args, kwargs)
        self.warn_unknown_names(decision.policy)
        return decision

    def op(self, op_name: str) -> OpCall:
        """The router of one op. TypeError where that is no name."""
        if not isinstance(op_name, str):
            raise TypeError(f"op_name must be the name of an op, such as 'rmsnorm_fwd', got {op_name!r}")
        return self._ops.get(op_name) or self._ops.setdefault(op_name, OpCall(self, op_name))

    def ensure_ready(self) -> bool:
        """Fill the registry, once; whether it is full. A failure leaves it as it was, and the next use tries
        again.

        A thread for whose import the loading of plugins waits goes on with what is there by then, which is
        said once. RuntimeError where a plugin asks while it is loaded.
        """
        if self._ready:
            return True
        try:
            with LOADING:
                self._load()
        except AwaitedImport as error:
            if not self.registry.look_into_loading():  # another manager's plugins are being loaded
                with self.registry.transaction(for_all=True):
                    self._add_builtins()
            self._warn_once(str(error), f"{error}; it is served by what is registered so far")
        return self._ready

    def _load(self) -> None:
        if self._ready:
            return
        try:
            with self.registry.transaction(for_all=True):
                self._fill()
        except BaseException:
            epoch.advance()  # calls may have been decided by what the draft had
            raise
        self._ready = True
        logger().info("Registered impl_ids: %s", list(self.registry.impl_ids()))

    def _fill(self) -> None:
        for name in _env.VARIABLES:
            if name.startswith("TE_FL_"):
                _env.get(name)  # one that cannot be read is an error here, before anything runs
        log = logger()
        for name, hint in _env.unknown().items():
            self._warn_once(name, f"environment variable {name} is unknown; {hint}")
        self._add_builtins()
        self.plugins = load_plugins(self.registry)
        self.tell_undeclared()
        for plugin in self.plugins:
            if plugin.is_fatal:
                raise PluginError(
                    f"{plugin.explain_failure()}; mend it, or take it out of {plugin.source}"
                ) from plugin.error
            if plugin.error is not None:
                log.warning("%s; `python -m tefl info` shows the traceback", plugin.explain_failure())

    def _add_builtins(self) -> None:
        before = set(self.registry.implementation_keys())
        if _register_builtins is not None and not self._builtins.keys() & before:
            _register_builtins(self.registry)
            added = self.registry.implementation_keys()
            self._builtins = {key: self.registry.get(*key) for key in added if key not in before}

    # --- what the calls of this manager's ops ask --------------------------------------------------------

    def is_builtin(self, impl: OpImpl) -> bool:
        """Whether an implementation came with this package."""
        return self._builtins.get((impl.op_name, impl.impl_id)) is impl

    def announce(self, op_name: str, device_type: str, impl: OpImpl) -> None:
        """Log which implementation serves an op, once per change."""
        with LOCK:
            if self._running.get((op_name, device_type)) == impl.impl_id:
                return
            self._running[op_name, device_type] = impl.impl_id
        logger().info("Op %r using %r (kind=%s, vendor=%s)", op_name, impl.impl_id, impl.kind, impl.vendor)

    def warn_unknown_names(self, policy: SelectionPolicy) -> None:
        """Warn of names in a policy that nothing bears, once each, when all who might have come."""
        if not self._ready:
            return
        for name, message in unknown_names(policy, self._known_ops(), self.registry).items():
            self._warn_once(name, message)

    def tell_verifying(self) -> None:
        """Warn, once, that calls cost more than they would."""
        self._warn_once("TEFL_CHECK", f"TEFL_CHECK=1: {VERIFYING}, which takes its time")

    def undeclared_ops(self) -> list[str]:
        """The ops that are registered and not declared, sorted: those that only `call` reaches."""
        return sorted(set(self.registry.op_names()) - declarations().keys())

    def tell_undeclared(self) -> None:
        """Log, of the ops that have come since it was last asked, which are not declared, or misspelt."""
        new = set(self.registry.op_names()) - self._looked_at
        if not new:
            return
        self._looked_at |= new
        undeclared = sorted(new - declarations().keys())
        misspelt = misspelt_ops(self.registry, undeclared, declarations())
        for op, message in misspelt.items():
            self._warn_once(f"op {op}", message)
        if others := [op for op in undeclared if op not in misspelt]:
            logger().info("Registered and not declared, so not in torch.ops.tefl: %s", ", ".join(others))

    def unknown_op(self, op_name: str) -> str:
        """The message for an op that is neither declared nor registered."""
        return f"op {op_name!r} is neither declared nor registered; {nearest(op_name, self._known_ops())}"

    def _known_ops(self) -> set[str]:
        return {*declarations(), *self.registry.op_names()}

    def _warn_once(self, name: str, message: str) -> None:
        if name not in self._named_unknown:
            self._named_unknown.add(name)
            logger().warning("%s", message)


_manager = OpManager()


def get_manager() -> OpManager:
    """The manager behind ``torch.ops.tefl``."""
    return _manager


def get_registry() -> OpRegistry:
    """The registry behind ``torch.ops.tefl``; what is added applies from the next call on."""
    return _manager.registry


def route(op_name: str) -> OpCall:
    """The callable to register for the backend keys of a declared op. KeyError where it is not declared."""
    if op_name not in declarations():
        raise KeyError(f"op {op_name!r} is not declared; {nearest(op_name, declarations())}")
    return _manager.op(op_name)


def explain(op_name: str, *args: Any, **kwargs: Any) -> Decision:
    """Which implementation a call of the op would run and, for every other one, why not; nothing runs."""
    return _manager.explain(op_name, *args, **kwargs)
