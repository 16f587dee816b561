"""Warnings, events, audit findings and the outcome of an audit, as values; `backtesting.sentences` words them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

GRAVE = frozenset({"in_sample", "look_ahead", "ruined"})
"""Codes of warnings after which the figures say nothing about the future."""


@dataclass(frozen=True)
class ResultWarning:
    """Something to know before believing a result."""

    code: str
    """Which warning it is; `backtesting.sentences.WARNINGS` lists them all. "note" is a remark that came with the data."""
    data: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """JSON values that the sentence is made of."""

    @property
    def grave(self) -> bool:
        """Whether the figures say nothing about the future."""
        return self.code in GRAVE


@dataclass(frozen=True)
class Event:
    """Something that happened to the account on one day."""

    day: str
    """Session, YYYY-MM-DD."""
    code: str
    """"skipped", "delisted", or why an order was not filled: "not_member", "no_price", "no_cash", "no_whole_share"."""
    ticker: str = ""
    """Asset it happened to."""
    shares: float | None = None
    """Shares that a delisting turned to cash."""
    price: float | None = None
    """Price at which it did."""
    count: int = 1
    """Such orders in the whole run; the event describes the first."""


class Severity(StrEnum):
    """Whether a finding shows look-ahead or only its possibility."""

    LOOKS_AHEAD = "looks_ahead"
    """A decision, a feature or a fill changed with the future."""
    CAN_LOOK_AHEAD = "can_look_ahead"
    """Later data, or data from elsewhere, were within reach."""


@dataclass(frozen=True)
class Finding:
    """One finding of the look-ahead audit."""

    kind: str
    """"cut" and "noise" (a result changed when later rows were left out or replaced), "held" (later rows within reach), "model"
    (fitted on days that nothing shows), "file", "network", "process", "clock", "environment" (read from elsewhere), "fill",
    "backfilled", "extra"."""
    severity: Severity
    """Whether it shows look-ahead or its possibility."""
    where: str
    """Part that was examined: "decisions", "features", "fills", "data", or the name of a feature."""
    day: str = ""
    """First session on which it was seen, YYYY-MM-DD."""
    subject: str = ""
    """Ticker, column, path of the object, or function, file and line."""
    size: float | None = None
    """Size of a change; infinite where a value appeared or vanished. Price of a fill."""
    note: str = ""
    """Content that was held or read."""
    data: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """JSON values that belong to the kind, such as "days" and "checked" of a change."""


@dataclass(frozen=True)
class Audit:
    """Outcome of a look-ahead audit; prints itself."""

    passed: bool | None
    """Whether nothing was found on the days checked; None if nothing could be told."""
    findings: tuple[Finding, ...] = ()
    """Findings, in the order of the checks."""
    days: tuple[str, ...] = ()
    """Sessions checked, YYYY-MM-DD."""
    subject: str = ""
    """Name of the strategy, or of what else was audited."""
    unchecked: tuple[str, ...] = ()
    """Codes of what the outcome does not cover; `backtesting.sentences.UNCHECKED` words them."""
    reason: str = ""
    """Why nothing could be told: "ready_weights", "no_decision", "not_repeatable" or "failed"; empty if it could."""
    note: str = ""
    """Day or error that belongs to the reason."""
    decisions: int | None = None
    """Decisions of the run."""
    compared: int | None = None
    """Times that the run asked the strategy, up to the last day checked, and the answers were compared."""

    @property
    def severity(self) -> Severity | None:
        """The gravest of the findings; None without any."""
        found = {finding.severity for finding in self.findings}
        return next((severity for severity in Severity if severity in found), None)

    @property
    def only_held(self) -> bool:
        """Whether later rows were within reach and nothing else was found."""
        return bool(self.findings) and all(finding.kind in ("held", "model") for finding in self.findings)

    def to_record(self) -> dict[str, Any]:
        """Plain values for JSON, as `from_record` reads them."""
        return asdict(self)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Audit:
        """The audit that `to_record` wrote. Raises KeyError, TypeError or ValueError for anything else."""
        findings = [Finding(**{**finding, "severity": Severity(finding["severity"])}) for finding in record["findings"]]
        texts = {name: tuple(map(str, record[name])) for name in ("days", "unchecked")}
        values = {name: value for name, value in record.items() if name != "undated"}  # earlier versions: models held
        return cls(**{**values, **texts, "findings": tuple(findings)})

    def __str__(self) -> str:
        from finpod.backtesting.sentences import format_audit

        return format_audit(self)


def records(values: Sequence[ResultWarning | Event]) -> list[dict[str, Any]]:
    """Plain values of warnings or events, for JSON."""
    return [asdict(value) for value in values]
