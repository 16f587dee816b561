"""Physics on the CPU: MuJoCo's `Batch`, a thread pool that shares its arrays with torch."""

from __future__ import annotations

import os
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from joblib import cpu_count
from torch import Tensor

from finpod.envs.locomotion.specs import Spec
from finpod.errors import InputError, first_line

STATE = ("qpos", "qvel", "ctrl", "time", "qacc_warmstart")
"""Fields of the state that a simulation needs to continue exactly."""
CONSTANTS = ("body_mass",)
"""Fields of the model that a task may read."""
START = 1.0
"""First time on the clock of an episode, in seconds. MuJoCo sets the clock of a NaN world to 0; `step` detects this."""


def load_model(spec: Spec) -> Any:
    """Return MuJoCo's model of a task. Raises InputError if mujoco is not installed or cannot be imported."""
    try:
        import mujoco
    except ImportError as error:
        text = f"{spec.gym_id} needs MuJoCo, which is not installed; pip install 'finpod[locomotion]'"
        raise InputError(text, argument="task") from error
    except Exception as error:  # for example, the graphics library named by MUJOCO_GL is missing
        backend = os.environ.get("MUJOCO_GL", "")
        text = f"cannot import MuJoCo with MUJOCO_GL='{backend}' ({first_line(error)}); unset it, or reinstall MuJoCo"
        raise InputError(text, argument="task") from error
    import gymnasium

    assets = Path(gymnasium.__file__).parent / "envs" / "mujoco" / "assets"
    text = (assets / spec.model).read_text()
    # settotalmass is deprecated: MuJoCo would print a warning and write a log file
    total = re.search(r'\bsettotalmass="([^"]*)"', text)
    model = mujoco.MjModel.from_xml_string(text.replace(total.group(), "") if total else text)
    if total:
        mujoco.mj_setTotalmass(model, float(total.group(1)))
        mujoco.mj_setConst(model, mujoco.MjData(model))
    if spec.variant == "fast":
        model.opt.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    return model


def describe(spec: Spec, model: Any = None) -> dict[str, str]:
    """Return {'engine': name and version, 'integrator': name, 'solver': name} for the model of a task."""
    option = (model or load_model(spec)).opt
    import mujoco

    return {
        "engine": f"MuJoCo {mujoco.__version__}",
        "integrator": mujoco.mjtIntegrator(option.integrator).name.removeprefix("mjINT_"),
        "solver": mujoco.mjtSolver(option.solver).name.removeprefix("mjSOL_"),
    }


def threads_of(requested: int | None) -> int:
    """Return the number of threads: `requested`. If `requested` is None, return the environment variable
    OMP_NUM_THREADS (1 in pods on Ray). If this variable is not set, return the number of usable cores."""
    return requested or int(os.environ.get("OMP_NUM_THREADS") or cpu_count())


class Physics:
    """Interface of both physics engines: W simulations ("worlds") of one model."""

    state: dict[str, Tensor]
    """MuJoCo's name of a field -> tensor. `step` changes tensors (not constants) in place. Set 'ctrl' before a step."""
    initial_qpos: Tensor
    """[nq] positions of the model at rest."""
    dt: float
    """Simulated seconds per `step`, which takes `Spec.frame_skip` physics steps."""
    device: torch.device

    def step(self) -> Tensor:
        """Step all worlds. Return a bool mask [W] of the worlds that failed: NaN, huge values or a memory overflow."""
        raise NotImplementedError

    def reset(self, mask: Tensor, qpos: Tensor, qvel: Tensor) -> None:
        """Reset the worlds that `mask` [W] marks to their rows of `qpos` [W, nq] and `qvel` [W, nv], and no others."""
        raise NotImplementedError

    def save(self) -> dict[str, Tensor]:
        """Return the state of all worlds, which `load` reads."""
        return {name: self.state[name].clone() for name in STATE}

    def load(self, state: dict[str, Tensor]) -> None:
        """Continue exactly from a state that `save` returned."""
        for name in STATE:
            self.state[name].copy_(state[name])


class BatchPhysics(Physics):
    """Worlds in MuJoCo's thread pool."""

    def __init__(self, spec: Spec, num_envs: int, threads: int | None = None, *, model: Any = None) -> None:
        self.spec, self.model = spec, model or load_model(spec)
        from mujoco.batch import Batch

        self.device = torch.device("cpu")
        self.dt = spec.frame_skip * self.model.opt.timestep
        self._forces = "cfrc_ext" in spec.reads
        self.batch = Batch(self.model, num_envs, nthread=threads_of(threads), persistent=self._forces)
        self.initial_qpos = torch.from_numpy(self.model.qpos0.copy())
        names = [*STATE, *(name for name in spec.reads if name not in (*CONSTANTS, "cfrc_ext"))]
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # torch warns of read-only arrays
            self.state = {name: torch.from_numpy(self.batch.bind(name)) for name in names}
        for name in CONSTANTS:
            if name in spec.reads:
                self.state[name] = torch.from_numpy(getattr(self.model, name).copy())
        if self._forces:
            self.state["cfrc_ext"] = torch.zeros(num_envs, self.model.nbody, 6, dtype=torch.float64)

    def step(self) -> Tensor:
        from mujoco.batch import SimulationError

        before, failed = self.state["time"].clone(), torch.zeros(self.batch.nsim, dtype=torch.bool)
        try:
            self.batch.step(nstep=self.spec.frame_skip)
        except SimulationError as error:
            failed[torch.as_tensor(np.asarray(error.ids), dtype=torch.int64)] = True
        if self._forces:
            self._contact_forces()
        reset = (self.state["time"] < before).flatten()
        broken = ~(self.state["qpos"].sum(-1) + self.state["qvel"].sum(-1)).isfinite()
        return failed | reset | broken

    def reset(self, mask: Tensor, qpos: Tensor, qvel: Tensor) -> None:
        import mujoco

        ids = mask.nonzero().flatten()
        if not len(ids):
            return
        chosen = ids.numpy().astype(np.int32)
        self.batch.reset(chosen, stage=mujoco.mjtStage.mjSTAGE_NONE)
        self.state["time"][ids] = START
        self.state["qpos"][ids], self.state["qvel"][ids] = qpos[ids], qvel[ids]
        self.batch.forward(chosen)
        if self._forces:
            self.state["cfrc_ext"][ids] = 0.0

    def _contact_forces(self) -> None:
        """Compute the external forces after the last substep, world by world. MuJoCo's step does not compute them."""
        import mujoco

        for world in range(self.batch.nsim):
            self._data = self.batch.get_data(world, getattr(self, "_data", None))
            mujoco.mj_rnePostConstraint(self.model, self._data)
            self.state["cfrc_ext"][world] = torch.from_numpy(self._data.cfrc_ext)
