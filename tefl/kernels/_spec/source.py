"""A Python file as it is written, nothing imported: its names, its functions, what it imports and calls."""

from __future__ import annotations

import ast
import builtins
import io
import re
import symtable
import tokenize
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from tefl._errors import one_line

__all__ = ["Function", "Import", "Source", "SpecCall", "own_level"]

T = TypeVar("T")

Function = ast.FunctionDef | ast.AsyncFunctionDef

_GIVEN = frozenset({*dir(builtins), "__file__", "__path__", "__builtins__"})


@dataclass(frozen=True)
class Import:
    """``from module import name as bound``, or ``import module`` with name None."""

    module: str
    level: int
    name: str | None
    bound: str
    line: int
    at_import: bool
    """Whether it runs when the file is imported, and not only when a function in it is called."""
    optional: bool = False
    """Whether the file may do without: under an ``if``, or where an ImportError is caught."""


@dataclass(frozen=True)
class SpecCall:
    """A call of ``spec`` or ``spec_func`` with its name."""

    function: str
    name: str
    arguments: int
    """Positional arguments after the name."""
    default: str | None
    """The name of the function that ``spec_func`` gives where a backend has none."""
    on_globals: bool
    """Whether it is given ``globals()``: what the file exports may be changed."""
    line: int
    at_import: bool


@dataclass(frozen=True)
class Source:
    """One file; ``path`` is relative to its tree or to trunk."""

    file: Path
    path: str
    text: str
    undecodable: str = ""
    """Why there is no text: it cannot be read, or not in the encoding that it claims."""

    @staticmethod
    def read(file: Path, path: str) -> Source:
        """Read a file, in the encoding that Python would. SyntaxError comes with the first look at `tree`."""
        try:
            data = file.read_bytes()
            encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
            return Source(file, path, data.decode(encoding).replace("\r\n", "\n"))
        except (SyntaxError, ValueError, OSError) as error:
            return Source(file, path, "", str(error))

    @cached_property
    def tree(self) -> ast.Module:
        if self.undecodable:
            raise SyntaxError(self.undecodable, (str(self.file), 1, None, None))
        return self._raising_syntax_errors(lambda: ast.parse(self.text, str(self.file)))

    def demand_python(self) -> None:
        """SyntaxError where Python could not compile it; `tree` finds less."""
        code = self.tree
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._raising_syntax_errors(lambda: compile(code, str(self.file), "exec", dont_inherit=True))

    def _raising_syntax_errors(self, parse: Callable[[], T]) -> T:
        try:
            return parse()
        except SyntaxError as error:
            error.filename = error.filename or str(self.file)
            raise
        except (ValueError, RecursionError, MemoryError) as error:  # a NUL byte; thousands of brackets
            raise SyntaxError(one_line(error), (str(self.file), 1, None, None)) from error

    @cached_property
    def functions(self) -> dict[str, Function]:
        """The functions of the module's own level."""
        return {node.name: node for node in self.tree.body if isinstance(node, Function)}

    @cached_property
    def bound(self) -> dict[str, int]:
        """Every name that the module's own level binds, imports included, with its line."""
        names: dict[str, int] = {}
        for node in own_level(self.tree):
            if isinstance(node, (Function, ast.ClassDef)):
                names.setdefault(node.name, node.lineno)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.setdefault(node.id, node.lineno)
        for imported in self.imports:
            if imported.at_import:
                names.setdefault(imported.bound, imported.line)
        return names

    @cached_property
    def exported(self) -> set[str]:
        """``__all__`` where it is a plain list, else the functions and classes without an underscore."""
        for node in self.tree.body:
            if not isinstance(node, (ast.Assign, ast.AnnAssign)) or not isinstance(node.value, ast.List):
                continue
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
                return {str(n.value) for n in node.value.elts if isinstance(n, ast.Constant)}
        own = {node.name for node in self.tree.body if isinstance(node, (Function, ast.ClassDef))}
        return {name for name in own if not name.startswith("_")}

    @cached_property
    def imports(self) -> tuple[Import, ...]:
        return tuple(_imports(self.tree, at_import=True))

    @cached_property
    def spec_calls(self) -> tuple[SpecCall, ...]:
        at_import = {id(node) for node in own_level(self.tree)}
        calls = [node for node in ast.walk(self.tree) if isinstance(node, ast.Call)]
        found = (_spec_call(node, id(node) in at_import) for node in calls)
        return tuple(call for call in found if call is not None)

    def undefined(self) -> dict[str, int]:
        """Names that are used and that neither the module nor Python defines, with their first line."""
        if any(imported.name == "*" for imported in self.imports):
            return {}
        table = symtable.symtable(self.text, str(self.file), "exec")
        known = _GIVEN | {symbol.get_name() for symbol in table.get_symbols() if _binds(symbol)}
        known |= {name for scope in _scopes(table) for name in _made_global(scope)}
        used = {name for scope in _scopes(table) for name in _free(scope, scope is table)}
        return {name: self._line_of(name) for name in sorted(used - known)}

    def _line_of(self, name: str) -> int:
        lines = [n.lineno for n in ast.walk(self.tree) if isinstance(n, ast.Name) and n.id == name]
        return min(lines, default=1)

    def meaning(self) -> str:
        """The code without comments, layout and documentation: equal for files that do the same."""
        tree = ast.parse(self.text)
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.ClassDef, Function)) and ast.get_docstring(node) is not None:
                node.body = node.body[1:] or [ast.Pass()]
        return ast.dump(tree)


