import pytest
import torch

from finpod.rl.returns import gae, one_step_target


@pytest.fixture(scope="module")
def episodes():
    """Rewards, values and ends of 40 steps in 3 x 2 environments, with every kind of end."""
    torch.manual_seed(0)
    reward, value, next_value = (torch.randn(40, 3, 2, dtype=torch.float64) for _ in range(3))
    terminated, truncated = (torch.rand(40, 3, 2) < 0.15 for _ in range(2))
    assert (terminated & truncated).any()
    return reward, value, next_value, terminated, truncated


def by_definition(reward, value, next_value, terminated, truncated, gamma, gae_lambda):
    """A_t = sum over l of (gamma lambda)^l delta_{t+l}, up to the end of the episode, one number at a time."""
    advantages = torch.zeros_like(reward)
    for place in torch.cartesian_prod(*(torch.arange(n) for n in reward.shape)).tolist():
        t, *env = place
        total, weight = 0.0, 1.0
        for step in range(t, len(reward)):
            at = (step, *env)
            future = 0.0 if terminated[at] else gamma * next_value[at]
            total += weight * (reward[at] + future - value[at])
            weight *= gamma * gae_lambda
            if terminated[at] or truncated[at]:
                break
        advantages[tuple(place)] = total
    return advantages


@pytest.mark.parametrize(("gamma", "gae_lambda"), [(0.99, 0.95), (0.9, 0.9), (1.0, 1.0), (0.5, 0.0), (0.0, 0.7)])
def test_gae_is_its_definition(episodes, gamma, gae_lambda):
    expected = by_definition(*episodes, gamma, gae_lambda)
    torch.testing.assert_close(gae(*episodes, gamma=gamma, gae_lambda=gae_lambda), expected, rtol=1e-6, atol=1e-6)


def flag(value):
    return torch.tensor([value])


@pytest.mark.parametrize(
    ("terminated", "truncated", "target"),
    [(False, True, 10.9), (True, False, 1.0), (True, True, 1.0), (False, False, 10.9)],
)
def test_c10_the_future_counts_unless_the_episode_terminated(terminated, truncated, target):
    reward, next_value, value = torch.tensor([1.0]), torch.tensor([10.0]), torch.tensor([3.0])
    assert one_step_target(reward, next_value, flag(terminated), 0.99).item() == pytest.approx(target)
    ends = flag(terminated)[None], flag(truncated)[None]
    for gae_lambda in (0.0, 0.9):
        advantage = gae(reward[None], value[None], next_value[None], *ends, gamma=0.99, gae_lambda=gae_lambda)
        assert (advantage + value).item() == pytest.approx(target)


@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_nothing_flows_back_over_the_end_of_an_episode(end):
    nothing = torch.zeros(4, 1)
    ends = {"terminated": nothing.bool(), "truncated": nothing.bool()}
    ends[end] = torch.tensor([[False], [True], [False], [False]])
    reward = torch.tensor([[0.0], [0.0], [5.0], [7.0]])
    advantage = gae(reward, nothing, nothing, **ends, gamma=0.9, gae_lambda=1.0)
    torch.testing.assert_close(advantage, torch.tensor([[0.0], [0.0], [5.0 + 0.9 * 7.0], [7.0]]))


def test_lambda_0_reduces_to_one_step_targets(episodes):
    reward, value, next_value, terminated, truncated = episodes
    advantage = gae(reward, value, next_value, terminated, truncated, gamma=0.9, gae_lambda=0.0)
    torch.testing.assert_close(advantage + value, one_step_target(reward, next_value, terminated, 0.9))


def test_lambda_1_reduces_to_discounted_sums():
    torch.manual_seed(1)
    reward, value = torch.randn(2, 6, 3, dtype=torch.float64)
    # within an episode the value of the next state is the next value; what is left of the tail is its own
    next_value = torch.cat([value[1:], torch.randn(1, 3, dtype=torch.float64)])
    never = torch.zeros(6, 3, dtype=torch.bool)
    targets = gae(reward, value, next_value, never, never, gamma=0.8, gae_lambda=1.0) + value
    for t in range(6):
        discount = 0.8 ** torch.arange(6 - t, dtype=torch.float64)[:, None]
        expected = (discount * reward[t:]).sum(0) + 0.8 ** (6 - t) * next_value[-1]
        torch.testing.assert_close(targets[t], expected)
