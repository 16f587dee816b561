"""Worlds of one model on MuJoCo and on MuJoCo Warp."""

import torch

from finpod.envs.locomotion.environment import LocomotionEnv
from finpod.envs.locomotion.mujoco import BatchPhysics
from finpod.envs.locomotion.specs import spec_of
from finpod.envs.locomotion.warp import WarpPhysics, load_for_warp


def actions(env, steps, seed=0):
    """Random actions [steps, W, A] within the action space."""
    drawn = torch.rand(steps, env.num_envs, env.num_actions, generator=torch.Generator().manual_seed(seed))
    return ((2 * drawn - 1) * env.spec.action_limit).to(env.device)


def both(name, variant, count, device="cpu"):
    """The same worlds on MuJoCo and on Warp, with equal solvers, and for Ant with an elliptic cone (see warp.py)."""
    import mujoco

    spec = spec_of(name, variant)
    model = load_for_warp(spec)
    if name == "ant":
        model.opt.cone = mujoco.mjtCone.mjCONE_ELLIPTIC
    here = LocomotionEnv(spec, BatchPhysics(spec, count, 1, model=model))
    return here, LocomotionEnv(spec, WarpPhysics(spec, count, device, model=model))


def require_equal_steps(here, there, steps=30):
    """Play `steps` steps on MuJoCo, take its states over to Warp, and assert that one more step is the same.

    External forces, which are up to thousands of newtons, agree to 5e-3 of their size.
    """
    *first, last = actions(here, steps + 1)
    for action in first:
        here.step(action)
    there.physics.load(here.physics.save())
    there._place, there._time = (x.to(there.device) for x in (here._place, here._time))
    one, other = here.step(last), there.step(last.to(there.device))
    other = type(other)(*(type(x)(x.state.cpu()) if hasattr(x, "state") else x.cpu() for x in other))
    gap = (here.physics.state["qpos"] - there.physics.state["qpos"].cpu()).abs().amax(-1)
    assert (gap.masked_fill(one.terminated | one.truncated, 0.0) < 1e-4).all()
    theirs, ours = other.final_obs.state, one.final_obs.state
    forces = 6 * 13 if ours.shape[1] in (105, 348) else 0
    inner = ours.shape[1] - forces
    torch.testing.assert_close(theirs[:, :inner], ours[:, :inner], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(theirs[:, inner:], ours[:, inner:], rtol=5e-3, atol=5e-3)
    torch.testing.assert_close(other.reward, one.reward, rtol=1e-4, atol=1e-4)
    assert torch.equal(other.terminated, one.terminated)
