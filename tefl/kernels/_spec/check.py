"""What is wrong with a backend's tree, or with trunk, found by reading: nothing of either is imported."""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tefl._errors import SpecError, nearest, one_line

from .contents import contents_of
from .exports import changed_exports, constants
from .imports import unfound_imports
from .layout import misplaced, override_of
from .names import changed_signatures, imports_nothing_gives, missing_names
from .order import cycles
from .own import TOP, OwnImports
from .rules import PACKAGE, TRUNK, files_of, rule_for
from .source import Source, SpecCall

__all__ = ["HARMLESS", "KINDS", "Finding", "Pair", "check_tree", "check_trunk", "record"]

KINDS = {
    "unknown-path": "trunk has no such file or folder",
    "not-overridable": "the rules do not let this file be overridden",
    "double-override": "a folder and a part of a folder below it are both overridden",
    "identical": "the file does what trunk's does",
    "relative-import": "outside of the top `__init__.py`",
    "unknown-hook": "trunk asks for no function of that name",
    "unused": "a file that overrides nothing, and that the hooks do not import",
    "undefined-name": "a name that nothing defines or no import finds, or one that trunk's file exports",
    "no-function": "a hook that is a number, a text or the like",
    "signature": "a function takes other arguments than trunk's, or lacks the `@triton.jit` of trunk's",
    "trunk-changed": "trunk's file is not the one that the file was written against",
    "no-record": "the file does not say which one that was",
    "cycle": "files import one another while they are imported",
    "syntax": "the file is no Python",
    "not-source": "what lies in the tree is no Python file that can be read",
    "backend-branch": "a file of trunk asks which backend is active",
    "not-specialisable": "a file of trunk calls `spec` where the rules do not let it",
}
"""What can be found, with its meaning."""

HARMLESS = frozenset({"identical", "relative-import", "trunk-changed", "no-record"})
"""Kinds that do not keep a tree from working."""

_RECORD = re.compile(rb"^# trunk sha256: ([0-9a-f]+)\r?\n", re.MULTILINE)


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong; as text it is one line."""

    kind: str
    file: Path
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.kind}: {self.message}"


class Pair:
    """A tree beside the trunk that it specialises."""

    def __init__(self, tree: Path, trunk: Path = TRUNK) -> None:
        files, self.strays = contents_of(tree)
        self.tree = {path: Source.read(file, path) for path, file in files.items()}
        self.trunk = {path: Source.read(file, path) for path, file in files_of(trunk).items()}
        self.own = OwnImports(tree, self.tree)

    @cached_property
    def overrides(self) -> dict[str, Source]:
        """The tree's files that stand in for trunk's."""
        return {path: source for path, source in self.tree.items() if override_of(path, self.trunk)}

    @cached_property
    def helpers(self) -> dict[str, Source]:
        """The tree's own files in folders that it may override."""
        return {p: s for p, s in self.tree.items() if p not in self.trunk and rule_for(p).files}

    @cached_property
    def effective(self) -> dict[str, Source]:
        """What the modules of trunk are with this tree."""
        return {**self.trunk, **self.overrides, **self.helpers}

    @cached_property
    def hooks(self) -> dict[str, tuple[Source, SpecCall]]:
        """What trunk asks a backend for, with the place."""
        return {call.name: (source, call) for source in self.trunk.values() for call in source.spec_calls}

    @cached_property
    def given(self) -> frozenset[str]:
        """The packages that trunk needs itself."""
        imports = [one.module for source in self.trunk.values() for one in source.imports]
        return frozenset(module.partition(".")[0] for module in imports) - {"tefl"}

    @property
    def top(self) -> Source | None:
        return self.tree.get(TOP)

    @cached_property
    def beside_top(self) -> dict[str, tuple[str, str | None]]:
        """Name in the top ``__init__.py`` -> (file, name there), for what it imports of the tree."""
        if self.top is None:
            return {}
        return {bound: there for one, bound, there in self.own.of(self.top) if one.at_import}


def check_tree(tree: Path, trunk: Path = TRUNK) -> list[Finding]:
    """Everything that is wrong with a tree. FileNotFoundError where it is no folder."""
    if not tree.is_dir():
        raise FileNotFoundError(
            f"{tree} is no folder: give a backend's tree, or the name of an installed one"
        )
    pair = Pair(tree, trunk)
    strays = [Finding("not-source", tree / path, 1, said) for path, said in pair.strays.items()]
    broken = [found for source in pair.tree.values() for found in _unreadable(source)]
    if broken:
        return sorted([*strays, *broken], key=_order)
    places = [_at(pair.tree[path], 1, kind, said) for kind, path, said in misplaced(pair.tree, pair.trunk)]
    parts = (_identical, _relative, _recorded, _hooks, _idle, _undefined, _signatures, _cycles)
    return sorted([*strays, *places, *(found for part in parts for found in part(pair))], key=_order)


