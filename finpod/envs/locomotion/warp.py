"""Physics on a GPU: MuJoCo Warp, which shares its arrays with torch.

It differs from MuJoCo on the CPU:

- The state is float32. Apart from the differences below, one step from equal states agrees to 3e-6 in all positions.
- Humanoid's model uses the PGS solver, which Warp lacks. Warp uses the Newton solver instead.
- The standard variant of Ant is a slightly different system. If a capsule stands within 30 degrees of the normal of the
  floor, the tangent axes of its contact are fixed in Warp, but follow the capsule in MuJoCo. Ant's pyramidal friction
  cone depends on these axes. After one step from equal states of random motion, positions of the two engines differ by
  more than 1e-4 in 32 % of the worlds, and by at most 0.03 (metres, radians). The median difference is 1e-7. If both
  engines use an elliptic cone, the largest difference is 4e-7.

The numbers were measured on Warp's CPU device. The CUDA graphs, and their tests (test_warp.py), have not run on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from finpod.envs.locomotion import mujoco
from finpod.envs.locomotion.mujoco import CONSTANTS, STATE, Physics, load_model
from finpod.envs.locomotion.specs import Spec
from finpod.errors import InputError

MARGIN = 2
"""Memory for contacts and constraints, as a multiple of the largest numbers under random actions, `Spec.contacts`."""
FEWEST = 16
"""Contact memory is allocated for at least this many worlds. All worlds share it, and several may need much at once."""


def packages(spec: Spec) -> tuple[Any, Any]:
    """Return the modules warp and mujoco_warp. Raises InputError if they are not installed."""
    try:
        import mujoco_warp
        import warp
    except ImportError as error:
        text = f"{spec.gym_id} on a GPU needs MuJoCo Warp, which is not installed; pip install 'finpod[gpu]'"
        raise InputError(text, argument="device") from error
    warp.config.log_level = max(warp.config.log_level, warp.LOG_WARNING)  # do not print each compiled module
    return warp, mujoco_warp


def load_for_warp(spec: Spec) -> Any:
    """Return MuJoCo's model of a task, with the Newton solver in place of PGS."""
    model = load_model(spec)
    from mujoco import mjtSolver

    if model.opt.solver == mjtSolver.mjSOL_PGS:
        model.opt.solver = mjtSolver.mjSOL_NEWTON
    return model


def describe(spec: Spec) -> dict[str, str]:
    """Return {'engine': name, version and precision, 'integrator': name, 'solver': name} for the model of a task."""
    model, (_, mujoco_warp) = load_for_warp(spec), packages(spec)
    return mujoco.describe(spec, model) | {"engine": f"MuJoCo Warp {mujoco_warp.__version__}, float32"}


