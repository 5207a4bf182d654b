"""The conformance suite as items of pytest, one per check; registered by entry point

    pytest --tfkit-backend=acme.flash                      tfkit::acme.flash::support PASSED ...
    pytest --tfkit-part=position:acme.rope,norm:acme.norm

Options: --tfkit-profile (quick), --tfkit-device (cpu), --tfkit-dtype, --tfkit-seed, --tfkit-limit. `-m tfkit_conformance` runs
these items alone. One run per part, in a process of its own, gives the outcomes of all its items, when the first is reached.
Every pytest run beside an installed tfkit imports this module, so it imports nothing else of tfkit before an option is given.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .process.messages import CheckOutcome

MARKER = "tfkit_conformance"
BESIDE = ("ledger", "process")
"""Items beside the checks: every declared cell was exercised; the part did not end its process."""

PROCESS = BESIDE[1]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tfkit", "tfkit: conformance of attention backends and other parts")
    group.addoption("--tfkit-backend", metavar="NAME[,NAME]", help="check these attention backends")
    group.addoption("--tfkit-part", metavar="SLOT:NAME[,..]", help="check these parts of other slots, position:acme.rope")
    group.addoption("--tfkit-profile", metavar="PROFILE", default="quick", help="quick, standard or deep (default quick)")
    group.addoption("--tfkit-device", metavar="DEVICE", default="cpu", help="cpu, cuda or cuda:1 (default cpu)")
    group.addoption("--tfkit-dtype", metavar="DTYPE,...", help="only these dtypes (default all that are declared)")
    group.addoption("--tfkit-seed", metavar="N", type=int, default=0, help="of the examples (default 0)")
    group.addoption("--tfkit-limit", metavar="SECONDS", type=float, default=60.0, help="what one example may take (default 60)")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"{MARKER}: a check of tfkit's conformance suite")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Puts the checks of the parts that the options name before the other items."""
    parts = list(_parts(config))
    if parts:
        items[:0] = _items(session, config, parts)


def _parts(config: pytest.Config) -> Iterator[tuple[str, str]]:
    for name in _words(config.getoption("--tfkit-backend")):
        yield "backend", name
    for word in _words(config.getoption("--tfkit-part")):
        slot, colon, name = word.partition(":")
        if not (slot and colon and name):
            raise pytest.UsageError(f"--tfkit-part is written SLOT:NAME, for instance position:acme.rope; `{word}` is written")
        yield slot, name


def _words(text: str | None) -> list[str]:
    return [word for word in (text or "").split(",") if word]


def _items(session: pytest.Session, config: pytest.Config, parts: list[tuple[str, str]]) -> list[pytest.Item]:
    from tfkit import TfkitError

    from .process.parent import ChildBug, checks_of
    from .profile import profile_of

    device, limit = config.getoption("--tfkit-device"), config.getoption("--tfkit-limit")
    if re.fullmatch(r"cpu|cuda(:[0-9]{1,3})?", device) is None:
        raise pytest.UsageError(f"--tfkit-device: unknown device `{device}`; write cpu, cuda or cuda:1")
    if not 0.1 <= limit <= 86400:
        raise pytest.UsageError(f"--tfkit-limit: seconds from 0.1 to 86400 are expected, {limit:g} is written")
    try:
        profile = profile_of(config.getoption("--tfkit-profile")).name
        names = checks_of(parts, _words(config.getoption("--tfkit-dtype")))
    except (TfkitError, ChildBug) as error:
        raise pytest.UsageError(str(error)) from None
    items: list[pytest.Item] = []
    for (slot, name), checks in zip(parts, names, strict=True):
        task = _task(config, slot, name, profile)
        node = f"tfkit::{name}"
        part = PartCollector.from_parent(session, name=node, nodeid=node, task=task, checks=checks)
        report = config.hook.pytest_make_collect_report(collector=part)
        config.hook.pytest_collectreport(report=report)
        items += report.result
    return items


def _task(config: pytest.Config, slot: str, name: str, profile: str) -> dict[str, Any]:
    return {
        "slot": slot, "name": name, "profile": profile, "device": config.getoption("--tfkit-device"),
        "dtypes": _words(config.getoption("--tfkit-dtype")) or None, "options": None,
        "seed": config.getoption("--tfkit-seed"), "limit": config.getoption("--tfkit-limit"),
    }  # fmt: skip


class PartCollector(pytest.Collector):
    """One part; the suite runs once for all its items."""

    def __init__(self, *, name: str, parent: pytest.Session, nodeid: str, task: dict[str, Any], checks: list[str]) -> None:
        super().__init__(name=name, parent=parent, nodeid=nodeid)
        self.task, self.checks = task, checks
        self.rows: dict[str, CheckOutcome] | None = None
        self.error = ""

    def collect(self) -> list[pytest.Item]:
        return [CheckItem.from_parent(self, name=name) for name in (*self.checks, *BESIDE)]

    def outcomes(self) -> dict[str, CheckOutcome]:
        """The outcome of every check, by name. The first call runs the suite."""
        from tfkit import TfkitError

        from .process.messages import outcomes
        from .process.parent import ChildBug, evaluated

        if self.rows is None:
            self.rows = {}
            try:
                self.rows = {row.name: row for row in outcomes(evaluated(self.task))}
            except (TfkitError, ChildBug) as error:
                self.error = str(error)
        if self.error:
            pytest.fail(self.error, pytrace=False)
        return self.rows


class CheckItem(pytest.Item):
    """One check of one part; `process` reports failures that have no item of their own."""

    def __init__(self, *, name: str, parent: PartCollector) -> None:
        super().__init__(name=name, parent=parent)
        self.part = parent
        self.add_marker(MARKER)
        if self.config.pluginmanager.hasplugin("xdist"):
            self.add_marker(pytest.mark.xdist_group(parent.name))

    def runtest(self) -> None:
        rows = self.part.outcomes()
        failed = [row for row in rows.values() if row.outcome == "failed"]
        if self.name == PROCESS:
            others = [f"{row.name}: {row.words}" for row in failed if row.name not in {*self.part.checks, *BESIDE}]
            if others:
                pytest.fail("\n\n".join(others), pytrace=False)
            return
        row = rows.get(self.name)
        if row is None:
            self._not_evaluated(rows.values(), failed)
            return
        if row.outcome == "failed":
            pytest.fail(row.words, pytrace=False)
        if row.outcome == "skipped":
            pytest.skip(row.words)

    def _not_evaluated(self, rows: Iterable[CheckOutcome], failed: list[CheckOutcome]) -> None:
        """Skip where a device is not there or another selected item of this part fails and says why; never pass."""
        telling = {PROCESS, *(row.name for row in failed)}
        explained = any(item.parent is self.part and item.name in telling for item in self.session.items)
        if failed and not explained:
            pytest.fail(f"not evaluated, because {failed[0].name} failed: {failed[0].words}", pytrace=False)
        if failed:
            pytest.skip(f"not evaluated, because {failed[0].name} failed")
        pytest.skip(next((row.words for row in rows if row.outcome == "skipped"), "not run"))

    def reportinfo(self) -> tuple[str, None, str]:
        return "tfkit", None, f"{self.name} of {self.part.task['name']}"
