"""Clips of locomotion agents: frames, the command, and errors of one line."""

import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from made_commands import run
from made_toy import SMALL

import finpod
from finpod.envs.locomotion import render
from finpod.envs.locomotion.environment import make_locomotion

pytest.importorskip("mujoco")
PROBE = "import mujoco; mujoco.Renderer(mujoco.MjModel.from_xml_string('<mujoco/>'), 16, 16).render()"


@pytest.fixture(scope="session")
def graphics():
    """Skips where MuJoCo cannot draw without a screen."""
    for name in ("egl", "osmesa"):
        environment = {**os.environ, "MUJOCO_GL": name, "PYOPENGL_PLATFORM": name}
        if not subprocess.run([sys.executable, "-c", PROBE], env=environment, capture_output=True).returncode:
            return
    pytest.skip("neither EGL nor OSMesa works here")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a Hopper that has hardly learnt anything, and falls after a few steps."""
    out = tmp_path_factory.mktemp("runs") / "strategies" / "hop"
    finpod.train("hopper", out=out, agents=1, rounds=1, keep=1, steps=2048, device="cpu")
    return out


@pytest.fixture
def work(trained, apart, monkeypatch):
    """A folder to work in, with strategies/hop."""
    shutil.copytree(trained, apart / "strategies" / "hop")
    monkeypatch.delenv("MUJOCO_GL", raising=False)


def images(content):
    """The frames of a file and their durations in ms."""
    from PIL import Image, ImageSequence

    every = ImageSequence.Iterator(Image.open(io.BytesIO(content)))
    return [(np.asarray(one.convert("RGB")).astype(int), one.info.get("duration")) for one in every]


def test_an_episode_is_that_of_the_environment():
    env = make_locomotion("hopper", 1, seed=4, threads=1)
    first, actions = env.physics.state["qpos"][0].numpy().copy(), []

    def act(obs):
        actions.append(torch.full((1, 3), 0.1))
        return actions[-1]

    episode = render.play(env, act)
    assert 3 < episode.steps == len(actions) < 1000
    assert episode.fell
    assert episode.seconds == pytest.approx(0.008 * episode.steps)
    np.testing.assert_array_equal(episode.positions[0], first)
    other = make_locomotion("hopper", 1, seed=4, threads=1)
    rewards = [other.step(torch.full((1, 3), 0.1)).reward.item() for _ in range(episode.steps)]
    assert episode.total == sum(rewards)


@pytest.mark.parametrize("interval", [0.04, 0.045])
def test_a_gif_lasts_as_long_as_what_it_shows(interval):
    drawn = np.zeros((40, 48, 64, 3), dtype=np.uint8)
    for n in range(40):  # a bright bar moves to the right
        drawn[n, :, n : n + 4] = (200, 90, 20)
    film = render.Film(drawn, interval)
    frames = images(render.gif(film))
    assert len(frames) == 40
    assert sum(duration for _, duration in frames) == pytest.approx(1000 * 40 * interval, abs=10)
    assert np.abs(np.stack([frame for frame, _ in frames]) - drawn).max() < 32


def test_the_camera_follows_the_body(graphics):
    env = make_locomotion("halfcheetah", 1, threads=1)
    rest = env.physics.state["qpos"][0].numpy().copy()
    far = rest.copy()
    far[0] += 50.0
    film = render.draw(env.spec, render.Episode(np.stack([rest, far]), 0.0, False, 0.05))
    assert film.frames.shape == (2, render.HEIGHT, render.WIDTH, 3)
    body = [(frame[..., 0].astype(int) - frame[..., 2] > 40) for frame in film.frames]  # the bodies alone are orange
    assert min(mask.sum() for mask in body) > 300
    assert np.abs(body[0].argmax(1).mean() - body[1].argmax(1).mean()) < 2
    assert all(0.3 < np.nonzero(mask)[1].mean() / render.WIDTH < 0.7 for mask in body)


def test_a_clip_is_written_and_told_of(graphics, work):
    title, told, path = run("render hop").out.splitlines()
    assert title == "Hopper-v5, standard variant: 11 inputs, 3 actions"
    assert re.fullmatch(r"agent 0-0: return \d+\.\d in \d+ steps \(\d\.\d s\), ended by a fall", told)
    content = Path(path).read_bytes()
    assert len(images(content)) >= 2
    facts = json.loads(run("render strategies/hop --overwrite --json").out)
    assert f"return {facts['return']:,.1f} in {facts['steps']} steps" in told
    assert (facts["agent"], facts["seed"], facts["path"]) == ("0-0", 0, "reports/hop.gif")
    assert Path(path).read_bytes() == content  # the same episode, the same bytes


@pytest.mark.parametrize(("line", "told"), [
    ("hopp", "hopp is not a finished run"), ("hop --agent 1", "hop has no agent 1"),
    ("hop --seconds nan", "--seconds is nan"), ("hop --seed -1", "--seed is -1"),
    ("hop --out clip.avi", "clip.avi is not a .gif"),
])  # fmt: skip
def test_what_cannot_be_rendered_ends_in_one_line(work, line, told):
    assert told in run("render", line).error
    assert not Path("reports").exists()


def test_what_is_missing_is_named(work, monkeypatch):
    """As on a machine without EGL and OSMesa, and then without Pillow."""
    monkeypatch.setattr(render, "_environments", lambda: [{**os.environ, "MUJOCO_GL": "glfw", "DISPLAY": ""}])
    assert "libosmesa6" in run("render hop").error
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    assert "pip install pillow" in run("render hop").error
    assert not Path("reports").exists()


def test_a_task_of_the_user_with_the_name_of_a_built_in_one_is_refused(task, apart, monkeypatch):
    monkeypatch.setattr(type(task), "name", "hopper")
    monkeypatch.setattr(type(task), "spec", lambda self: {"variant": "standard"})
    finpod.train(task, out="strategies/mine", **SMALL)
    assert "finpod renders only its own hopper, " in run("render mine").error
