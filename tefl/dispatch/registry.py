"""Which implementations there are: registration, undone as a whole or done as a whole."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from .._errors import nearest
from .loading import LOADING
from .lock import LOCK, epoch
from .types import BackendImplKind, OpImpl
from .values import named_dtype

__all__ = ["OpRegistry"]

_Table = dict[str, dict[str, OpImpl]]
_Key = tuple[str, str]
_FIELDS = tuple(OpImpl.__dataclass_fields__)


class OpRegistry:
    """The implementations of ops, by op and impl_id.

    Every change replaces the table, so a reader never sees half of one. What a thread changes inside a
    `transaction` is its own until the end, and no lock is held meanwhile.
    """

    def __init__(self) -> None:
        self._published: _Table = {}
        self._drafts: dict[threading.Thread, _Draft] = {}  # the innermost one of each thread
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
        with LOCK, self.transaction():
            for impl in new:
                if (old := self._find(impl.op_name, impl.impl_id)) is not None:
                    raise ValueError(_duplicate(old, impl))
                self._drafts[threading.current_thread()].added[impl.op_name, impl.impl_id] = impl

    def unregister(self, impl_id: str, op_name: str | None = None) -> tuple[OpImpl, ...]:
        """Remove the implementations called ``impl_id``, of one op or of all; returns what was removed.

        KeyError where there is none.
        """
        with LOCK, self.transaction():
            table = self._seen
            ops = list(table) if op_name is None else [op_name]
            gone = {(op, impl_id): row[impl_id] for op in ops if impl_id in (row := table.get(op, {}))}
            if not gone:
                raise KeyError(_missing(table, impl_id, op_name))
            self._drafts[threading.current_thread()].removed.update(gone)
            return tuple(gone.values())

    def get(self, op_name: str, impl_id: str) -> OpImpl:
        """One implementation. KeyError where it is not registered."""
        if (impl := self._find(op_name, impl_id)) is None:
            raise KeyError(_missing(self._seen, impl_id, op_name))
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

    def serving(self, op_name: str) -> tuple[OpImpl, ...]:
        """The implementations of one op that a call on this thread chooses among.

        Without what a transaction has registered that has not ended, but for a loading of plugins that the
        thread looks into: how a call is served is remembered, for all threads.
        """
        draft = self._looked_into()
        table = self._published if draft is None else draft.over(self._published)
        return tuple(table.get(op_name, {}).values())

    @contextlib.contextmanager
    def transaction(self, *, for_all: bool = False) -> Iterator[None]:
        """All changes that this thread makes inside hold, or, where the body raises, none.

        Until the end this thread alone sees them, and calls of ops go without them. The body may import and
        wait: no lock is held. At the end of a nested transaction they become the outer one's, or with
        ``for_all`` everybody's, as at the end of the outermost. ValueError then where others have registered
        the same meanwhile.
        """
        me = threading.current_thread()
        outer = self._drafts.get(me)
        self._drafts[me] = draft = _Draft(outer, for_all)
        try:
            yield
            if outer is None or for_all:
                self._publish(draft)
            else:
                outer.include(draft)
        finally:
            if outer is None:
                del self._drafts[me]
            else:
                self._drafts[me] = outer

    def look_into_loading(self) -> bool:
        """Let this thread see what another's transaction ``for_all`` has so far; whether there is one."""
        innermost = list(self._drafts.values())
        loading = [draft for each in innermost for draft in each.and_outer_ones() if draft.for_all]
        for draft in loading:
            draft.readers.add(threading.current_thread())
        return bool(loading)

    @property
    def _seen(self) -> _Table:
        draft = self._seen_draft()
        return self._published if draft is None else draft.over(self._published)

    def _find(self, op_name: str, impl_id: str) -> OpImpl | None:
        """One of what this thread sees."""
        draft, published = self._seen_draft(), self._published.get(op_name, {}).get(impl_id)
        return published if draft is None else draft.find((op_name, impl_id), published)

    def _seen_draft(self) -> _Draft | None:
        return self._drafts.get(threading.current_thread()) or self._looked_into()

    def _looked_into(self) -> _Draft | None:
        if not self._drafts:
            return None
        me, innermost = threading.current_thread(), list(self._drafts.values())
        looked_into = (draft for each in innermost for draft in each.and_outer_ones() if me in draft.readers)
        return next(looked_into, None)

    def _publish(self, draft: _Draft) -> None:
        if not draft.added and not draft.removed:
            return
        with LOCK:
            flat = _flat(self._published)
            for key in draft.apply(flat):
                raise ValueError(_duplicate(flat[key], draft.added[key]))
            self._published = _nested(flat)
            epoch.advance()


