"""`within_caps`: target weights that no single name and no single decision takes too far."""

from __future__ import annotations

import sys
from numbers import Real

import torch
from torch import Tensor

from finpod.errors import InputError

LOOSE = 1e-6
"""What weights may add up to above one, and the least cap on a weight."""


def within_caps(
    target: Tensor, held: Tensor, max_weight: float | None = None, max_turnover: float | None = None
) -> Tensor:
    """Return target weights [..., N] that keep the caps, for accounts that hold the weights `held` [..., N]; both float64.

    No weight is above `max_weight`. What is above is given to the other names of the target in proportion to their weights:
    w = min(c * target, max_weight), with the c >= 1 that keeps the sum. With fewer names than the sum / max_weight the
    rest stays in cash. The sum of |w - held|, which is turnover as the ledger counts it, both sides, is at most
    `max_turnover`. What is held above `max_weight` is sold first, down to it; then w goes from there toward the target
    by the largest part of the way that `max_turnover` allows. Both caps hold to 1e-9 whenever they can; where the sale
    alone passes `max_turnover`, `max_weight` wins and nothing else is traded. None leaves a cap out. Gradients pass. Rows
    of NaN, which trade nothing, stay so.
    """
    if max_weight is not None:
        target = _at_most(target, max_weight)
    if max_turnover is None:
        return target
    start = held if max_weight is None else held.clamp(max=max_weight)
    allowed = (max_turnover - (held - start).sum(-1, keepdim=True)).clamp(min=0)
    way = (target - start).abs().sum(-1, keepdim=True)
    return start.lerp(target, allowed / way.maximum(allowed).clamp(min=1e-100))


def require_caps(max_weight: float | None, max_turnover: float | None) -> None:
    """Raise InputError for a `max_weight` that is not in [`LOOSE`, 1] and a `max_turnover` that is not finite and positive.

    None is no cap.
    """
    finite = sys.float_info
    for name, value, least, most, bound in (
        ("max_weight", max_weight, LOOSE, 1.0, f"number from {LOOSE:g} to 1"),
        ("max_turnover", max_turnover, finite.min, finite.max, "finite number above 0"),
    ):
        if value is not None and not (
            isinstance(value, Real) and not isinstance(value, bool) and least <= value <= most
        ):
            raise InputError(f"{name} is {value!r:.60}; give a {bound}, or leave it out for no cap", argument=name)


def _at_most(target: Tensor, cap: float) -> Tensor:
    """[..., N] min(c * target, cap) with the same sum, as far as there are names for it; exact, by ranking.

    If the k largest are capped, c is (sum - k * cap) / (sum of the others). The right k is the first for which c times the
    largest of the others is no more than the cap; there always is one once a weight of zero is added, and with sums of one
    it is at most 1 / cap.
    """
    total = target.sum(-1, keepdim=True)
    with torch.no_grad():
        every = torch.nn.functional.pad(target, (0, 1))
        ranked, places = every.topk(min(int((1 + LOOSE) / cap) + 1, every.shape[-1]))
        others = ranked.flip(-1).cumsum(-1).flip(-1) + every.scatter(-1, places, 0.0).sum(-1, keepdim=True)
        factor = (total - cap * torch.arange(ranked.shape[-1], device=target.device)) / others.clamp(min=1e-300)
        count = (factor * ranked <= cap).to(torch.uint8).argmax(-1, keepdim=True)
        capped = target * factor.gather(-1, count) > cap
        capped &= count > 0
    rest = (target * ~capped).sum(-1, keepdim=True)
    scale = (total - cap * capped.sum(-1, keepdim=True)) / rest.where(rest > 0, 1.0)
    return (target * scale.where(count > 0, 1.0)).masked_fill(capped, cap)
