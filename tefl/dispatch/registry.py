"""Which implementations there are: registration, undone as a whole or done as a whole."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from .._errors import nearest
from .loading import LOADING
from .lock import LOCK, epoch
from .types import BackendImplKind, OpImpl
from .values import named_dtype

__all__ = ["OpRegistry"]

_Table = dict[str, dict[str, OpImpl]]
_FIELDS = tuple(OpImpl.__dataclass_fields__)


class OpRegistry:
    """The implementations of ops, by op and impl_id.

    Every change replaces the table, so a reader never sees half of one; all are made under one lock, but for
    those of a `draft`, which nobody else sees.
    """

    def __init__(self) -> None:
        self._published: _Table = {}
        self._draft: _Draft | None = None
        self._before: _Table | None = None
        _REGISTRIES.add(self)

    def register_impl(self, impl: OpImpl) -> None:
        """Add one implementation. A second one of the same op and impl_id is an error that shows both.

        An object of another package's OpImpl class is taken by its attributes, or as what its method
        ``__tefl_impl__`` makes of it.
        """
        self.register_many([impl])

    def register_many(self, impls: Iterable[OpImpl]) -> None:
        """Add several implementations, all or none."""
        new = [_as_op_impl(impl) for impl in impls]  # first: what yields them may register others meanwhile
        with self._changing():
            table = dict(self._table)
            for impl in new:
                row = table.get(impl.op_name, {})
                if (old := row.get(impl.impl_id)) is not None:
                    raise ValueError(_duplicate(old, impl))
                table[impl.op_name] = {**row, impl.impl_id: impl}
            self._replace(table)

    def unregister(self, impl_id: str, op_name: str | None = None) -> tuple[OpImpl, ...]:
        """Remove the implementations called ``impl_id``, of one op or of all; returns what was removed.

        KeyError where there is none.
        """
        with self._changing():
            ops = list(self._table) if op_name is None else [op_name]
            gone = tuple(row[impl_id] for op in ops if impl_id in (row := self._table.get(op, {})))
            if not gone:
                raise KeyError(_missing(self._table, impl_id, op_name))
            kept = {op: _without(row, impl_id) if op in ops else row for op, row in self._table.items()}
            self._replace({op: row for op, row in kept.items() if row})
            return gone

    def get(self, op_name: str, impl_id: str) -> OpImpl:
        """One implementation. KeyError where it is not registered."""
        table = self._seen
        if (impl := table.get(op_name, {}).get(impl_id)) is None:
            raise KeyError(_missing(table, impl_id, op_name))
        return impl

    def implementations(self, op_name: str) -> tuple[OpImpl, ...]:
        """The implementations of one op, in the order of registration."""
        return tuple(self._seen.get(op_name, {}).values())

    def implementation_keys(self) -> tuple[tuple[str, str], ...]:
        """(op, impl_id) of every implementation."""
        return tuple((op, impl_id) for op, row in self._seen.items() for impl_id in row)

    def op_names(self) -> tuple[str, ...]:
        """The ops that have an implementation."""
        return tuple(self._seen)

    def impl_ids(self) -> tuple[str, ...]:
        """Every impl_id once, sorted."""
        return tuple(sorted({impl_id for row in self._seen.values() for impl_id in row}))

    def vendors(self) -> tuple[str, ...]:
        """The vendors of the implementations, each once, sorted."""
        impls = [impl for row in self._seen.values() for impl in row.values()]
        return tuple(sorted({impl.vendor for impl in impls if impl.vendor}))

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """All changes made inside hold, or, where the body raises, none."""
        with self._changing():
            before = self._table
            outermost = self._drafting() is None and self._before is None
            if outermost:
                self._before = before
            try:
                yield
            except BaseException:
                self._replace(before)
                raise
            finally:
                if outermost:
                    self._before = None

    @contextlib.contextmanager
    def draft(self) -> Iterator[None]:
        """Changes that this thread makes inside are seen by it alone, and by all others together at the end.
        Where the body raises there are none.

        No lock is held meanwhile, so the body may import and wait; one draft at a time. ValueError at the end
        where others have registered the same meanwhile.
        """
        start = self._published
        self._draft = draft = _Draft(threading.current_thread(), start, set())
        try:
            yield
            with LOCK:
                self._published = _merged(self._published, start, draft.table)
        finally:
            self._draft = None
        epoch.advance()

    def look_into_draft(self) -> bool:
        """Let this thread see the draft that another makes, until it ends; whether there is one."""
        if (draft := self._draft) is not None:
            draft.readers.add(threading.current_thread())
        return draft is not None

    @property
    def _table(self) -> _Table:
        """What this thread changes."""
        draft = self._drafting()
        return self._published if draft is None else draft.table

    @property
    def _seen(self) -> _Table:
        draft, published = self._draft, self._published
        if draft is None:
            return published
        if draft.thread is (me := threading.current_thread()):
            return draft.table
        return _both(draft.table, published) if me in draft.readers else published

    def _drafting(self) -> _Draft | None:
        draft = self._draft
        return draft if draft is not None and draft.thread is threading.current_thread() else None

    def _changing(self) -> contextlib.AbstractContextManager[None]:
        return LOCK if self._drafting() is None else contextlib.nullcontext()

    def _replace(self, table: _Table) -> None:
        if (draft := self._drafting()) is not None:
            draft.table = table
            return
        self._published = table
        epoch.advance()

    def _undo_half_made(self) -> None:
        if self._before is not None:
            self._published, self._before = self._before, None


@dataclass
class _Draft:
    thread: threading.Thread
    table: _Table
    readers: set[threading.Thread]


def _merged(now: _Table, start: _Table, end: _Table) -> _Table:
    """The table of now with what has changed between two others. ValueError where it has what was added."""
    if now is start:
        return end
    before, after, merged = _flat(start), _flat(end), _flat(now)
    for key in [key for key, impl in before.items() if after.get(key) is not impl]:
        merged.pop(key, None)
    for key in [key for key, impl in after.items() if before.get(key) is not impl]:
        if key in merged:
            raise ValueError(_duplicate(merged[key], after[key]))
        merged[key] = after[key]
    table: _Table = {}
    for (op, impl_id), impl in merged.items():
        table.setdefault(op, {})[impl_id] = impl
    return table


def _both(table: _Table, stronger: _Table) -> _Table:
    """What is in either; of an implementation in both, that of the second."""
    return {op: {**table.get(op, {}), **stronger.get(op, {})} for op in {**table, **stronger}}


def _flat(table: _Table) -> dict[tuple[str, str], OpImpl]:
    return {(op, impl_id): impl for op, row in table.items() for impl_id, impl in row.items()}


def _missing(table: _Table, impl_id: str, op_name: str | None) -> str:
    """The message about an implementation that is not there: of an op that is, the nearest of its own."""
    if op_name is not None and op_name not in table:
        return f"no implementation {impl_id!r} for op {op_name!r} is registered; {nearest(op_name, table)}"
    of_op, rows = ("", table.values()) if op_name is None else (f" for op {op_name!r}", [table[op_name]])
    hint = nearest(impl_id, {known for row in rows for known in row})
    return f"no implementation {impl_id!r}{of_op} is registered; {hint}"


def _without(row: dict[str, OpImpl], impl_id: str) -> dict[str, OpImpl]:
    return {other: impl for other, impl in row.items() if other != impl_id}


_REGISTRIES: weakref.WeakSet[OpRegistry] = weakref.WeakSet()


def _repair_after_fork() -> None:
    for registry in _REGISTRIES:
        registry._undo_half_made()
    epoch.advance()


def _drop_drafts() -> None:
    for registry in _REGISTRIES:
        registry._draft = None
    epoch.advance()  # calls may have been decided by what it had


LOCK.repairs.append(_repair_after_fork)
LOADING.repairs.append(_drop_drafts)


def _as_op_impl(given: Any) -> OpImpl:
    """The given implementation as an OpImpl of ours; another package's is read by its attributes."""
    if isinstance(given, OpImpl):
        return given
    if (converted := getattr(given, "__tefl_impl__", None)) is not None:
        return converted()  # type: ignore[no-any-return]
    missing = [name for name in ("op_name", "impl_id", "kind", "fn") if not hasattr(given, name)]
    if missing:
        raise TypeError(f"register_impl wants a tefl.OpImpl, got {given!r} without {', '.join(missing)}")
    fields = {name: getattr(given, name) for name in _FIELDS if hasattr(given, name)}
    fields["kind"] = _kind(given.kind)
    if fields.get("supported_dtypes") is not None:
        fields["supported_dtypes"] = frozenset(map(_dtype, fields["supported_dtypes"]))
    return OpImpl(**fields)


def _kind(given: Any) -> str:
    """Another package's kind, by the value or by the name of its enum member."""
    text = str(getattr(given, "value", given)).lower()
    return BackendImplKind.DEFAULT.value if text == "default" else text


def _dtype(given: Any) -> torch.dtype:
    if (dtype := named_dtype(str(given))) is None:
        raise TypeError(f"supported_dtypes holds {given!r}, which is no torch.dtype")
    return dtype


def _duplicate(old: OpImpl, new: OpImpl) -> str:
    return (
        f"op {new.op_name!r} has two implementations called {new.impl_id!r}: {_origin(old)} is registered, "
        f"and {_origin(new)} was to be added. Give one another impl_id, or unregister the first"
    )


def _origin(impl: OpImpl) -> str:
    fn = impl.fn
    name = f"{getattr(fn, '__module__', '?')}.{getattr(fn, '__qualname__', type(fn).__name__)}"
    return f"{name} (kind={impl.kind}, vendor={impl.vendor}, priority={impl.priority})"