def check_trunk(backends: Collection[str], trunk: Path = TRUNK) -> list[Finding]:
    """Where trunk speaks of backends, of which it must know nothing, and where it breaks its own table."""
    sources = [Source.read(file, path) for path, file in files_of(trunk).items()]
    found = [found for source in sources for found in (*_branches(source, backends), *_closed(source))]
    return sorted(found, key=_order)


def record(tree: Path, trunk: Path = TRUNK) -> list[Path]:
    """Write into each overriding file which version of trunk's file it was written against.

    Returns the files that this changed. `SpecError` where one cannot be read or written.
    """
    changed = []
    for path, source in Pair(tree, trunk).overrides.items():
        before = _bytes_of(source.file)
        code = _RECORD.sub(b"", _without_mark(before))
        after = f"# trunk sha256: {fingerprint(trunk / path)}\n".encode() + code
        if after != before:
            try:
                source.file.write_bytes(after)
            except OSError as error:
                raise SpecError(
                    f"{source.file} cannot be written, so nothing is recorded there: {one_line(error)}"
                ) from error
            changed.append(source.file)
    return changed


def _bytes_of(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise SpecError(f"{file} cannot be read: {one_line(error)}") from error


def _without_mark(text: bytes) -> bytes:
    return text.removeprefix(b"\xef\xbb\xbf")  # UTF-8's byte order mark


def fingerprint(file: Path) -> str:
    """The first 16 hexadecimal digits of a file's SHA-256."""
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16]


def _at(source: Source, line: int, kind: str, message: str) -> Finding:
    return Finding(kind, source.file, line, message)


def _order(finding: Finding) -> tuple[str, int, str]:
    return str(finding.file), finding.line, finding.message


def _unreadable(source: Source) -> Iterator[Finding]:
    try:
        source.demand_python()
    except SyntaxError as error:
        yield _at(source, error.lineno or 1, "syntax", one_line(error))


def _identical(pair: Pair) -> Iterator[Finding]:
    for path, source in pair.overrides.items():
        if source.meaning() == pair.trunk[path].meaning():
            yield _at(source, 1, "identical", "does what trunk's file does: take it out of the tree")


def _relative(pair: Pair) -> Iterator[Finding]:
    for path, source in pair.tree.items():
        for line in sorted({i.line for i in source.imports if i.level and path != TOP}):
            message = "only the tree's top __init__.py may import relatively: write the absolute name"
            yield _at(source, line, "relative-import", message)


def _recorded(pair: Pair) -> Iterator[Finding]:
    for path, source in pair.overrides.items():
        now = fingerprint(pair.trunk[path].file)
        written = _RECORD.search(_without_mark(source.file.read_bytes()))
        remedy = "`python -m tefl spec check --record TREE` writes it"
        if written is None:
            yield _at(
                source, 1, "no-record", f"does not say which trunk file it was written against; {remedy}"
            )
        elif (old := written[1].decode()) != now:
            changed = f"trunk's file has changed since ({old}, now {now})"
            yield _at(source, 1, "trunk-changed", f"{changed}: bring the change over, then {remedy}")


def _hooks(pair: Pair) -> Iterator[Finding]:
    if pair.top is None:
        return
    for name, line in pair.own.hooks().items():
        if name not in pair.hooks:
            hint = f"{nearest(name, pair.hooks)}; a name of the tree's own starts with an underscore"
            yield _at(pair.top, line, "unknown-hook", f"trunk has no hook {name!r}; {hint}")
            continue
        path, there = pair.beside_top.get(name, (TOP, name))
        if there is not None and (at := constants(pair.tree[path]).get(there)) is not None:
            yield _at(pair.tree[path], at, "no-function", f"{name!r} must be a function, as trunk calls it")


def _idle(pair: Pair) -> Iterator[Finding]:
    """Files that stand in for nothing: those beside trunk's are there for the hooks, which import them when
    they are imported; a helper is there for whoever imports it."""
    with_hooks = _reached(pair, [TOP], at_import=True)
    anyhow = _reached(pair, [TOP, *pair.overrides, *pair.helpers], at_import=False)
    for path, source in pair.tree.items():
        may_be_here = path.endswith(TOP) or rule_for(path).functions
        if path in pair.trunk and path != TOP and not override_of(path, pair.trunk) and may_be_here:
            if path not in with_hooks:
                message = "overrides nothing here, and the tree's top __init__.py does not import it"
                yield _at(source, 1, "unused", message)
        elif path not in pair.trunk and path.startswith("_") and "/" not in path and path not in anyhow:
            yield _at(source, 1, "unused", "overrides nothing here, and no file of the tree imports it")


