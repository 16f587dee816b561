"""Learning: policies, rollouts and learners, for any task."""

from finpod.rl.ppo import PPO

LEARNERS: dict[str, type[PPO]] = {"ppo": PPO}
"""Name -> learner.

A learner has `Config`, a frozen dataclass of its settings with `num_steps`, the steps of each environment between two
updates; `bounds`, how far a search may move them; `collect(env) -> batch`; `update(batch, progress) -> dict of tensors`;
`state_dict` and `load_state_dict`; and `updates`, their number. It is made of a policy, a table or None, the groups of
environments that share its rows, a config and a generator.
"""
