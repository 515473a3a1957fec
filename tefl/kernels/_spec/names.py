"""Names and signatures that a tree must share with trunk."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from .rules import module_name
from .source import Function, Source

__all__ = ["changed_signatures", "imports_nothing_gives", "is_jitted", "missing_names"]


def missing_names(override: Source, trunk: Source) -> Iterator[str]:
    """What trunk's file exports and the file that stands in for it does not have."""
    for name in sorted(trunk.exported - set(override.bound)):
        yield f"{name!r} of trunk's {trunk.path} is missing"


def imports_nothing_gives(
    source: Source, effective: Mapping[str, Source], package: str
) -> Iterator[tuple[int, str]]:
    """(line, message) for every import from trunk that trunk, with this tree, cannot satisfy."""
    modules = {module_name(path, package): other for path, other in effective.items()}
    for imported in source.imports:
        if imported.level or not f"{imported.module}.".startswith(f"{package}."):
            continue
        module = modules.get(imported.module)
        if module is None:
            yield imported.line, f"trunk has no module {imported.module!r}"
        elif imported.name not in (None, "*") and not _gives(
            module, str(imported.name), modules, imported.module
        ):
            yield imported.line, f"{imported.module!r} has no {imported.name!r}"


def _gives(module: Source, name: str, modules: Mapping[str, Source], full_name: str) -> bool:
    changed_by_hook = any(call.function == "spec" for call in module.spec_calls)
    return name in module.bound or f"{full_name}.{name}" in modules or changed_by_hook


def changed_signatures(
    functions: Mapping[str, Function], trunk: Mapping[str, Function]
) -> Iterator[tuple[int, str]]:
    """(line, message) for every function that trunk has too and that takes other arguments there."""
    for name, function in functions.items():
        if name in trunk and not name.startswith("_"):
            ours, theirs = _signature(function), _signature(trunk[name])
            if ours != theirs:
                yield function.lineno, f"{name}({ours}) takes other arguments than trunk's {name}({theirs})"
            elif is_jitted(trunk[name]) and not is_jitted(function):
                yield function.lineno, f"{name} is no @triton.jit function, and trunk's is"


def is_jitted(function: Function) -> bool:
    """Whether one of its decorators is a ``jit``, with options or without."""
    names = [ast.unparse(one.func if isinstance(one, ast.Call) else one) for one in function.decorator_list]
    return any(name.rpartition(".")[2].endswith("jit") for name in names)


def _signature(function: Function) -> str:
    """The arguments as text, without annotations but for ``tl.constexpr``, which a caller must know."""
    arguments = ast.parse(ast.unparse(function.args).join(("def f(", "): pass"))).body[0]
    assert isinstance(arguments, ast.FunctionDef)
    for argument in ast.walk(arguments.args):
        if isinstance(argument, ast.arg) and argument.annotation is not None:
            compiled_in = ast.unparse(argument.annotation).endswith("constexpr")
            argument.annotation = ast.Name("constexpr") if compiled_in else None
    return ast.unparse(arguments.args)
