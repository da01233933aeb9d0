"""Identifies the model of a dump that is the computational graph, from graph files, by the rule in the TensorFlow data dump
document.

computational graph: ge_default_20201120163719_2 (ge_proto_00002_Build.txt has IteratorV2); its operators are in
20201120163719/0/ge_default_20201120163719_2/2
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from opdump.catalog.catalog import Catalog
from opdump.configs.plan_fields import graph_directories
from opdump.errors import CorruptDumpError, NotInDumpError
from opdump.index.runs import METADATA
from opdump.layouts.base import ModelDirectories
from opdump.layouts.graph_files.ge import (
    COMPUTE_GRAPH,
    is_computational,
    is_graph_name,
    read_ge_graph,
    read_notes,
    root_name,
    update_of,
)
from opdump.layouts.mindspore_sync.files import sanitise

BY_HAND: Final = "named by hand"

_MOST_FILES: Final = 1000
_OF_PROCESSES: Final = ("pid_*_deviceid_*", "extra-info/graph/[0-9]*_[0-9]*")
_RULE: Final = "IteratorV2, Iterator or GetNext"
_CHOOSE: Final = "--graph FILE names one"


@dataclass(frozen=True, slots=True)
class ModelGraph:
    """A model with a graph file. `rule` says why it is the computational graph, and is empty if it is not.

    `directories` contain its operators, relative to the directory of the dump; empty if it left no data.
    """

    model_name: str
    file: Path
    rule: str
    directories: tuple[str, ...] = ()
    update: str = ""
    """Type of an operator that updates a variable; empty if there is none."""


@dataclass(frozen=True, slots=True)
class GraphSearch:
    """The result of a search: the models of the dump, the places searched, and the graphs found."""

    models: tuple[str, ...]
    looked_in: tuple[Path, ...]
    graphs: tuple[ModelGraph, ...]
    warnings: tuple[str, ...]

    @property
    def computational(self) -> tuple[ModelGraph, ...]:
        """The models that the rule calls computational, usually one. If several match and one of them trains, only that one."""
        found = self._by_rule
        training = tuple(graph for graph in found if graph.update)
        return training if len(training) == 1 else found

    @property
    def others(self) -> int:
        """The number of other models that match the rule but do not train."""
        return len(self._by_rule) - len(self.computational)

    @property
    def _by_rule(self) -> tuple[ModelGraph, ...]:
        """The models that read data or, if there is none, those that the capture marked."""
        found = tuple(graph for graph in self.graphs if graph.rule)
        return tuple(graph for graph in found if graph.rule != COMPUTE_GRAPH) or found

    @property
    def marked(self) -> frozenset[str]:
        """Names of the models to mark in a listing, as directories spell them."""
        return frozenset(sanitise(graph.model_name) for graph in self.computational)


def search_graphs(
    catalog: Catalog, *, named: Path | None = None, environ: Mapping[str, str], cwd: Path
) -> GraphSearch | None:
    """Search for the graph files of a dump's models. Returns None if the dump has no models or another layout.

    If the capture recorded graph files, they are used. Otherwise the search covers the dump's directories, `cwd`, where programs
    write them, and the paths in the variables of `environ`. `named` is the graph file that the user selected. Raises
    CorruptDumpError if that file cannot be read, and NotInDumpError if it belongs to another program.
    """
    ranks = catalog.model_directories
    directories = _directories_of_models(ranks)
    if not directories:
        if named is not None:
            raise NotInDumpError(f"{catalog.path}: has no model directories, so --graph cannot select one")
        return None
    models = tuple(directories)
    if named is not None:
        return GraphSearch(models, (), (_named(catalog, named, directories),), ())
    warnings: list[str] = []
    found = {graph.model_name: graph for graph in _noted(ranks, directories, warnings)}
    looked: list[Path] = []
    if not set(directories) <= {sanitise(name) for name in found}:
        for directory in _places_to_look(ranks, environ, cwd):
            looked.append(directory)
            for graph in _graphs_in(directory, directories, warnings):
                found.setdefault(graph.model_name, graph)
    return GraphSearch(models, tuple(looked), tuple(found.values()), tuple(warnings))


def search_lines(search: GraphSearch) -> Iterator[str]:
    """The lines to print about the search; none if the dump has one model that is not a computational graph."""
    found = search.computational
    if len(found) == 1:
        yield f"computational graph: {_told(found[0])}{_told_apart(search)}"
    elif found:
        yield f"computational graph: one of {len(found)}; {_CHOOSE}, the one that trains has operators such as ApplyAdam"
        for graph in found:
            yield f"  {_told(graph)}"
    elif len(search.models) > 1 and search.graphs:
        count = len(search.graphs)
        yield (
            f"computational graph: not known; the graph files of {count} of {len(search.models)} models were read, and none has "
            f"{_RULE}; {_CHOOSE}"
        )
    elif len(search.models) > 1:
        yield (
            f"computational graph: not known; no ge_proto_*_Build.txt of the {len(search.models)} models is in "
            f"{', '.join(map(str, search.looked_in))}; {_CHOOSE}"
        )


def search_json(search: GraphSearch | None) -> dict[str, Any] | None:
    """The search as JSON: the one graph, or None and several `candidates`."""
    if search is None:
        return None
    found = [_graph_json(graph) for graph in search.computational]
    return {
        **(found[0] if len(found) == 1 else {"model_name": None, "file": None, "rule": None, "directories": []}),
        "candidates": found,
        "looked_in": [str(directory) for directory in search.looked_in],
    }


def _graph_json(graph: ModelGraph) -> dict[str, Any]:
    return {
        "model_name": graph.model_name,
        "file": str(graph.file),
        "rule": graph.rule,
        "directories": list(graph.directories),
    }


def _told(graph: ModelGraph) -> str:
    if graph.rule == BY_HAND:
        why = BY_HAND
    elif graph.rule == COMPUTE_GRAPH:
        why = f"is marked {COMPUTE_GRAPH}"
    else:
        why = f"has {graph.rule}"
    where = (
        f"its operators are in {', '.join(graph.directories)}" if graph.directories else "the dump has no data of it"
    )
    return f"{graph.model_name} ({graph.file.name} {why}); {where}"


def _told_apart(search: GraphSearch) -> str:
    if not search.others:
        return ""
    many = "another graph reads" if search.others == 1 else f"{search.others} other graphs read"
    return f". It trains ({search.computational[0].update}); {many} data too"


def _directories_of_models(ranks: Iterable[ModelDirectories]) -> dict[str, tuple[str, ...]]:
    """The name of each model, as directories spell it, and its directories."""
    found: dict[str, dict[str, None]] = {}
    for rank in ranks:
        for name, directories in rank.models.items():
            found.setdefault(name, {}).update(dict.fromkeys(directories))
    return {name: tuple(directories) for name, directories in found.items()}


def _named(catalog: Catalog, file: Path, directories: Mapping[str, tuple[str, ...]]) -> ModelGraph:
    graphs = read_ge_graph(file, names_only=True)
    name = graphs[0].name
    if sanitise(name) not in directories:
        held = ", ".join(list(directories)[:10])
        raise NotInDumpError(
            f"{file}: its graph is called {name[:200]!r}, and {catalog.path} holds {held}; name the file of one"
        )
    rule = is_computational(graphs) or BY_HAND
    return ModelGraph(name, file, rule, directories[sanitise(name)], update_of(graphs))


def _noted(
    ranks: Iterable[ModelDirectories], directories: Mapping[str, tuple[str, ...]], warnings: list[str]
) -> Iterator[ModelGraph]:
    for home in _homes(ranks):
        try:
            notes = read_notes(home / METADATA)
        except CorruptDumpError as error:
            warnings.append(str(error))
            continue
        for note in notes:
            found = directories.get(sanitise(note.model_name), ())
            yield ModelGraph(note.model_name, Path(note.file), note.rule, found, note.update)


def _homes(ranks: Iterable[ModelDirectories]) -> list[Path]:
    """The directories of devices, `{time}/{device_id}`."""
    return list(dict.fromkeys(home for rank in ranks for home in rank.homes))


def _places_to_look(ranks: Sequence[ModelDirectories], environ: Mapping[str, str], cwd: Path) -> list[Path]:
    """Directories that may contain graph files, each once, beginning with those of the dump."""
    found: dict[Path, None] = {}
    for rank in ranks:
        above = [rank.root, *rank.root.parents]
        found.update((path, None) for path in above if path == rank.base or rank.base in path.parents)
    for home in _homes(ranks):
        found.update({home.parent: None, home: None})
    for base in (*dict.fromkeys(rank.base for rank in ranks), cwd):
        found[base] = None
        for pattern in _OF_PROCESSES:
            found.update((path, None) for path in sorted(base.glob(pattern)))
    for base, pattern in graph_directories(environ, cwd=cwd):
        found[base] = None
        found.update((path, None) for path in sorted(base.glob(pattern)))
    return [path for path in found if path.is_dir()]


def _graphs_in(
    directory: Path, directories: Mapping[str, tuple[str, ...]], warnings: list[str]
) -> Iterator[ModelGraph]:
    """The graphs in a directory that belong to models of the dump."""
    try:
        with os.scandir(directory) as entries:
            names = sorted(entry.name for entry in entries if is_graph_name(entry.name))
    except OSError as error:
        warnings.append(f"{directory}: cannot be listed ({error.strerror}); graph files in it are ignored")
        return
    # The JSON file beside a text file has the same content.
    held = set(names)
    names = [name for name in names if not (name.endswith(".json") and name.removesuffix(".json") in held)]
    if len(names) > _MOST_FILES:
        warnings.append(f"{directory}: holds {len(names)} graph files; the last {_MOST_FILES} are read")
    for name in reversed(names[-_MOST_FILES:]):  # later files belong to later runs
        path = directory / name
        known = root_name(path)
        if known is not None and sanitise(known) not in directories:
            continue
        try:
            graphs = read_ge_graph(path, names_only=True)
        except CorruptDumpError as error:
            warnings.append(str(error))
            continue
        model = graphs[0].name
        if sanitise(model) in directories:
            found = directories[sanitise(model)]
            yield ModelGraph(model, path, is_computational(graphs) or "", found, update_of(graphs))
