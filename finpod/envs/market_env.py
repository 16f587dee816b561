"""`MarketEnv`: reset and step of thousands of accounts in one market, as plain torch.

The market does not react to an account, so all accounts share its tables. An observation is a row of them and the state
of the account, [E, N + 1] float32: the weights held at that row's mark, then the weight of cash. Accounts come in groups
that share their days: G groups of M accounts, E = G * M, account e belonging to group e // M. Tensors of accounts are
kept as [G, M, ...] so that a table row is read once per group; the public methods speak of [E, ...].
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from typing import Literal, overload

import torch
from torch import Tensor

from finpod.envs.step import GradientStep, Observation, Step
from finpod.envs.weights import account_state, state_of, target_weights
from finpod.errors import CheckpointError, InputError
from finpod.seeds import require_seed, torch_seed
from finpod.trading.anchors import EQUAL, anchor_weights, require_anchor
from finpod.trading.execution import Account, Execution
from finpod.trading.simulate import Terms, phases

ACTIONS = ("tilt", "softmax", "shares")
REWARDS = ("log", "value")
RUIN = 1e-12
"""What is taken to be left of a ruined account where its log return is asked for: a loss of ln 1e-12 = -27.6."""


@dataclass(frozen=True, kw_only=True)
class TradingConfig(Terms):
    """The trading task: the terms on which accounts trade, and what agents do; every field travels with a trained agent."""

    num_envs: int = 1024
    """E, accounts stepped in parallel."""
    start_groups: int | None = None
    """G, groups of accounts that share their days, a divisor of num_envs; None gives each account its own start day."""
    action: str = "tilt"
    """'tilt' around the anchor, 'softmax' over names and cash, or 'shares' to buy and sell, as published."""
    tilt: float = 1.0
    """k of w ~ a exp(k tanh z), a being the anchor; 1 holds about 60 effective names of 100 around equal weight."""
    anchor: str = EQUAL
    """What a tilt is taken around, and agents have to beat: a name in `finpod.trading.anchors.ANCHORS`, or `extra:COLUMN`."""
    hmax: int = 100
    """Largest order of the 'shares' action in shares as traded, per name and step."""
    hold: int = 5
    """Sessions from one decision to the next."""
    horizon: int | None = 20
    """Decisions in an episode, after which it is truncated; None plays to the end of the data."""
    random_start: bool = True
    """Begin episodes on random days; otherwise all begin on the first day of the window."""
    reward: str = "log"
    """'log': ln of equity net of costs over the step; 'value': change of account value."""
    reward_scale: float = 1.0
    """Factor on the reward; the published set-up scales the change of value by 2^-11 or so."""

    def __post_init__(self) -> None:
        super().__post_init__()
        none = {"start_groups": "a start day of each account's own", "horizon": "the end of the data"}
        for name in ("num_envs", "hold", "hmax", *none):
            value, otherwise = getattr(self, name), f", or None for {none[name]}" if name in none else ""
            if not (otherwise and value is None) and not (isinstance(value, Integral) and int(value) >= 1):
                raise InputError(f"{name} is {value}; it must be a whole number from 1 on{otherwise}", argument=name)
        if self.num_envs % self.groups:
            raise InputError(
                f"start_groups is {self.start_groups}; it must divide num_envs, {self.num_envs}",
                argument="start_groups",
            )
        require_anchor(self.anchor)
        for name, choices in (("action", ACTIONS), ("reward", REWARDS)):
            if getattr(self, name) not in choices:
                raise InputError(
                    f"{name} is {getattr(self, name)!r}; choose one of {', '.join(choices)}", argument=name
                )
        if self.action == "shares" and (self.max_weight or self.max_turnover):
            raise InputError(
                "action 'shares' takes no max_weight or max_turnover; choose 'tilt' or 'softmax'", argument="action"
            )
        for name, low, high in (("tilt", 0, 20), ("reward_scale", 0, math.inf)):
            if not low < getattr(self, name) < high:
                raise InputError(
                    f"{name} is {getattr(self, name)}; it must lie above {low} and below {high}", argument=name
                )

    @property
    def groups(self) -> int:
        """G."""
        return self.start_groups or self.num_envs

    @property
    def around(self) -> bool:
        """Whether actions are taken around another anchor than equal weight."""
        return self.action == "tilt" and self.anchor != EQUAL

    @property
    def undifferentiable(self) -> str | None:
        """What of the task no gradient passes through; None if one passes."""
        if self.action == "shares":
            return "action 'shares'"
        return "whole_shares" if self.whole_shares else "market impact" if self.costs.impact else None


class MarketEnv:
    """E accounts over the rows [first, last] of a market; contracts 1 to 8 of the design.

    Within a group all accounts stand on the same day. Which day is known on the host, so that neither delistings nor
    ends of episodes need a look at the device. A bad action (NaN or infinite) trades nothing and is remembered until
    `check` is called. Eager steps agree with the backtest to the last bit; with `compile` (torch.compile: it needs a
    C++ compiler, and a minute at the first step) they take a fraction of the time and agree to 1e-6. `anchor` [T, N] are
    the weights of `config.anchor` if they are not a rule's.
    """

    def __init__(
        self, execution: Execution, first: int, last: int, config: TradingConfig, seed: int = 0, *, compile: bool = False,
        anchor: Tensor | None = None,
    ) -> None:  # fmt: skip
        self.execution, self.config = execution, config
        self.first, self.last = max(first, execution.lag), last
        if self.last - self.first < config.hold:
            raise InputError(
                f"the window has {self.last - self.first} sessions to trade, fewer than hold = {config.hold}; "
                "take a longer window or a shorter hold"
            )
        self.num_envs, self.names = config.num_envs, execution.mark.shape[1]
        self.num_actions = self.names + (config.action == "softmax")
        self.device = execution.mark.device
        self.groups, self.differentiable = config.groups, config.undifferentiable is None
        self._shape = (config.groups, config.num_envs // config.groups)
        self.anchor = anchor_weights(execution, config.anchor) if anchor is None else anchor
        self._any_delisted = execution.delisted.any(-1).cpu()
        execution.impact_for(config.costs)  # measured, or refused, before the first step
        self._generator = torch.Generator().manual_seed(torch_seed(require_seed(seed)))
        self._bad = torch.full((3,), -1, dtype=torch.int64, device=self.device)
        self._clock = 0
        if compile:
            self._trade = torch.compile(self._trade, dynamic=False)  # type: ignore[method-assign]
            self._strike = torch.compile(self._strike, dynamic=False)  # type: ignore[method-assign]
        self.reset()

    def reset(self, seed: int | None = None) -> Observation:
        """Begin all episodes on random days. A seed makes these days and those of later episodes repeatable.

        Raises InputError, and changes nothing, for a seed that is not a whole number from 0 to 2**64 - 1.
        """
        if seed is not None:
            self._generator.manual_seed(torch_seed(require_seed(seed)))
        self._days = self._draw(self.config.groups)
        self._decisions = torch.zeros_like(self._days)
        self._rows = self._on_device(self._days)
        self.equity = torch.full(self._shape, self.config.cash, dtype=torch.float64, device=self.device)
        self.account = self.seen = Account(self.equity, self.equity.new_zeros((*self._shape, self.names)))
        return self.observe()

    def observe(self) -> Observation:
        """What all accounts see now."""
        return self._observation(account_state(self.seen, self.execution.mark[self._rows - self.execution.lag]))

    def among(self, row: Tensor) -> Tensor:
        """[..., N] bool: what a decision that sees `row` may hold: members with a bar."""
        return self.execution.member[row] & self.execution.has_bar[row]

    def weights(self, action: Tensor) -> Tensor:
        """Target weights [E, N] float64 that `step` would make of actions [E, A], within the caps at the next fill prices."""
        return self._weights(action.unflatten(0, self._shape), self._rows, self.account).flatten(0, 1)

    @overload
    def step(self, action: Tensor) -> Step: ...
    @overload
    def step(self, action: Tensor, *, grad: Literal[True], smooth: float = 0.0) -> GradientStep: ...
    def step(self, action: Tensor, *, grad: bool = False, smooth: float = 0.0) -> Step | GradientStep:
        """Trade on actions [E, A] and go on by `hold` sessions.

        With `grad` the graph is kept, that of the account from step to step, until `detach`; `smooth` is that of `settle`.
        Raises InputError, by name, for what no gradient passes through.
        """
        if not grad:
            with torch.no_grad():
                return self._step(action, 0.0)[0]
        if what := self.config.undifferentiable:
            raise InputError(f"no gradient passes through {what}; take a step without grad")
        days, before = self._days - self.first, self.equity
        step, dealt, equity = self._step(action, smooth)
        phase = days % self.config.hold
        growth = self.baseline[days + self.config.hold, phase] / self.baseline[days, phase]
        baseline = self._on_device(growth - 1).expand(self._shape)
        return GradientStep(step, (equity / before - 1).flatten(), baseline.flatten(), (dealt / before).flatten())

    def detach(self) -> None:
        """Let no gradient of later steps reach the steps before."""
        self.equity = self.equity.detach()
        self.account, self.seen = (
            Account(account.cash.detach(), account.shares.detach()) for account in (self.account, self.seen)
        )

    @cached_property
    def baseline(self) -> Tensor:
        """[n + 1, hold] equity of `phases` of the anchor from row `first` on; on the host, as days are."""
        config = self.config
        return phases(self.execution, self.anchor, self.first, self.last, config.hold, config.uncapped).cpu()

    def _step(self, action: Tensor, smooth: float) -> tuple[Step, Tensor, Tensor]:
        """The step; what was dealt [G, M], in currency; and the equity [G, M] it led to, before any reset."""
        config = self.config
        action = action.unflatten(0, self._shape)
        cash, shares, dealt, good = self._trade(action, self._rows, *self.account, smooth)
        self._remember(action, good)
        account = seen = Account(cash, shares)
        for _ in range(config.hold):
            seen = account
            self._days = self._days + 1  # never in place: on the CPU the rows share its memory
            if self._any_delisted[self._days].any():
                account = self.execution.carry(account, self._rows, config.delisting_return)
            self._rows = self._rows + 1
        self.account, self.seen = account, seen if self.execution.lag else account
        self.equity, reward, ruined, state = self._strike(self._rows, *self.account, *self.seen, self.equity)
        self._decisions = self._decisions + 1
        self._clock += 1
        final = self._observation(state)
        over = self._days + config.hold > self.last
        if config.horizon is not None:
            over |= self._decisions >= config.horizon
        truncated = self._on_device(over) & ~ruined
        equity, obs = self.equity, self._restart(over, ruined, final)
        return Step(obs, reward.flatten(), ruined.flatten(), truncated.flatten(), final), dealt, equity

    def check(self) -> None:
        """Raise InputError naming environment, step and column of the first bad action since the last check."""
        env, step, column = self._bad.tolist()
        self._bad.fill_(-1)
        if env >= 0:
            raise InputError(
                f"the action of environment {env} at step {step} is not a number (column {column}); "
                "the account held what it had"
            )

    def state_dict(self) -> dict[str, Tensor | int]:
        """All that `load_state_dict` needs to go on as if nothing had happened."""
        return {
            "days": self._days.clone(),
            "decisions": self._decisions.clone(),
            "clock": self._clock,
            "cash": self.account.cash.clone(),
            "shares": self.account.shares.clone(),
            "equity": self.equity.clone(),
            "seen_cash": self.seen.cash.clone(),
            "seen_shares": self.seen.shares.clone(),
            "generator": self._generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take up a state of the same configuration. Raises CheckpointError for one of another."""
        if (shape := tuple(state["shares"].shape)) != (*self._shape, self.names):
            raise CheckpointError(
                f"the stored accounts have shape {shape}, the environment's {(*self._shape, self.names)}"
            )
        self._days, self._decisions, self._clock = state["days"].cpu(), state["decisions"].cpu(), int(state["clock"])
        cash, shares, seen_cash, seen_shares, self.equity = (
            state[name].to(self.device) for name in ("cash", "shares", "seen_cash", "seen_shares", "equity")
        )
        self.account, self.seen = Account(cash, shares), Account(seen_cash, seen_shares)
        self._rows = self._on_device(self._days)
        self._generator.set_state(state["generator"].cpu())

    def _on_device(self, host: Tensor) -> Tensor:
        """[G, 1] on the device of a host tensor [G]."""
        return host.to(self.device, non_blocking=True).unsqueeze(1)

    def _observation(self, state: Tensor) -> Observation:
        row = (self._rows - self.execution.lag).expand(self._shape).reshape(-1)
        return Observation(state.flatten(0, 1), row)

    def _draw(self, count: int) -> Tensor:
        """Random start days that leave room for a whole episode, or for one step where the window is shorter than that."""
        config = self.config
        if not config.random_start:
            return torch.full((count,), self.first, dtype=torch.int64)
        latest = max(self.last - config.hold * (config.horizon or 1), self.first)
        return torch.randint(self.first, latest + 1, (count,), generator=self._generator)

    def _weights(self, action: Tensor, rows: Tensor, account: Account) -> Tensor:
        config, seen = self.config, rows - self.execution.lag
        anchor = self.anchor[seen] if config.around else None
        weights = target_weights(action, self.among(seen), config.action, config.tilt, anchor)
        return self.execution.within(weights, account, rows, config.max_weight, config.max_turnover)

    def _trade(
        self, action: Tensor, rows: Tensor, cash: Tensor, shares: Tensor, smooth: float = 0.0
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Cash [G, M] and shares [G, M, N] after the fill, what was dealt, and if the action was finite [G, M]; else no trade."""
        config, execution, account = self.config, self.execution, Account(cash, shares)
        good = (action - action).sum(-1) == 0  # inf - inf and NaN - NaN are NaN
        if config.action == "shares":
            orders = action.double().clamp(-1, 1) * config.hmax
            orders = orders.trunc() if config.whole_shares else orders
            orders = orders if execution.factor is None else orders / execution.factor[execution.fill_row(rows)]
        else:
            orders = execution.orders(account, rows, self._weights(action, rows, account))
        orders = orders.where(good.unsqueeze(-1), 0.0)
        fill = execution.trade(account, rows, orders, config.costs, whole_shares=config.whole_shares, smooth=smooth)
        return fill.cash, fill.shares, fill.dealt, good

    def _strike(
        self, rows: Tensor, cash: Tensor, shares: Tensor, seen_cash: Tensor, seen_shares: Tensor, before: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Equity at the close of `rows`, the reward of having come from `before`, ruin, and the state that is seen."""
        config, execution = self.config, self.execution
        worth = shares * execution.mark[rows]
        equity = cash + worth.sum(-1)
        gain = equity - before
        if config.reward == "log":
            gain = (equity / before).clamp(min=RUIN).log()
        if execution.lag:
            state = account_state(Account(seen_cash, seen_shares), execution.mark[rows - execution.lag])
        else:
            state = state_of(cash, worth, equity)
        return equity, (gain * config.reward_scale).float(), equity <= 0, state

    def _remember(self, action: Tensor, good: Tensor) -> None:
        """Keep, on the device, environment, step and column of the first bad action."""
        env = (~good).flatten().to(torch.uint8).argmax()
        row = action.flatten(0, 1).index_select(0, env.view(1))[0]  # indexing by a tensor would wait for the device
        column = (~row.isfinite()).to(torch.uint8).argmax()
        found = torch.stack([env, torch.full_like(env, self._clock), column])
        self._bad = torch.where((self._bad[0] < 0) & ~good.all(), found, self._bad)

    def _restart(self, over: Tensor, ruined: Tensor, final: Observation) -> Observation:
        """Begin anew where an episode is over; a ruined account begins again with fresh cash on its group's day."""
        again, shares = ruined, self.account.shares
        if over.any():
            self._days = torch.where(over, self._draw(len(over)), self._days)
            self._decisions = torch.where(over, 0, self._decisions)
            self._rows = self._on_device(self._days)
            again = ruined | self._on_device(over)
            shares = shares.masked_fill(again.unsqueeze(-1), 0.0)  # those of ruined accounts alone are zero already
        self.equity = self.equity.masked_fill(again, self.config.cash)
        self.account = seen = Account(self.account.cash.masked_fill(again, self.config.cash), shares)
        if self.execution.lag:  # what is seen of a ruined account stands before its loss
            seen = Account(
                self.seen.cash.masked_fill(again, self.config.cash),
                self.seen.shares.masked_fill(again.unsqueeze(-1), 0.0),
            )
        self.seen = seen
        in_cash = torch.zeros_like(final.state[0])
        in_cash[-1] = 1.0
        return self._observation(torch.where(again.unsqueeze(-1), in_cash, final.state.unflatten(0, self._shape)))
