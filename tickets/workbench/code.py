"""Code that a command line names: ``FILE.py:NAME``, or ``package.module:NAME`` of what is installed.

Only the command line, or a configuration file that it names, can name code. No artifact's text is ever followed.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from dpltm.errors import ArtifactError, CodeError, InputError, did_you_mean, first_line
from dpltm.networks import NAMES_CODE, names_code
from dpltm.networks.own import FILE_MODULE, OwnModel, own_model
from dpltm.options.network import GIVEN, NetworkOptions
from dpltm.privacy.entry import NO_LINEAGE, Lineage
from dpltm.records.files import file_digest
from dpltm.tickets.export import read_origin
from dpltm.tickets.files import LINEAGE, read_header
from dpltm.tickets.model_card import sources
from dpltm.tickets.run import load_run
from dpltm.tickets.store import find_set, with_code
from dpltm.tickets.ticket_set import MAX_SET
from dpltm.training.artifacts import DEFAULT_NETWORK, Run, TicketSet


def own_of(model: str | None, options: NetworkOptions) -> OwnModel | None:
    """Return the network of the user's own that a request names, or half names: a kind with given weights, half frozen.

    InputError for no such file, module or name, or no network; CodeError where the file raises.
    """
    settings = {name: value for name, value in vars(options).items() if name in GIVEN and value is not None}
    if options.start is not None and (lineage := _lineage_of(Path(options.start))).paid:
        if options.start_provenance is not None:
            raise InputError(
                f"`start_provenance`: {options.start} says itself that it depends on releases from"
                f" {', '.join(sources(lineage))}; leave it out, and what they cost counts"
            )
        settings["start_lineage"] = lineage
    if model is not None and names_code(model):
        return code_named(model, **settings)
    return own_model(model or DEFAULT_NETWORK, **settings) if settings else None


def _lineage_of(start: Path) -> Lineage:
    """Return what given weights bring along, where their file is that of a run, or of an exported ticket."""
    if start.name == "model.safetensors" and (start.parent / LINEAGE).is_file():
        return load_run(start.parent).lineage
    try:
        read_header(start, 8 * MAX_SET)
    except ArtifactError:
        return NO_LINEAGE  # whoever reads the weights refuses it
    origin = read_origin(start)
    return NO_LINEAGE if origin is None else origin.lineage


def opened_set(name: str | None, model: str | None) -> TicketSet:
    """Return the set that a request names, with the code that it names, if any."""
    return with_code(find_set(name or ""), None if model is None else code_named(model))


def opened_run(name: str | None, model: str | None) -> Run:
    """Return the same of a run."""
    return with_code(load_run(Path(name or "")), None if model is None else code_named(model))


def code_named(text: str, **settings: Any) -> OwnModel:
    """Return what a text on the command line names, with fields of ``OwnModel``; InputError where that is no code."""
    match = NAMES_CODE.fullmatch(text)
    if match is None:
        raise InputError(f"`model`: {text!r:.80} names no code; name it as FILE.py:NAME or package.module:NAME")
    place, name = match["place"], match["name"]
    in_file = place.endswith(".py")
    if in_file and not Path(place).is_file():
        raise InputError(f"`model`: {place}: no such file")
    module = _of_file(Path(place)) if in_file else _of_package(place)
    code: Any = module
    for part in name.split("."):
        if not hasattr(code, part):
            raise InputError(f"`model`: {place} has no {name}{did_you_mean(part, vars(code))}")
        code = getattr(code, part)
    source: str | None = place if in_file else getattr(module, "__file__", None)
    if not in_file and (inspect.isclass(code) or inspect.isfunction(code)):
        with contextlib.suppress(TypeError, OSError):  # a package may hand on what one of its modules holds
            source = inspect.getsourcefile(code) or source
    digest = None if source is None else file_digest(source)
    return own_model(code, text=f"{Path(place).name}:{name}" if in_file else text, source_sha256=digest, **settings)


def _of_file(path: Path) -> ModuleType:
    """Run one file by itself: nothing beside it can be imported through it."""
    name = f"{FILE_MODULE}{file_digest(path)[:16]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # which dataclasses, among others, look up
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        with _of_the_user(path):
            spec.loader.exec_module(module)
    except CodeError:
        del sys.modules[name]
        raise
    finally:
        sys.dont_write_bytecode = before
    return module


def _of_package(place: str) -> ModuleType:
    with _of_the_user(place):
        if importlib.util.find_spec(place.partition(".")[0]) is not None:
            return importlib.import_module(place)
    raise InputError(
        f"`model`: no module {place!r} is installed; of a file of your own write its path, as FILE.py:NAME"
    )


@contextlib.contextmanager
def _of_the_user(place: str | Path) -> Iterator[None]:
    """A block that runs the user's own code, and finds no modules in the working folder unless PYTHONPATH names it."""
    before = list(sys.path)
    search_path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [path for path in before if path not in ("", os.getcwd()) or (path and path in search_path)]
    try:
        yield
    except (Exception, SystemExit) as error:
        why = first_line(error) if isinstance(error, Exception) else str(error) or "it ends the process"
        raise CodeError(f"`model`: {place}: raises {type(error).__name__}: {why}") from error
    finally:
        sys.path[:] = before
