"""A program that draws a model at given positions without a screen: `python offscreen.py FOLDER WIDTH HEIGHT`.

It runs in a separate process because MuJoCo and PyOpenGL choose an OpenGL backend once, when they are imported.
"""

from __future__ import annotations

import sys
from pathlib import Path

MODEL, POSITIONS, FRAMES = "model.mjb", "positions.npy", "frames.npy"
"""Names of files in FOLDER: MuJoCo's binary model, positions [T, nq] float64, and drawn frames [T, H, W, 3] uint8."""


def draw(folder: Path, width: int, height: int) -> None:
    """Draw each row of `POSITIONS`, and write all frames to `FRAMES`. Shadows are left out: they are slow on a CPU."""
    import mujoco
    import numpy as np

    model = mujoco.MjModel.from_binary_path(str(folder / MODEL))
    positions, data = np.load(folder / POSITIONS), mujoco.MjData(model)
    frames = np.empty((len(positions), height, width, 3), dtype=np.uint8)
    with mujoco.Renderer(model, height, width) as renderer:
        for flag in (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION):
            renderer.scene.flags[flag] = False
        for position, frame in zip(positions, frames, strict=True):
            data.qpos[:] = position
            mujoco.mj_forward(model, data)
            renderer.update_scene(data, "track")  # a camera that follows the centre of mass
            renderer.render(out=frame)
    np.save(folder / FRAMES, frames)


if __name__ == "__main__":
    draw(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
