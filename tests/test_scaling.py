"""Scaling of features to observations: fitted on training rows, and refused if damaged."""

import numpy as np
import pytest
import torch

from finpod.errors import CheckpointError
from finpod.features.scaling import Scaling


def test_b02_scaling_is_fitted_on_training_rows_only():
    raw, member = torch.tensor([1.0, 2, 3, 4, 100, 200])[:, None, None], torch.ones(6, 1, dtype=torch.bool)
    scaling = Scaling.fit(raw, member, 0, 4, names=["x"], kinds=["pooled"])
    assert scaling.mean[0] == 2.5
    assert scaling.sd[0] == pytest.approx(1.118033989, abs=1e-9)
    expected = [-1.341641, -0.447214, 0.447214, 1.341641, 5, 5]
    np.testing.assert_allclose(scaling.apply(raw, member)[:, 0, 0], expected, atol=1e-6)
    assert scaling == Scaling.fit(raw[:4], member[:4], 0, 4, names=["x"], kinds=["pooled"])


def test_cross_scaling_is_by_the_days_members():
    raw = torch.tensor([[1.0, 2, 3, 10, 1000, np.nan]])[..., None]
    member = torch.tensor([[True, True, True, False, False, True]])
    scaling = Scaling.fit(raw, member, 0, 1, names=["x"], kinds=["cross"])
    z = 1 / np.sqrt(2 / 3)
    np.testing.assert_allclose(scaling.apply(raw, member)[0, :, 0], [-z, 0, z, 3, 3, 0], atol=1e-6)
    assert (scaling.mean, scaling.sd) == ((2.0,), (pytest.approx(np.sqrt(2 / 3)),))


@pytest.mark.parametrize(
    "damage", [{"names": ["a", "b"]}, {"mean": None}, {"sd": [float("nan")]}, {"kinds": ["rank"]}, {"kinds": [[]]}]
)
def test_a_damaged_scaling_is_refused(damage):
    stored = {"names": ["x"], "kinds": ["cross"], "mean": [0.0], "sd": [1.0]}
    with pytest.raises(CheckpointError):
        Scaling.from_dict(stored | damage)
