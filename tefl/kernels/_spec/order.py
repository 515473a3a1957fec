"""The order in which modules of trunk and of a tree import one another, and import cycles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from .own import TOP, OwnImports
from .rules import PACKAGE, module_name
from .source import Source

__all__ = ["cycles"]


class _Graph:
    """Who imports whom while it is itself imported. Nodes are "path" for trunk as this tree makes it, and
    "tree:path" for what of the tree is only there for its hooks.
    """

    def __init__(
        self,
        effective: Mapping[str, Source],
        tree: Mapping[str, Source],
        own: OwnImports,
    ) -> None:
        self._modules = {module_name(path, PACKAGE): path for path in effective}
        self._nodes = {p: p if effective.get(p) is source else f"tree:{p}" for p, source in tree.items()}
        self.sources = {**effective, **{self._nodes[path]: source for path, source in tree.items()}}
        self.of_tree = list(self._nodes.values())
        self._own = own

    def label(self, node: str) -> str:
        """A file for a message: the tree's by its path, trunk's as such."""
        return node.removeprefix("tree:") if node in self.of_tree else f"trunk's {node}"

    def next(self, node: str) -> Iterator[tuple[str, int]]:
        """(who is imported, in which line)"""
        source = self.sources[node]
        if node in self.of_tree:
            for imported, _, (path, _) in self._own.of(source):
                other = self._nodes[path]
                # What stands in for a module of trunk is imported as that: through trunk's package.
                package = f"{other.rpartition('/')[0]}/{TOP}"
                entered = [one for one in (package, other) if one in self.sources and one != node]
                yield from ((one, imported.line) for one in entered if imported.at_import)
        for imported in source.imports:
            if imported.at_import and not imported.level:
                for target in self._targets(node, imported.module, imported.name):
                    yield target, imported.line
        if f"tree:{TOP}" in self.sources:
            yield from ((f"tree:{TOP}", call.line) for call in source.spec_calls if call.at_import)

    def _targets(self, node: str, module: str, name: str | None) -> Iterator[str]:
        """The module, the submodule that ``from module import name`` means, and the packages on the way."""
        parts = module.split(".")
        inside = f"{node.rpartition('/')[0]}/" if not node.startswith("tree:") else ""
        for end in range(1, len(parts) + 1):
            path = self._modules.get(".".join(parts[:end]))
            entered = path is not None and not (end < len(parts) and inside and path == f"{inside}{TOP}")
            if entered and path is not None and path != TOP:
                yield path
        if name is not None and (submodule := self._modules.get(f"{module}.{name}")) is not None:
            yield submodule


def cycles(
    effective: Mapping[str, Source],
    tree: Mapping[str, Source],
    own: OwnImports,
) -> Iterator[tuple[Source, int, list[str]]]:
    """(file of the tree, line, chain of paths) for each file of the tree that imports itself in the end."""
    graph = _Graph(effective, tree, own)
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
