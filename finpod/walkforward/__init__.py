"""Walk-forward: train on what was known, trade the next window, move on; one account all the way."""

from finpod.walkforward.retraining import require_free_for, walk_forward
from finpod.walkforward.segments import Segment, as_span, schedule
from finpod.walkforward.stitched import WalkForward, load_walkforward

__all__ = ["Segment", "WalkForward", "as_span", "load_walkforward", "require_free_for", "schedule", "walk_forward"]
