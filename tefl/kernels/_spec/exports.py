"""What a hook that is given trunk's exported names puts in their place, and hooks that are no functions."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Protocol

from .names import changed_signatures
from .own import OwnImports
from .rules import PACKAGE, module_name
from .source import Function, Source, own_level

__all__ = ["changed_exports", "constants"]


class _Pair(Protocol):
    own: OwnImports
    tree: dict[str, Source]

    @property
    def effective(self) -> Mapping[str, Source]: ...


def changed_exports(source: Source, hook: Function, asking: Source, pair: _Pair) -> Iterator[tuple[int, str]]:
    """(line, message) for each function that a hook exports instead of trunk's and that is called otherwise.

    Seen are ``exported["name"] = function`` and ``exported.update(...)`` with functions by their names.
    """
    parameters = [*hook.args.posonlyargs, *hook.args.args]
    if not parameters:
        return
    for name, function, line in _put(hook, parameters[0].arg):
        theirs = _function(asking, name, pair)
        ours = _inside(hook, function) or _function(source, function, pair)
        if ours is not None and theirs is not None:
            for _, message in changed_signatures({name: ours}, {name: theirs}):
                yield line, message


def _put(hook: Function, exported: str) -> Iterator[tuple[str, str, int]]:
    """(exported name, name of what is put there, line)"""
    for node in ast.walk(hook):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
            for target in node.targets:
                if isinstance(target, ast.Subscript) and ast.unparse(target.value) == exported:
                    yield from _named(target.slice, node.value)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == f"{exported}.update":
            for keyword in node.keywords:
                yield from _named(ast.Constant(keyword.arg), keyword.value)
            for given in node.args:
                if isinstance(given, ast.Dict):
                    for key, value in zip(given.keys, given.values, strict=True):
                        yield from _named(key, value)


def _named(key: ast.AST | None, value: ast.AST) -> Iterator[tuple[str, str, int]]:
    if isinstance(key, ast.Constant) and isinstance(key.value, str) and isinstance(value, ast.Name):
        yield key.value, value.id, value.lineno


def _inside(hook: Function, name: str) -> Function | None:
    return next((n for n in ast.walk(hook) if isinstance(n, Function) and n.name == name), None)


def _function(source: Source, name: str, pair: _Pair, depth: int = 8) -> Function | None:
    """The function that a name means in a file, followed through its imports; None where it is not known."""
    if name in source.functions or not depth:
        return source.functions.get(name)
    modules = {module_name(path, PACKAGE): other for path, other in pair.effective.items()}
    for imported in source.imports:
        if imported.bound != name or imported.name is None:
            continue
        other = modules.get(imported.module)
        for path, there in pair.own.targets(source, imported).values():
            other, name = pair.tree[path], there or name
        if other is not None:
            return _function(other, imported.name, pair, depth - 1)
    return None


def constants(source: Source) -> dict[str, int]:
    """The names that a file binds to a plain value, which nobody can call, with their lines."""
    found: dict[str, int] = {}
    plain = (ast.Constant, ast.List, ast.Tuple, ast.Dict, ast.Set, ast.JoinedStr, ast.UnaryOp)
    for node in own_level(source.tree):
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(node.value, plain):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id: node.lineno for target in targets if isinstance(target, ast.Name)}
    return {name: line for name, line in found.items() if name not in source.functions}
