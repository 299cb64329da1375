"""Every problem by its name: ours, and those of installed packages (entry-point group `etude.problems`)."""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points

from etude.contracts.errors import ConfigError
from etude.contracts.suggestions import did_you_mean
from etude.problems.spec import ProblemSpec, Reference, resolve

GROUP = "etude.problems"
OURS: dict[str, Reference] = {
    "choice": "etude.problems.choice:SPEC",
    "workflow": "etude.problems.workflow:SPEC",
    "allocation": "etude.problems.allocation:SPEC",
    "prompt": "etude.problems.prompt:SPEC",
}


@cache
def specs() -> dict[str, ProblemSpec]:
    """Ours first, then others by name. ConfigError for one that cannot be imported or takes a name twice."""
    found = {name: resolve(reference) for name, reference in OURS.items()}
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        if entry.name in found:
            raise ConfigError(
                f"the problem {entry.name!r} of {_package(entry)} has a name that is taken: rename its entry point"
            )
        found[entry.name] = _loaded(entry)
    return found


@cache
def names() -> frozenset[str]:
    """Without importing any of them."""
    return frozenset(OURS) | {entry.name for entry in entry_points(group=GROUP)}


def register_environments() -> None:
    """Make the environments of our problems known to Gymnasium; ImportError where that is not installed."""
    for reference in OURS.values():
        spec: ProblemSpec = resolve(reference)
        if spec.environments is not None:
            resolve(spec.environments)()


def find_spec(name: str) -> ProblemSpec:
    known = specs()
    if name not in known:
        raise ConfigError(f"there is no problem {name!r}: {did_you_mean(name, known)}there are {', '.join(known)}")
    return known[name]


def spec_of(what: object, name: str) -> ProblemSpec:
    """The problem of something that was made with it, such as a run; ConfigError says what is not installed."""
    if name not in names():
        raise ConfigError(
            f"{what} is of the problem {name!r}, which is not installed: install the package that has the entry point "
            f"{name!r} in the group {GROUP}"
        )
    return find_spec(name)


def _loaded(entry: EntryPoint) -> ProblemSpec:
    try:
        spec = entry.load()
    except Exception as error:  # whatever a package of somebody else's raises
        raise ConfigError(
            f"the problem {entry.name!r} of {_package(entry)} cannot be imported ({type(error).__name__}: {error}): "
            "repair or uninstall that package"
        ) from error
    if not isinstance(spec, ProblemSpec) or spec.name != entry.name:
        raise ConfigError(
            f"the entry point {entry.name!r} of {_package(entry)} is not a ProblemSpec of that name: expected "
            f'`{entry.name} = "package.module:SPEC"` in the group {GROUP}'
        )
    return spec


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else entry.value
