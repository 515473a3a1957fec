"""What is wrong with a backend's tree, or with trunk, found by reading: nothing of either is imported."""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tefl._errors import nearest, one_line

from .layout import misplaced, override_of
from .names import changed_signatures, imports_nothing_gives, missing_names
from .order import cycles
from .rules import PACKAGE, TRUNK, files_of, rule_for
from .source import Source, SpecCall

__all__ = ["KINDS", "Finding", "Pair", "check_tree", "check_trunk", "record"]

KINDS = {
    "unknown-path": "trunk has no such file or folder",
    "not-overridable": "the table above does not let this file be overridden",
    "double-override": "a folder and a part of a folder below it are both overridden",
    "identical": "the file does what trunk's does",
    "relative-import": "outside of the top `__init__.py`",
    "unknown-hook": "trunk asks for no function of that name",
    "unused": "a file that overrides nothing, and that the hooks do not import",
    "undefined-name": "a name that nothing defines or no import finds, or one that trunk's file exports",
    "signature": "a function takes other arguments than trunk's",
    "trunk-changed": "trunk's file is not the one that the file was written against",
    "no-record": "the file does not say which one that was",
    "cycle": "files import one another while they are imported",
    "syntax": "the file is no Python",
    "backend-branch": "a file of trunk asks which backend is active",
    "not-specialisable": "a file of trunk calls `spec` where the table does not let it",
}
"""What can be found, with its meaning."""

TOP = "__init__.py"
_RECORD = re.compile(r"^# trunk sha256: ([0-9a-f]+)\n", re.MULTILINE)


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
        self.tree = {path: Source.read(file, path) for path, file in files_of(tree).items()}
        self.trunk = {path: Source.read(file, path) for path, file in files_of(trunk).items()}

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

    @property
    def top(self) -> Source | None:
        return self.tree.get(TOP)


def check_tree(tree: Path, trunk: Path = TRUNK) -> list[Finding]:
    """Everything that is wrong with a tree. FileNotFoundError where it is no folder."""
    if not tree.is_dir():
        raise FileNotFoundError(
            f"{tree} is no folder: give a backend's tree, or the name of an installed one"
        )
    pair = Pair(tree, trunk)
    broken = [found for source in pair.tree.values() for found in _unreadable(source)]
    if broken:
        return broken
    places = [_at(pair.tree[m.path], 1, m.kind, m.message) for m in misplaced(pair.tree, pair.trunk)]
    parts = (_identical, _relative, _recorded, _hooks, _idle, _undefined, _signatures, _cycles)
    return sorted([*places, *(found for part in parts for found in part(pair))], key=_order)


def check_trunk(backends: Collection[str], trunk: Path = TRUNK) -> list[Finding]:
    """Where trunk speaks of backends, of which it must know nothing, and where it breaks its own table."""
    sources = [Source.read(file, path) for path, file in files_of(trunk).items()]
    found = [found for source in sources for found in (*_branches(source, backends), *_closed(source))]
    return sorted(found, key=_order)


def record(tree: Path, trunk: Path = TRUNK) -> list[Path]:
    """Write into each overriding file which version of trunk's file it was written against.

    Returns the files that this changed.
    """
    changed = []
    for path, source in Pair(tree, trunk).overrides.items():
        line = f"# trunk sha256: {fingerprint(trunk / path)}\n"
        text = line + _RECORD.sub("", source.text)
        if text != source.text:
            source.file.write_text(text)
            changed.append(source.file)
    return changed


def fingerprint(file: Path) -> str:
    """The first 16 hexadecimal digits of a file's SHA-256."""
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16]


def _at(source: Source, line: int, kind: str, message: str) -> Finding:
    return Finding(kind, source.file, line, message)


def _order(finding: Finding) -> tuple[str, int, str]:
    return str(finding.file), finding.line, finding.message


def _unreadable(source: Source) -> Iterator[Finding]:
    try:
        _ = source.tree
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
        now, written = fingerprint(pair.trunk[path].file), _RECORD.search(source.text)
        remedy = "`python -m tefl spec check --record` writes it"
        if written is None:
            yield _at(
                source, 1, "no-record", f"does not say which trunk file it was written against; {remedy}"
            )
        elif written[1] != now:
            changed = f"trunk's file has changed since ({written[1]}, now {now})"
            yield _at(source, 1, "trunk-changed", f"{changed}: bring the change over, then {remedy}")


def _hooks(pair: Pair) -> Iterator[Finding]:
    if pair.top is None:
        return
    for name, line in pair.top.public_names().items():
        if name not in pair.hooks:
            hint = f"{nearest(name, pair.hooks)}; a name of the tree's own starts with an underscore"
            yield _at(pair.top, line, "unknown-hook", f"trunk has no hook {name!r}; {hint}")


def _idle(pair: Pair) -> Iterator[Finding]:
    imported = {path for path, _ in _beside_top(pair).values()}
    for path, source in pair.tree.items():
        overrides_nothing = path in pair.trunk and path != TOP and not override_of(path, pair.trunk)
        may_be_here = path.endswith(TOP) or rule_for(path).functions
        if overrides_nothing and may_be_here and path not in imported:
            message = "overrides nothing here, and the tree's top __init__.py does not import it"
            yield _at(source, 1, "unused", message)


def _beside_top(pair: Pair) -> dict[str, tuple[str, str]]:
    """Name in the top ``__init__.py`` -> (file of the tree, name there), for what it imports relatively."""
    found = {}
    for imported in pair.top.imports if pair.top is not None else ():
        if imported.level == 1 and imported.name is not None:
            base = "/".join(filter(None, imported.module.split(".")))
            for path in (f"{base}.py", f"{base}/{TOP}", f"{base}/{imported.name}.py".lstrip("/")):
                if path in pair.tree:
                    found[imported.bound] = path, imported.name
                    break
    return found


def _undefined(pair: Pair) -> Iterator[Finding]:
    for path, source in pair.tree.items():
        for name, line in source.undefined().items():
            yield _at(source, line, "undefined-name", f"{name!r} is not defined")
        for line, message in imports_nothing_gives(source, pair.effective, PACKAGE):
            yield _at(source, line, "undefined-name", message)
        if path in pair.overrides:
            for message in missing_names(source, pair.trunk[path]):
                yield _at(source, 1, "undefined-name", message)
    for name, (path, there) in _beside_top(pair).items():
        if there not in pair.tree[path].bound and pair.top is not None:
            line = pair.top.bound.get(name, 1)
            yield _at(pair.top, line, "undefined-name", f"{pair.tree[path].file} has no {there!r}")


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
            message = f"trunk calls {name!r} with {call.arguments} arguments ({asking.path}:{call.line})"
            yield _at(answering, function.lineno, "signature", message)


def _function_of(
    pair: Pair, hook: str
) -> tuple[Source | None, ast.FunctionDef | ast.AsyncFunctionDef | None]:
    beside: Mapping[str, tuple[str, str]] = _beside_top(pair)
    if hook in beside:
        path, there = beside[hook]
        return pair.tree[path], pair.tree[path].functions.get(there)
    return pair.top, pair.top.functions.get(hook) if pair.top is not None else None


def _takes(function: ast.FunctionDef | ast.AsyncFunctionDef, count: int) -> bool:
    args = function.args
    positional = len(args.posonlyargs) + len(args.args)
    needed = positional - len(args.defaults)
    return needed <= count and (count <= positional or args.vararg is not None)


def _cycles(pair: Pair) -> Iterator[Finding]:
    for source, line, chain in cycles(pair.effective, pair.tree, _beside_top(pair)):
        message = f"{' -> '.join(chain)}: import inside the function that needs it"
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
