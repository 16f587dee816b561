"""How findings of an audit are headed: a decision that changed looks ahead, what is merely at hand can."""

from __future__ import annotations

from collections.abc import Sequence

LOOKS, CAN = "LOOKS AHEAD", "CAN LOOK AHEAD"
HELD = ("decisions: on ", "features: on ")
"""How findings begin that only tell what is held of later rows."""
READ = (" while deciding on ", " while computing the values of ")
"""What findings contain that only tell what was read besides the market."""


def heading(findings: Sequence[str]) -> str:
    """LOOKS AHEAD; or CAN, where nothing that was decided or computed changed."""
    return CAN if findings and all(_is_possible(finding) for finding in findings) else LOOKS


def only_held(findings: Sequence[str]) -> bool:
    """Whether later rows are held, and nothing else was found."""
    return bool(findings) and all(finding.startswith(HELD) for finding in findings)


def _is_possible(finding: str) -> bool:
    return finding.startswith(HELD) or any(words in finding for words in READ)
