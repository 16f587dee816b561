"""The task in strategies/README.md: a small task without a market."""

import re
from pathlib import Path

from finpod.rl.ppo import PPOConfig

README = (Path(__file__).parents[1] / "strategies" / "README.md").read_text()
TOY = re.search(r"```python\n(\"\"\"Move numbers.*?)```", README, re.S).group(1)
"""The task in the README."""
CONFIG = PPOConfig(num_steps=8, learning_rate=5e-3, factored=False)
SMALL = {"agents": 2, "rounds": 2, "keep": 2, "steps": 2 * 256, "config": CONFIG, "device": "cpu"}