class _Draft:
    """What a thread has added and removed in a transaction."""

    def __init__(self, outer: _Draft | None, for_all: bool) -> None:
        self.outer = outer
        self.for_all = for_all
        self.added: dict[_Key, OpImpl] = {}
        self.removed: dict[_Key, OpImpl] = {}
        self.readers: set[threading.Thread] = set()

    def and_outer_ones(self) -> Iterator[_Draft]:
        draft: _Draft | None = self
        while draft is not None:
            yield draft
            draft = draft.outer

    def include(self, inner: _Draft) -> None:
        """Take over what an inner transaction has changed."""
        for key, impl in inner.removed.items():
            if self.added.get(key) is impl:
                del self.added[key]
            else:
                self.removed[key] = impl
        self.added.update(inner.added)

    def apply(self, flat: dict[_Key, OpImpl]) -> list[_Key]:
        """Change a table so; returns what another implementation has the place of, which keeps it."""
        for key, impl in list(self.removed.items()):
            if flat.get(key) is impl:
                del flat[key]
        return [key for key, impl in list(self.added.items()) if flat.setdefault(key, impl) is not impl]

    def find(self, key: _Key, published: OpImpl | None) -> OpImpl | None:
        """What has a place after this transaction and those around it, where `published` has it now."""
        removed: list[OpImpl | None] = []
        for draft in self.and_outer_ones():
            if (impl := draft.added.get(key)) is not None and not _has(removed, impl):
                return impl
            removed.append(draft.removed.get(key))
        return None if _has(removed, published) else published

    def over(self, table: _Table) -> _Table:
        """A table as it will be after this transaction and those around it."""
        flat = _flat(table)
        for draft in reversed(list(self.and_outer_ones())):
            draft.apply(flat)
        return _nested(flat)


def _has(impls: list[OpImpl | None], impl: OpImpl | None) -> bool:
    return any(each is impl for each in impls)


def _nested(flat: dict[_Key, OpImpl]) -> _Table:
    table: _Table = {}
    for (op, impl_id), impl in flat.items():
        table.setdefault(op, {})[impl_id] = impl
    return table


def _flat(table: _Table) -> dict[_Key, OpImpl]:
    return {(op, impl_id): impl for op, row in table.items() for impl_id, impl in row.items()}


def _missing(table: _Table, impl_id: str, op_name: str | None) -> str:
    """The message about an implementation that is not there: of an op that is, the nearest of its own."""
    if op_name is not None and op_name not in table:
        return f"no implementation {impl_id!r} for op {op_name!r} is registered; {nearest(op_name, table)}"
    of_op, rows = ("", table.values()) if op_name is None else (f" for op {op_name!r}", [table[op_name]])
    hint = nearest(impl_id, {known for row in rows for known in row})
    return f"no implementation {impl_id!r}{of_op} is registered; {hint}"


_REGISTRIES: weakref.WeakSet[OpRegistry] = weakref.WeakSet()


def _drop_drafts_of_others() -> None:
    for registry in _REGISTRIES:
        mine = registry._drafts.get(me := threading.current_thread())
        registry._drafts = {} if mine is None else {me: mine}


LOADING.repairs.append(_drop_drafts_of_others)


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
