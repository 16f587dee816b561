"""Warnings and events of backtests, and findings and outcomes of audits. `backtesting.sentences` has their texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

GRAVE = frozenset({"in_sample", "look_ahead", "ruined"})
"""Codes of grave warnings. The figures of a result with such a warning say nothing about future returns."""


@dataclass(frozen=True)
class ResultWarning:
    """A reason to doubt a result."""

    code: str
    """Kind of the warning, a key of `backtesting.sentences.WARNINGS`; "note" is a remark from the data's manifest."""
    data: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Values to insert into the sentence of the warning, as JSON types."""

    @property
    def grave(self) -> bool:
        """True if the figures say nothing about future returns."""
        return self.code in GRAVE


@dataclass(frozen=True)
class Event:
    """An event in the account on one day.

    `code` "skipped": the first decision was skipped, because the data have no row before the start. "delisted": a
    delisting turned a position into cash. The other codes say why an asset that was not held could not be bought:
    "not_member", "no_price", "no_volume", "no_cash" and "no_whole_share".
    """

    day: str  # session, YYYY-MM-DD
    code: str
    ticker: str = ""  # ticker of the asset; empty if the event concerns no single asset
    shares: float | None = None  # number of shares that a delisting turned into cash
    price: float | None = None  # price at which a delisting turned the shares into cash
    count: int = 1  # number of unfilled orders with this code; the event describes the first


class Severity(StrEnum):
    """Severity of a finding, the highest first."""

    LOOKS_AHEAD = "looks_ahead"
    """Look-ahead bias: a decision, a feature or a fill depends on the future."""
    CAN_LOOK_AHEAD = "can_look_ahead"
    """Possible look-ahead bias: the strategy could read later data, or data from outside the market."""


@dataclass(frozen=True)
class Finding:
    """One finding of the look-ahead audit.

    `kind` "cut": a result changed after later rows were removed. "noise": one changed after noise replaced later rows.
    "held": the strategy contains later rows. "model": it contains a model and does not state `trained_until`. "file",
    "network", "process", "clock": the strategy or a feature uses it. "fill": a decision knew the price of its fill.
    "backfilled": prices do not move before the first real bar. "extra": a column predicts the next return.
    """

    kind: str
    severity: Severity
    where: str  # audited part: "decisions", "features", "fills", "data", or the name of a feature
    day: str = ""  # first session with the finding, YYYY-MM-DD
    subject: str = ""  # a ticker, a column, an attribute of the strategy, or function, file and line
    size: float | None = None  # size of a change (infinite if a value appeared or vanished), a price or a correlation
    note: str = ""  # description of the later rows, of the model, or of what was done, such as "starts a process"
    data: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Further values, as JSON types. They depend on `kind`: "cut", for example, has "days" and "checked"."""


@dataclass(frozen=True)
class Audit:
    """Outcome of a look-ahead audit; `print` shows it as text."""

    passed: bool | None
    """True if the checks found nothing, False if there are findings. None if decisions could not be audited (see
    `reason`) and there are no findings."""
    findings: tuple[Finding, ...] = ()
    days: tuple[str, ...] = ()  # days of the rows checked, YYYY-MM-DD
    subject: str = ""  # name of the strategy or other object audited
    unchecked: tuple[str, ...] = ()  # what was not checked, as keys of `backtesting.sentences.UNCHECKED`
    reason: str = ""
    """Reason why decisions could not be audited; empty if they were. "ready_weights": weights were given as an array.
    "no_decision": no decision was on an auditable day. "not_repeatable": repetitions differ. "failed": an error."""
    note: str = ""  # if `reason` is "not_repeatable", the day of the difference; if it is "failed", the error
    decisions: int | None = None  # number of decisions of the run; decisions not to trade are not counted
    compared: int | None = None  # how many of these `decisions` were compared, up to the last day checked

    @property
    def severity(self) -> Severity | None:
        """The highest severity of the findings; None if there are no findings."""
        severities = {finding.severity for finding in self.findings}
        return next((severity for severity in Severity if severity in severities), None)

    def to_record(self) -> dict[str, Any]:
        """Return the audit as plain values for JSON. `from_record` reads them."""
        return asdict(self)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Audit:
        """Return the audit from the result of `to_record`. Raises KeyError, TypeError or ValueError for bad values."""
        findings = [Finding(**{**finding, "severity": Severity(finding["severity"])}) for finding in record["findings"]]
        texts = {name: tuple(map(str, record[name])) for name in ("days", "unchecked")}
        return cls(**{**record, **texts, "findings": tuple(findings)})

    def __str__(self) -> str:
        from finpod.backtesting.sentences import format_audit

        return format_audit(self)


def records(values: Sequence[ResultWarning | Event]) -> list[dict[str, Any]]:
    """Return warnings or events as plain values for JSON."""
    return [asdict(value) for value in values]
