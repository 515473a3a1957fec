"""The order in which modules of trunk and of a tree import one another, and whether it bites its own tail."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from .rules import PACKAGE, module_name
from .source import Source

__all__ = ["cycles"]

_TOP = "__init__.py"


class _Graph:
    """Who imports whom while it is itself imported. Nodes are "path" for trunk as this tree makes it, and
    "tree:path" for what of the tree is only there for its hooks.
    """

    def __init__(
        self,
        effective: Mapping[str, Source],
        tree: Mapping[str, Source],
        beside_top: Mapping[str, tuple[str, str]],
    ) -> None:
        self._modules = {module_name(path, PACKAGE): path for path in effective}
        nodes = {p: p if effective.get(p) is source else f"tree:{p}" for p, source in tree.items()}
        self.sources = {**effective, **{nodes[path]: source for path, source in tree.items()}}
        self.of_tree = list(nodes.values())
        top = tree[_TOP].bound if _TOP in tree else {}
        self._beside_top = {nodes[path]: top.get(name, 1) for name, (path, _) in beside_top.items()}

    def label(self, node: str) -> str:
        """A file for a message: the tree's by its path, trunk's as such."""
        return node.removeprefix("tree:") if node in self.of_tree else f"trunk's {node}"

    def next(self, node: str) -> Iterator[tuple[str, int]]:
        """(who is imported, in which line)"""
        source = self.sources[node]
        if node == f"tree:{_TOP}":
            for other, line in self._beside_top.items():
                package = f"{other.rpartition('/')[0]}/{_TOP}"
                # What stands in for a module of trunk is imported as that: through trunk's package.
                yield from ((entered, line) for entered in (package, other) if entered in self.sources)
        for imported in source.imports:
            if imported.at_import and not imported.level:
                for target in self._targets(node, imported.module, imported.name):
                    yield target, imported.line
        if f"tree:{_TOP}" in self.sources and not node.startswith("tree:"):
            yield from ((f"tree:{_TOP}", call.line) for call in source.spec_calls)

    def _targets(self, node: str, module: str, name: str | None) -> Iterator[str]:
        """The module, the submodule that ``from module import name`` means, and the packages on the way."""
        parts = module.split(".")
        inside = f"{node.rpartition('/')[0]}/" if not node.startswith("tree:") else ""
        for end in range(1, len(parts) + 1):
            path = self._modules.get(".".join(parts[:end]))
            entered = path is not None and not (end < len(parts) and inside and path == f"{inside}{_TOP}")
            if entered and path is not None and path != _TOP:
                yield path
        if name is not None and (submodule := self._modules.get(f"{module}.{name}")) is not None:
            yield submodule


def cycles(
    effective: Mapping[str, Source],
    tree: Mapping[str, Source],
    beside_top: Mapping[str, tuple[str, str]],
) -> Iterator[tuple[Source, int, list[str]]]:
    """(file of the tree, line, chain of paths) for each file of the tree that imports itself in the end."""
    graph = _Graph(effective, tree, beside_top)
    seen: set[frozenset[str]] = set()
    for start in graph.of_tree:
        found = _way_back(graph, start)
        if found is not None and frozenset(found[1]) not in seen:
            seen.add(frozenset(found[1]))
            yield graph.sources[start], found[0], list(map(graph.label, found[1]))


def _way_back(graph: _Graph, start: str) -> tuple[int, list[str]] | None:
    """The shortest chain of imports from a file to itself, with the line of the first."""
    pending = [(target, line, [start]) for target, line in graph.next(start)]
    visited: set[str] = set()
    while pending:
        node, line, chain = pending.pop(0)
        if node == start:
            return line, [*chain, node]
        if node not in visited:
            visited.add(node)
            pending += [(target, line, [*chain, node]) for target, _ in graph.next(node)]
    return None