class WarpPhysics(Physics):
    """Worlds on a GPU, or on the CPU in tests, in float32.

    A step is one CUDA graph, and a reset is two. Graphs store addresses, so all writes are in place. Steps and resets
    do not wait for the device. Results on a GPU may differ in their last digits from run to run.
    """

    def __init__(self, spec: Spec, num_envs: int, device: torch.device | str, *, model: Any = None) -> None:
        self.spec, self.model = spec, load_for_warp(spec) if model is None else model
        self._warp, self._engine = packages(spec)
        self._warp.init()
        self.device = torch.empty(0, device=device).device  # with its index, such as cuda:0
        self.dt = spec.frame_skip * self.model.opt.timestep
        contacts, constraints = (MARGIN * most for most in spec.contacts)
        with self._on_device():
            self._model = self._engine.put_model(self.model)
            sizes = {"nworld": num_envs, "naconmax": contacts * max(num_envs, FEWEST), "njmax": constraints}
            self._data = self._engine.make_data(self.model, **sizes)
        self._model.opt.warn_overflow = 0  # do not print overflows; `step` returns them
        if self.device.type == "cuda":
            self._model.opt.graph_conditional = self._warp.is_conditional_graph_supported()
        to_torch, engine, data = self._warp.to_torch, self._engine, self._data
        constants = [name for name in CONSTANTS if name in spec.reads]
        self._derived = [name for name in spec.reads if name not in (*constants, "cfrc_ext")]
        live = dict.fromkeys(name for name in (*STATE, *spec.reads) if name not in constants)
        self.state = {name: to_torch(getattr(data, name)) for name in live}
        self.state |= {name: self._constant(name) for name in constants}
        self.initial_qpos = self._constant("qpos0")
        self._overflow, kinds = to_torch(data.overflow), engine.OverflowType
        self._lost = int(kinds.ALL & ~(kinds.ITERATIONS | kinds.LS_ITERATIONS))  # an iteration limit is no failure
        self._mask = torch.ones(num_envs, dtype=torch.bool, device=self.device)
        mask = self._warp.from_torch(self._mask, dtype=self._warp.bool)
        self._step = self._prepared(self._advance)
        self._forward = self._prepared(lambda: engine.forward(self._model, data))
        self._clear = self._prepared(lambda: engine.reset_data(self._model, data, reset=mask))

    def step(self) -> Tensor:
        # All worlds share the memory for contacts. If it overflows, any world may have lost contacts, so all fail.
        from mujoco import mjMAXVAL

        self._step()
        qpos, qvel = self.state["qpos"], self.state["qvel"]
        sound = (qpos.abs().amax(-1) < mjMAXVAL) & (qvel.abs().amax(-1) < mjMAXVAL)
        return ~sound | ((self._overflow & self._lost) != 0)

    def reset(self, mask: Tensor, qpos: Tensor, qvel: Tensor) -> None:
        state = self.state
        before = {name: state[name].clone() for name in self._derived}  # one substep older than qpos
        self._mask.copy_(mask)
        self._clear()
        for name, begun in (("qpos", qpos), ("qvel", qvel)):
            state[name].copy_(_where(mask, begun, state[name]))
        self._forward()
        for name, stale in before.items():
            state[name].copy_(_where(mask, state[name], stale))
        if "cfrc_ext" in state:
            state["cfrc_ext"].masked_fill_(mask[:, None, None], 0.0)

    def load(self, state: dict[str, Tensor]) -> None:
        """Continue from a state. On the CPU, where the engine is deterministic, the continuation is exact."""
        self._overflow.zero_()
        super().load(state)

    def _advance(self) -> None:
        for _ in range(self.spec.frame_skip):
            self._engine.step(self._model, self._data)
        if "cfrc_ext" in self.spec.reads:
            self._engine.rne_postconstraint(self._model, self._data)

    def _constant(self, name: str) -> Tensor:
        return torch.tensor(getattr(self.model, name), dtype=torch.float32, device=self.device)

    def _on_device(self) -> Any:
        return self._warp.ScopedDevice(str(self.device))

    def _prepared(self, work: Callable[[], None]) -> Callable[[], None]:
        """Return a function that does `work` on the device. On a GPU, the function launches a CUDA graph on torch's
        stream. `work` runs once before the graph is captured, so that the kernels of `work` are compiled."""
        warp = self._warp
        if self.device.type != "cuda":

            def run() -> None:
                with self._on_device():
                    work()

            return run
        torch.cuda.synchronize(self.device)  # Warp captures on another stream
        with self._on_device():
            work()
            with warp.ScopedCapture() as capture:
                work()
        torch.cuda.synchronize(self.device)
        return lambda: warp.capture_launch(capture.graph, stream=warp.stream_from_torch(self.device))


def _where(mask: Tensor, one: Tensor, other: Tensor) -> Tensor:
    """Return the rows of `one` [W, ...] where `mask` [W] is True, and the rows of `other` elsewhere."""
    return torch.where(mask.view(-1, *[1] * (one.dim() - 1)), one, other)
