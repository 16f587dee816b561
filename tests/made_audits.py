"""Audits in words, for tests."""

from finpod.backtesting.sentences import finding_sentence
from finpod.records import Audit


def sentences(audit: Audit) -> tuple[str, ...]:
    """The findings as sentences."""
    return tuple(map(finding_sentence, audit.findings))