def _reached(pair: Pair, start: Collection[str], *, at_import: bool) -> set[str]:
    """The files of the tree that these import, directly or not."""
    reached: set[str] = set()
    pending = [path for path in start if path in pair.tree]
    while pending:
        path = pending.pop()
        reached.add(path)
        of = [there for one, _, (there, _) in pair.own.of(pair.tree[path]) if one.at_import or not at_import]
        packages = [f"{there.rpartition('/')[0]}/{TOP}" for there in of]
        pending += [there for there in [*of, *packages] if there in pair.tree and there not in reached]
    return reached


def _undefined(pair: Pair) -> Iterator[Finding]:
    for path, source in pair.tree.items():
        for name, line in source.undefined().items():
            yield _at(source, line, "undefined-name", f"{name!r} is not defined")
        for line, message in imports_nothing_gives(source, pair.effective, PACKAGE):
            yield _at(source, line, "undefined-name", message)
        for line, message in unfound_imports(source, pair.own, pair.given):
            yield _at(source, line, "undefined-name", message)
        for imported, _, (other, there) in pair.own.of(source):
            if there is not None and there not in pair.tree[other].bound:
                message = f"{pair.tree[other].file} has no {there!r}"
                yield _at(source, imported.line, "undefined-name", message)
        if path in pair.overrides:
            for message in missing_names(source, pair.trunk[path]):
                yield _at(source, 1, "undefined-name", message)


def _signatures(pair: Pair) -> Iterator[Finding]:
    for path, source in pair.overrides.items():
        for line, message in changed_signatures(source.functions, pair.trunk[path].functions):
            yield _at(source, line, "signature", message)
    for name, (asking, call) in pair.hooks.items():
        answering, function = _function_of(pair, name)
        if answering is None or function is None:
            continue
        if call.default in asking.functions:
            renamed = {name: function}, {name: asking.functions[str(call.default)]}
            for line, message in changed_signatures(*renamed):
                yield _at(answering, line, "signature", message)
        elif call.function == "spec" and not _takes(function, call.arguments):
            count = f"{call.arguments} argument{'' if call.arguments == 1 else 's'}"
            message = f"trunk calls {name!r} with {count} ({asking.path}:{call.line})"
            yield _at(answering, function.lineno, "signature", message)
        if call.on_globals:
            for line, message in changed_exports(answering, function, asking, pair):
                yield _at(answering, line, "signature", message)


def _function_of(
    pair: Pair, hook: str
) -> tuple[Source | None, ast.FunctionDef | ast.AsyncFunctionDef | None]:
    if hook in pair.beside_top:
        path, there = pair.beside_top[hook]
        return pair.tree[path], pair.tree[path].functions.get(there or "")
    return pair.top, pair.top.functions.get(hook) if pair.top is not None else None


def _takes(function: ast.FunctionDef | ast.AsyncFunctionDef, count: int) -> bool:
    args = function.args
    positional = len(args.posonlyargs) + len(args.args)
    needed = positional - len(args.defaults)
    by_name = any(default is None for default in args.kw_defaults)
    return needed <= count and (count <= positional or args.vararg is not None) and not by_name


def _cycles(pair: Pair) -> Iterator[Finding]:
    for source, line, chain in cycles(pair.effective, pair.tree, pair.own):
        remedy = "import inside the function that needs it, and leave `spec` and `spec_func` to trunk"
        message = f"{' -> '.join(chain)}: {remedy}"
        yield _at(source, line, "cycle", message)


def _branches(source: Source, backends: Collection[str]) -> Iterator[Finding]:
    """Comparisons with a backend's name, and questions for the active one. "cpu" and "cuda" name devices."""
    named = set(backends) - {"cpu", "cuda"}
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Compare):
            constants = [part for part in ast.walk(node) if isinstance(part, ast.Constant)]
            said = sorted({c.value for c in constants if isinstance(c.value, str) and c.value in named})
        elif isinstance(node, ast.Call):
            said = ["active_backend()"] if ast.unparse(node.func).endswith("active_backend") else []
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            said = [ast.unparse(node)] if "tefl.kernels.backends" in ast.unparse(node) else []
        else:
            continue
        for what in said:
            message = f"trunk asks for the backend ({what}): make it a hook, or a change for all"
            yield _at(source, node.lineno, "backend-branch", message)


def _closed(source: Source) -> Iterator[Finding]:
    rule = rule_for(source.path)
    for call in source.spec_calls:
        if not rule.functions:
            yield _at(source, call.line, "not-specialisable", f"{call.function} in {source.path}: {rule.why}")
