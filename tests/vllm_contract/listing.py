"""The names that the contract lists, and the recorded ones that it does not list."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from forerun.core.jit import NUMBA_DISPATCHER_NAMES, NUMBA_PRIVATE_NAMES
from forerun.engines.vllm.contract import checks
from forerun.engines.vllm.contract.private_names import PrivateNames
from vllm_contract.recorder import Paths

DOCUMENTED = frozenset(
    {
        "vllm.SamplingParams",
        "vllm.v1.worker.cpu.shm._EventPlaceholder.synchronize",  # the stand-in for torch.cuda.Event on CPUs
        "numba.__version__",
        "numba.njit",
        "numba.core.event",  # numba's event API
        "numba.core.event.Listener",
        "numba.core.event.Listener.on_start",
        "numba.core.event.Listener.on_end",
        "numba.core.event.install_listener",
        "numba.core.dispatcher.Dispatcher.py_func",
        "numba.extending.is_jitted",
    }
)
"""Documented interfaces that forerun uses."""

PROTOCOLS = {
    "vllm.model_executor.models.": "vllm.model_executor.models.interfaces_base.VllmModelForTextGeneration",
    "vllm.tokenizers.": "vllm.tokenizers.protocol.TokenizerLike",
}
"""Protocols that classes of these packages implement without inheriting from them."""


class Listing:
    """The listed names, by the canonical path of their owner."""

    def __init__(self, groups: Sequence[PrivateNames]) -> None:
        self.members: set[str] = set()
        self.attributes: set[str] = set()
        self.functions: dict[str, set[str]] = {}
        for names in groups:
            for table in (names.live, names.fields, names.assigned, names.added):
                for owner, listed in table.items():
                    self.attributes |= {f"{path}.{name}" for path in _aliases(owner) for name in listed}
                    self.members |= {f"{owner}.{name}" for name in listed}
            self.members |= {*names.paths, *names.calls}
            self.attributes |= {*names.paths, *names.fields, *names.live, *names.assigned}
            for function, parameters in names.calls.items():
                for path in _aliases(function):
                    self.functions.setdefault(path, {""}).update(parameters)
            for kind, listed in names.fields.items():
                for path in _aliases(kind):
                    self.functions.setdefault(path, {""}).update(listed)

    def has_access(self, paths: Paths, name: str) -> bool:
        """Whether an attribute of an object with these classes, or of this module, is listed."""
        wanted = {f"{path}.{name}" for path in _with_protocols(paths)}
        return bool(wanted & (self.attributes | self.functions.keys() | DOCUMENTED)) or any(
            map(self.has_path, wanted)
        )

    def has_path(self, path: str) -> bool:
        """Whether a path is listed, or leads to something that is."""
        known = (*self.attributes, *self.functions, *DOCUMENTED)
        return any(each == path or each.startswith(f"{path}.") for each in known)

    def has_call(self, paths: Paths, keyword: str) -> bool:
        """Whether a function with this parameter is listed; a class is its constructor."""
        wanted = [name for path in _with_protocols(paths) for name in (path, f"{path}.__init__")]
        return any(keyword in self.functions.get(name, ()) for name in wanted)

    @property
    def names(self) -> set[str]:
        """The names of all listed attributes and functions."""
        return {path.rpartition(".")[2] for path in self.members}


def _aliases(path: str) -> set[str]:
    """A listed path, and the path that its object has by its own account."""
    owner, _, name = path.rpartition(".")
    found = checks.find(path)
    kind = checks.find(owner)
    own = {f"{found.__module__}.{found.__qualname__}"} if hasattr(found, "__qualname__") else set()
    inherited = {f"{kind.__module__}.{kind.__qualname__}.{name}"} if isinstance(kind, type) else set()
    return {path, *own, *inherited}


def _with_protocols(paths: Paths) -> Iterator[str]:
    yield from paths
    for path in paths:
        for package, protocol in PROTOCOLS.items():
            if path.startswith(package):
                yield protocol
                yield f"{protocol}.{path.rpartition('.')[2]}"


def unlisted_accesses(accesses: Iterable[tuple[Paths, str]], listing: Listing) -> list[str]:
    """Attributes that were accessed and are not listed."""
    return [
        f"{paths[0]}.{name}"
        for paths, name in accesses
        if not (_is_of_numba(paths) and name in (*NUMBA_PRIVATE_NAMES, *NUMBA_DISPATCHER_NAMES))
        and not listing.has_access(tuple(paths), name)
    ]


def unlisted_calls(calls: Iterable[tuple[Paths, str]], listing: Listing) -> list[str]:
    """Functions that were called, and keywords, that are not listed."""
    return [
        f"{paths[0]}({keyword})"
        for paths, keyword in calls
        if not _is_of_numba(paths) and not listing.has_call(tuple(paths), keyword)
    ]


def _is_of_numba(paths: Paths) -> bool:
    return paths[0].partition(".")[0] == "numba"
