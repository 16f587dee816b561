"""`within_caps`: limits on the weight of an asset and on the turnover of a decision."""

from __future__ import annotations

import torch
from torch import Tensor

LOOSE = 1e-6
"""Weights may sum to at most 1 plus this value. This value is also the smallest `max_weight` allowed."""


def within_caps(
    target: Tensor, current: Tensor, max_weight: float | None = None, max_turnover: float | None = None
) -> Tensor:
    """Return `target`, the target weights [..., N] of N assets, after applying the caps.

    `current` [..., N] are the weights that the accounts hold before trading. All weights are float64.

    No weight exceeds `max_weight`. The excess goes to the other assets of the target in proportion to their weights:
    the capped target is min(c * target, max_weight), where c >= 1 keeps the sum S of the target. If the target has
    fewer than S / max_weight assets, the rest stays in cash.

    The turnover is sum |w - current| of the returned weights w. Positions above `max_weight` are always sold down to it
    first. If these sales exceed `max_turnover`, nothing else is traded. Otherwise, the weights move from there towards
    the capped target as far as `max_turnover` allows, and both caps hold to 1e-9.

    None means no cap. Gradients pass through the function. Rows of NaN, which mean no trade, stay NaN.
    """
    if max_weight is not None:
        target = _at_most(target, max_weight)
    if max_turnover is None:
        return target
    start = current if max_weight is None else current.clamp(max=max_weight)
    allowed = (max_turnover - (current - start).sum(-1, keepdim=True)).clamp(min=0)
    way = (target - start).abs().sum(-1, keepdim=True)
    return start.lerp(target, allowed / way.maximum(allowed).clamp(min=1e-100))


def _at_most(target: Tensor, cap: float) -> Tensor:
    """Return min(c * target, cap) [..., N]. The factor c is chosen so that the sum of the target is kept if possible.

    If the k largest weights are capped, c = (sum - k * cap) / (sum of the other weights), where sum is the sum of the
    target. The solution is the smallest k for which c times the largest uncapped weight is at most the cap. A weight of
    zero is appended so that such a k always exists. For sums up to one, k is at most 1 / cap.
    """
    total = target.sum(-1, keepdim=True)
    with torch.no_grad():
        every = torch.nn.functional.pad(target, (0, 1))
        ranked, places = every.topk(min(int((1 + LOOSE) / cap) + 1, every.shape[-1]))
        others = ranked.flip(-1).cumsum(-1).flip(-1) + every.scatter(-1, places, 0.0).sum(-1, keepdim=True)
        factor = (total - torch.arange(ranked.shape[-1]).to(ranked) * cap) / others.clamp(min=1e-300)
        count = (factor * ranked <= cap).to(torch.uint8).argmax(-1, keepdim=True)
        capped = target * factor.gather(-1, count) > cap
        capped &= count > 0
    rest = (target * ~capped).sum(-1, keepdim=True)
    scale = (total - cap * capped.to(rest).sum(-1, keepdim=True)) / rest.where(rest > 0, 1.0)
    return (target * scale.where(count > 0, 1.0)).masked_fill(capped, cap)
