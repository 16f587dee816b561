"""Clip of one episode: `play` runs the episode, `draw` renders frames without a screen, `gif` encodes them."""

from __future__ import annotations

import io
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import shorten
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from finpod.envs.locomotion import offscreen
from finpod.envs.locomotion.environment import LocomotionEnv
from finpod.envs.locomotion.mujoco import load_model
from finpod.envs.locomotion.specs import TIME_LIMIT, Spec
from finpod.envs.step import Observation
from finpod.errors import InputError

WIDTH, HEIGHT = 320, 240
"""Width and height of a clip in pixels."""
RATE = 25
"""Approximate number of frames per second of simulated time."""
SECONDS = 10.0
"""Default limit on the simulated time that a clip shows."""
COLOURS = 128
"""Number of colours of a GIF. All frames use the same colours."""
INSTALL = "install the packages libegl1 and libgl1-mesa-dri, or libosmesa6 (names in Debian and Ubuntu)"


class Episode(NamedTuple):
    """One whole episode of one world."""

    positions: NDArray[np.float64]
    """[T, nq] positions of the joints before each step."""
    total: float
    """Return of the episode: sum of its rewards."""
    fell: bool
    """True if the episode ended in a fall or a failed simulation, False if only the time limit ended it."""
    step: float
    """Simulated seconds per step."""

    @property
    def steps(self) -> int:
        """Number of steps T of the episode."""
        return len(self.positions)

    @property
    def seconds(self) -> float:
        """Length of the episode in simulated seconds."""
        return self.steps * self.step


class Film(NamedTuple):
    """Frames at equal intervals of simulated time."""

    frames: NDArray[np.uint8]
    """[T, H, W, 3] frames."""
    interval: float
    """Seconds from one frame to the next."""


@torch.no_grad()
def play(env: LocomotionEnv, act: Callable[[Observation], Tensor]) -> Episode:
    """Run and return an episode with the actions [1, A] of `act`. `env` must have one world, which was just reset.

    Raises InputError for an action that is not finite.
    """
    obs, total, positions = env.observe(), 0.0, []
    for _ in range(TIME_LIMIT):
        positions.append(env.physics.state["qpos"][0].cpu().numpy().copy())
        step = env.step(act(obs))
        obs, total = step.obs, total + step.reward.item()
        if step.terminated.item() or step.truncated.item():
            break
    env.check()
    return Episode(np.stack(positions), total, bool(step.terminated.item()), env.physics.dt)


def draw(spec: Spec, episode: Episode, seconds: float = SECONDS) -> Film:
    """Return frames of the first `seconds` of an episode, drawn without a screen. The camera follows the body.

    On Linux, EGL is tried first, then OSMesa. If the environment variable MUJOCO_GL is set, only the backend that it
    names is tried. Raises InputError if no backend works.
    """
    stride = max(1, round(1 / (RATE * episode.step)))
    shown = episode.positions[: math.ceil(seconds / episode.step) : stride]
    reason = ""
    with TemporaryDirectory() as name:
        folder = Path(name)
        _save_model(spec, folder / offscreen.MODEL)
        np.save(folder / offscreen.POSITIONS, shown)
        for environment in _environments():
            command = [sys.executable, "-P", offscreen.__file__, name, str(WIDTH), str(HEIGHT)]
            options: dict[str, Any] = {"capture_output": True, "text": True, "errors": "replace", "check": False}
            ended = subprocess.run(command, env=environment, cwd=name, **options)
            if ended.returncode == 0:
                return Film(np.load(folder / offscreen.FRAMES), stride * episode.step)
            lines = ended.stderr.strip().splitlines() or [f"exit code {ended.returncode}"]
            reason = shorten(lines[-1], 120, placeholder="...")
    backend = " and ".join(environment.get("MUJOCO_GL", "default") for environment in _environments())
    raise InputError(f"MuJoCo cannot draw with backend {backend} ({reason}); {INSTALL}, and leave MUJOCO_GL unset")


def gif(film: Film) -> bytes:
    """Return the film as the content of a GIF file."""
    image, buffer = _pillow(), io.BytesIO()
    some = np.concatenate(film.frames[:: math.ceil(len(film.frames) / 10)])
    palette = image.fromarray(some).quantize(COLOURS, method=image.Quantize.FASTOCTREE)
    drawn = [image.fromarray(frame).quantize(palette=palette, dither=image.Dither.NONE) for frame in film.frames]
    times = np.rint(100 * film.interval * np.arange(len(film.frames) + 1)).astype(int)  # a GIF counts time in 1/100 s
    durations = (10 * np.diff(times)).tolist()
    drawn[0].save(buffer, "GIF", save_all=True, append_images=drawn[1:], duration=durations, loop=0)
    return buffer.getvalue()


def require_gif(path: Path) -> None:
    """Raise InputError if the suffix is not .gif, or if Pillow is not installed."""
    if path.suffix.lower() != ".gif":
        raise InputError(f"{path} is not a .gif; give a file that ends in .gif", argument="out")
    _pillow()


def _pillow() -> Any:
    """Return PIL.Image. Raises InputError if Pillow is not installed."""
    try:
        import PIL.Image
    except ImportError as error:
        raise InputError("a clip needs Pillow, which is not installed; pip install pillow") from error
    return PIL.Image


def _save_model(spec: Spec, path: Path) -> None:
    """Save the model with an endless floor, because agents run far. The pattern of the floor keeps its size."""
    model = load_model(spec)
    import mujoco

    floors = model.geom_type == mujoco.mjtGeom.mjGEOM_PLANE
    for size, material in zip(model.geom_size[floors], model.geom_matid[floors], strict=True):
        if material >= 0:
            model.mat_texrepeat[material] /= 2 * size[:2]
            model.mat_texuniform[material] = True
    model.geom_size[floors, :2] = 0
    mujoco.mj_saveModel(model, str(path))


def _environments() -> list[dict[str, str]]:
    """Return the environment variables for each attempt to draw, in the order of the attempts."""
    here = dict(os.environ)
    if here.get("MUJOCO_GL") or sys.platform != "linux":
        return [here]
    here.pop("PYOPENGL_PLATFORM", None)
    return [{**here, "MUJOCO_GL": name} for name in ("egl", "osmesa")]
