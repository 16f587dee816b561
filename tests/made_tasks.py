"""Environments without a shared table, for tests of learners."""

import torch

from finpod.rl.task import Observation, Step


class Reach:
    """E numbers that actions move by at most 1 a step; the reward is minus the distance from 0, an episode has 8 steps.

    Steps are made in place, and every tensor is used again, as by an environment that is written for speed.
    """

    differentiable = False
    groups = 1

    def __init__(self, num_envs=16, seed=0, device="cpu", *, inputs=2):
        self.num_envs, self.device = num_envs, torch.device(device)
        self.generator = torch.Generator().manual_seed(seed)
        self.state, self.seen = torch.zeros(2, num_envs, inputs)
        self.time = torch.zeros(num_envs, dtype=torch.int64)
        self.reward, self.never = torch.zeros(num_envs), torch.zeros(num_envs, dtype=torch.bool)
        self.reset()

    def reset(self, seed=None):
        if seed is not None:
            self.generator.manual_seed(seed)
        self.time.zero_()
        self.state[:, 0] = self.draw()
        return self.observe()

    def draw(self):
        return torch.rand(self.num_envs, generator=self.generator) * 8 - 4

    def observe(self):
        return Observation(self.state)

    def step(self, action):
        self.state[:, 0] += action[:, 0].clamp(-1, 1)
        self.time += 1
        self.reward.copy_(-self.state[:, 0].abs())
        self.seen.copy_(self.state)
        over = self.time >= 8
        self.state[:, 0] = torch.where(over, self.draw(), self.state[:, 0])
        self.time[over] = 0
        return Step(self.observe(), self.reward, self.never, over, Observation(self.seen))

    def check(self):
        pass

    def state_dict(self):
        return {"state": self.state.clone(), "time": self.time.clone(), "generator": self.generator.get_state()}

    def load_state_dict(self, state):
        self.state.copy_(state["state"])
        self.time.copy_(state["time"])
        self.generator.set_state(state["generator"])
