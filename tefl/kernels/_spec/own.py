"""What a tree's files import from one another, and which hooks its top ``__init__.py`` offers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from .contents import contents_of
from .source import Import, Source

__all__ = ["OwnImports", "hooks_of"]

TOP = "__init__.py"

Target = tuple[str, str | None]
"""A file of the tree and the name in it; None for the module itself."""


class OwnImports:
    """The imports of a tree's files that lead to files of the tree, written relatively or absolutely.

    The tree's name as a package is not known: an absolute name is the tree's where it begins as the folder's
    path ends, such as ``acme_kernels.spec``.
    """

    def __init__(self, folder: Path, tree: Mapping[str, Source]) -> None:
        self._folders = folder.absolute().parts
        self._tree = tree

    def targets(self, source: Source, imported: Import) -> dict[str, Target]:
        """Bound name -> what it is, for one import statement; empty where it leads out of the tree."""
        base = self._base(source.path, imported)
        if base is None:
            return {}
        if imported.name == "*":
            module = self._module(base)
            names = [] if module is None else self._tree[module].bound
            return {n: (module, n) for n in names if module is not None and not n.startswith("_")}
        found = self._target(base, imported.name)
        return {imported.bound: found} if found is not None else {}

    def of(self, source: Source) -> Iterator[tuple[Import, str, Target]]:
        """(import, bound name, what it is) for all of a file's."""
        for imported in source.imports:
            for bound, target in self.targets(source, imported).items():
                yield imported, bound, target

    def hooks(self) -> dict[str, int]:
        """What the top ``__init__.py`` offers trunk: its public functions, those that it imports from this
        package, and all that its ``__all__`` lists, with their lines."""
        top = self._tree.get(TOP)
        if top is None:
            return {}
        names = {name: line for name, line in top.bound.items() if name != "*"}
        for imported in filter(lambda one: one.at_import, top.imports):
            targets = self.targets(top, imported)
            names.update(dict.fromkeys(targets, imported.line))
            if imported.name is None or not self._is_near(imported):
                names.pop(imported.bound, None)
            for module in [bound for bound, (_, there) in targets.items() if there is None]:
                names.pop(module, None)
        names.update({name: names.get(name, 1) for name in top.exported if name in top.bound})
        return {name: line for name, line in names.items() if not name.startswith("_")}

    def is_beside(self, module: str, level: int) -> bool:
        """Whether the file or folder of a module is there, for one that the top ``__init__.py`` names
        relatively, or whose name begins as the path of the tree, or of the folder around it, ends."""
        parts = tuple(filter(None, module.split(".")))
        if level:
            places = [(*self._folders[: len(self._folders) - level + 1], *parts)]
        else:
            around = [(folders, _below(folders, parts)) for folders in (self._folders, self._folders[:-1])]
            places = [(*folders, *below) for folders, below in around if below is not None]
        return any(Path(*place).is_dir() or Path(f"{Path(*place)}.py").exists() for place in places)

    def _base(self, path: str, imported: Import) -> tuple[str, ...] | None:
        """The module of an import statement below the tree; None where it is elsewhere."""
        parts = tuple(filter(None, imported.module.split(".")))
        if imported.level:
            package = path.split("/")[:-1]
            up = imported.level - 1
            return None if up > len(package) else (*package[: len(package) - up], *parts)
        return _below(self._folders, parts)

    def _is_near(self, imported: Import) -> bool:
        """Whether it imports from the tree or from the package that the tree lies in."""
        parts = tuple(imported.module.split("."))
        return bool(imported.level) or _below(self._folders[:-1], parts) is not None

    def _target(self, base: tuple[str, ...], name: str | None) -> Target | None:
        module = self._module(base)
        if name is None:
            return None if module is None else (module, None)
        if (submodule := self._module((*base, name))) is not None:
            return submodule, None
        return None if module is None else (module, name)

    def _module(self, base: tuple[str, ...]) -> str | None:
        path = "/".join(base)
        candidates = (f"{path}.py", f"{path}/{TOP}" if path else TOP)
        return next((candidate for candidate in candidates if candidate in self._tree), None)


def _below(folders: tuple[str, ...], module: tuple[str, ...]) -> tuple[str, ...] | None:
    """What of a module's name is below a folder, if the name begins as the folder's path ends."""
    for length in range(len(module), 0, -1):
        if folders[-length:] == module[:length]:
            return module[length:]
    return None


def hooks_of(folder: Path) -> dict[str, int]:
    """The hooks that a tree offers, with their lines. SyntaxError where a file is no Python."""
    tree = {path: Source.read(file, path) for path, file in contents_of(folder).files.items()}
    return OwnImports(folder, tree).hooks()