def own_level(tree: ast.Module) -> Iterator[ast.AST]:
    """The nodes that run in the module's own scope, the bodies of functions and classes left out."""
    pending: list[ast.AST] = list(tree.body)
    while pending:
        node = pending.pop(0)
        yield node
        if not isinstance(node, (Function, ast.ClassDef, ast.Lambda)):
            pending.extend(ast.iter_child_nodes(node))


def _imports(node: ast.AST, at_import: bool, optional: bool = False) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        when = child.lineno if isinstance(child, ast.stmt) else 0, at_import, optional
        if isinstance(child, ast.ImportFrom):
            for alias in child.names:
                yield Import(child.module or "", child.level, alias.name, alias.asname or alias.name, *when)
        elif isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(alias.name, 0, None, alias.asname or alias.name.partition(".")[0], *when)
        else:
            inside = isinstance(child, (Function, ast.Lambda)) or _is_type_checking(child)
            yield from _imports(child, at_import and not inside, optional or _may_do_without(child))


def _may_do_without(node: ast.AST) -> bool:
    """Whether imports inside may fail, or not be tried, and the file still works."""
    if isinstance(node, ast.Try):
        caught = [ast.unparse(one.type) if one.type is not None else "Exception" for one in node.handlers]
    elif isinstance(node, ast.With):
        caught = [ast.unparse(item.context_expr) for item in node.items]
    else:
        return isinstance(node, ast.If)
    return any(re.search(r"\b(ImportError|ModuleNotFoundError|Exception|BaseException)\b", c) for c in caught)


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def _spec_call(node: ast.Call, at_import: bool) -> SpecCall | None:
    function = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    first = node.args[0] if node.args else None
    if function not in ("spec", "spec_func") or not isinstance(first, ast.Constant):
        return None
    others = [*node.args[1:], *(keyword.value for keyword in node.keywords if keyword.arg == "default")]
    default = others[0].id if function == "spec_func" and others and isinstance(others[0], ast.Name) else None
    on_globals = any(ast.unparse(argument) == "globals()" for argument in node.args[1:])
    arguments = len(node.args) - 1
    return SpecCall(function, str(first.value), arguments, default, on_globals, node.lineno, at_import)


def _scopes(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _scopes(child)


def _binds(symbol: symtable.Symbol) -> bool:
    return symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()


def _made_global(scope: symtable.SymbolTable) -> list[str]:
    symbols = scope.get_symbols()
    return [s.get_name() for s in symbols if s.is_declared_global() and s.is_assigned()]


def _free(scope: symtable.SymbolTable, is_module: bool) -> list[str]:
    symbols = [symbol for symbol in scope.get_symbols() if symbol.is_referenced()]
    return [s.get_name() for s in symbols if s.is_global() or (is_module and not _binds(s))]
