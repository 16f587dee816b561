"""`MarketEnv`: reset and step of thousands of accounts in one market, as plain torch.

The market does not react to an account, so all accounts share its tables and an observation is a row of them plus the
account itself (`Observation`). Accounts come in groups that share their days: G groups of M accounts, E = G * M, account
e belonging to group e // M. Tensors of accounts are kept as [G, M, ...] so that a table row is read once per group; the
public methods speak of [E, ...].
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from finpod.errors import InputError
from finpod.market.ledger import Costs, value
from finpod.market.tape import Account, Tape

ACTIONS = ("tilt", "softmax", "shares")
REWARDS = ("log", "value")


@dataclass(frozen=True, kw_only=True)
class TradingConfig:
    """The trading task; every field travels with a trained agent."""

    num_envs: int = 1024
    """E, accounts stepped in parallel."""
    start_groups: int | None = None
    """G, groups of accounts that share their days, a divisor of num_envs; None gives each account its own start day."""
    action: str = "tilt"
    """'tilt' around equal weight, 'softmax' over names and cash, or 'shares' to buy and sell, as published."""
    tilt: float = 1.0
    """k of w ~ exp(k tanh z); 1 holds about 60 effective names of 100."""
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
    cash: float = 1_000_000.0
    """V_0 of every episode, in currency."""
    costs: Costs = field(default_factory=Costs)
    """What each side of a trade costs."""
    whole_shares: bool = False
    """Deal in whole shares as traded only."""
    delisting_return: float = 0.0
    """What a position earns, once, when its name leaves the exchange."""

    def __post_init__(self) -> None:
        for name in ("num_envs", "hold", "hmax"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.horizon is not None and self.horizon < 1:
            raise InputError(f"horizon is {self.horizon}; it must be at least 1, or None for the end of the data")
        if self.num_envs % self.groups:
            raise InputError(f"start_groups is {self.start_groups}; it must divide num_envs, {self.num_envs}")
        for name, choices in (("action", ACTIONS), ("reward", REWARDS)):
            if getattr(self, name) not in choices:
                raise InputError(f"{name} is {getattr(self, name)!r}; choose one of {', '.join(choices)}")
        if not 0 < self.tilt < 20 or not self.cash > 0:
            raise InputError(f"tilt is {self.tilt} and cash {self.cash}; both must be positive, tilt below 20")

    @property
    def groups(self) -> int:
        """G."""
        return self.start_groups or self.num_envs


class Observation(NamedTuple):
    """What a policy sees of each account."""

    row: Tensor
    """[E] int64, the last row of the market tables that may be read."""
    state: Tensor
    """[E, N + 1] float32, weights held at that row's mark, then the weight of cash."""


class Step(NamedTuple):
    """One step of all accounts; episodes that ended have begun anew in `obs`."""

    obs: Observation
    reward: Tensor
    """[E] float32."""
    terminated: Tensor
    """[E] bool: ruin."""
    truncated: Tensor
    """[E] bool: horizon or end of data, without ruin."""
    final_obs: Observation
    """What the step led to, before any new beginning."""


def target_weights(action: Tensor, among: Tensor, kind: str, tilt: float = 1.0) -> Tensor:
    """Weights [..., N] float64 out of actions, zero outside `among` [..., N] (members with a bar).

    'tilt': w ~ exp(k tanh z) for z [..., N], fully invested, z = 0 being equal weight. 'softmax': logits [..., N + 1],
    the last for cash. All cash where `among` is empty.
    """
    logits = action.double()
    if kind == "softmax":
        logits = logits.clamp(-1e6, 1e6)
        top = logits.amax(-1, keepdim=True)
        bets = (logits - top).exp()
        bets, cash = bets[..., :-1] * among, bets[..., -1:]
        return bets / (bets.sum(-1, keepdim=True) + cash).clamp(min=1e-300)
    bets = (tilt * logits.tanh()).exp() * among
    return bets / bets.sum(-1, keepdim=True).clamp(min=1e-300)


def account_state(account: Account, mark: Tensor) -> Tensor:
    """[..., N + 1] float32: weights at the marks, then cash; all zero for a ruined account."""
    worth = account.shares * mark
    equity = (account.cash + worth.sum(-1)).unsqueeze(-1)
    return (torch.cat([worth, account.cash.unsqueeze(-1)], -1) / equity.clamp(min=1e-9)).float()


class MarketEnv:
    """E accounts over the rows [first, last] of a tape; contracts 1 to 8 of the design.

    Within a group all accounts stand on the same day. Which day is known on the host, so that neither delistings nor
    ends of episodes need a look at the device. A bad action (NaN or infinite) trades nothing and is remembered until
    `check` is called.
    """

    def __init__(self, tape: Tape, first: int, last: int, config: TradingConfig, seed: int = 0) -> None:
        self.tape, self.config = tape, config
        self.first, self.last = max(first, tape.lag), last
        if self.last - self.first < config.hold:
            raise InputError(f"the window has {self.last - self.first} sessions to trade, fewer than hold = {config.hold}; "
                             "take a longer window or a shorter hold")  # fmt: skip
        self.num_envs, self.names = config.num_envs, tape.mark.shape[1]
        self.num_actions = self.names + (config.action == "softmax")
        self.device = tape.mark.device
        self._shape = (config.groups, config.num_envs // config.groups)
        self._any_delisted = tape.delisted.any(-1).cpu()
        self._generator = torch.Generator().manual_seed(seed)
        self._days = torch.zeros(config.groups, dtype=torch.int64)
        self._decisions = torch.zeros(config.groups, dtype=torch.int64)
        self._bad = torch.full((3,), -1, dtype=torch.int64, device=self.device)
        self._clock = 0
        self.reset()

    def reset(self, seed: int | None = None) -> Observation:
        """Begin all episodes on random days; a seed makes the days repeatable, also those of later episodes."""
        if seed is not None:
            self._generator.manual_seed(seed)
        self._days = self._draw(self.config.groups)
        self._decisions = torch.zeros_like(self._days)
        self._rows = self._days.to(self.device, non_blocking=True).unsqueeze(1)
        self.account = self.seen = self._fresh()
        self.equity = self.account.cash
        return self.observe()

    def observe(self) -> Observation:
        """What all accounts see now."""
        row = self.tape.decision_row(self._rows)
        state = account_state(self.seen, self.tape.mark[row])
        return Observation(row.expand(self._shape).reshape(-1), state.flatten(0, 1))

    def among(self, row: Tensor) -> Tensor:
        """[..., N] bool: what a decision that sees `row` may hold: members with a bar."""
        return self.tape.member[row] & self.tape.has_bar[row]

    def weights(self, action: Tensor) -> Tensor:
        """Target weights [E, N] float64 that `step` would make of actions [E, A]."""
        among = self.among(self.tape.decision_row(self._rows))
        shaped = action.unflatten(0, self._shape)
        return target_weights(shaped, among, self.config.action, self.config.tilt).flatten(0, 1)

    def step(self, action: Tensor) -> Step:
        """Trade on actions [E, A] and go on by `hold` sessions."""
        good = self._screen(action)
        orders = self._orders(action.unflatten(0, self._shape)).where(good, 0.0)
        config, tape = self.config, self.tape
        fill = tape.trade(self.account, self._rows, orders, config.costs, whole_shares=config.whole_shares)
        account = seen = Account(fill.cash, fill.shares)
        for _ in range(config.hold):
            seen = account
            if self._any_delisted[self._days + 1].any():
                account = tape.carry(account, self._rows, config.delisting_return)
            self._days = self._days + 1  # never in place: on the CPU the rows share its memory
            self._rows = self._rows + 1
        equity = value(account.cash, account.shares, tape.mark[self._rows])
        self.account, self.seen = account, seen if tape.lag else account
        ruined = equity <= 0
        growth = (equity / self.equity).clamp(min=1e-12).log() if config.reward == "log" else equity - self.equity
        self.equity = equity
        self._decisions = self._decisions + 1
        self._clock += 1
        final = self.observe()
        over = self._days + config.hold > self.last
        if config.horizon is not None:
            over |= self._decisions >= config.horizon
        truncated = over.to(self.device).unsqueeze(1) & ~ruined
        obs = self._restart(over, ruined, final)
        return Step(obs, (growth * config.reward_scale).float().flatten(), ruined.flatten(), truncated.flatten(), final)

    def check(self) -> None:
        """Raise InputError naming environment, step and column of the first bad action since the last check."""
        env, step, column = self._bad.tolist()
        self._bad.fill_(-1)
        if env >= 0:
            raise InputError(f"the action of environment {env} at step {step} is not a number (column {column}); "
                             "the account held what it had")  # fmt: skip

    def state_dict(self) -> dict[str, Tensor | int]:
        """All that `load_state_dict` needs to go on as if nothing had happened."""
        return {"days": self._days.clone(), "decisions": self._decisions.clone(), "clock": self._clock,
                "cash": self.account.cash.clone(), "shares": self.account.shares.clone(), "equity": self.equity.clone(),
                "seen_cash": self.seen.cash.clone(), "seen_shares": self.seen.shares.clone(),
                "generator": self._generator.get_state()}  # fmt: skip

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take up a state of the same configuration."""
        self._days, self._decisions, self._clock = (
            state["days"].clone(),
            state["decisions"].clone(),
            int(state["clock"]),
        )
        self._rows = self._days.to(self.device).unsqueeze(1)
        self.account = Account(state["cash"].clone(), state["shares"].clone())
        self.seen = Account(state["seen_cash"].clone(), state["seen_shares"].clone())
        self.equity = state["equity"].clone()
        self._generator.set_state(state["generator"])

    def _fresh(self) -> Account:
        cash = torch.full(self._shape, self.config.cash, dtype=torch.float64, device=self.device)
        return Account(cash, cash.new_zeros((*self._shape, self.names)))

    def _draw(self, count: int) -> Tensor:
        """Random start days that leave room for a whole episode, or for one step where the window is shorter than that."""
        config = self.config
        if not config.random_start:
            return torch.full((count,), self.first, dtype=torch.int64)
        latest = max(self.last - config.hold * (config.horizon or 1), self.first)
        return torch.randint(self.first, latest + 1, (count,), generator=self._generator)

    def _orders(self, action: Tensor) -> Tensor:
        config, tape = self.config, self.tape
        if config.action == "shares":
            wanted = (action.double().clamp(-1, 1) * config.hmax).expand(*self._shape, self.names)
            wanted = wanted.trunc() if config.whole_shares else wanted
            return wanted if tape.factor is None else wanted / tape.factor[tape.fill_row(self._rows)]
        among = self.among(tape.decision_row(self._rows))
        return tape.orders(self.account, self._rows, target_weights(action, among, config.action, config.tilt))

    def _screen(self, action: Tensor) -> Tensor:
        """[G, M, 1] bool: the action is finite; the first that is not is remembered on the device."""
        finite = action.isfinite()
        position = (~finite).flatten().to(torch.uint8).argmax()
        found = torch.stack(
            [position // self.num_actions, torch.full_like(position, self._clock), position % self.num_actions]
        )
        self._bad = torch.where((self._bad[0] < 0) & ~finite.all(), found, self._bad)
        return finite.all(-1).view(*self._shape, 1)

    def _restart(self, over: Tensor, ruined: Tensor, final: Observation) -> Observation:
        """Begin anew where an episode is over; a ruined account begins again with fresh cash on its group's day."""
        fresh = self._fresh()
        again = ruined
        if over.any():
            self._days = torch.where(over, self._draw(len(over)), self._days)
            self._decisions = torch.where(over, 0, self._decisions)
            self._rows = self._days.to(self.device, non_blocking=True).unsqueeze(1)
            again = ruined | over.to(self.device).unsqueeze(1)
        self.account = _choose(again, fresh, self.account)
        self.seen = _choose(again, fresh, self.seen)
        self.equity = torch.where(again, fresh.cash, self.equity)
        return self.observe() if over.any() else final._replace(state=_restarted(final.state, ruined.flatten()))


def _choose(mask: Tensor, yes: Account, no: Account) -> Account:
    return Account(torch.where(mask, yes.cash, no.cash), torch.where(mask.unsqueeze(-1), yes.shares, no.shares))


def _restarted(state: Tensor, ruined: Tensor) -> Tensor:
    """The state of accounts in cash where they were ruined."""
    cash = torch.zeros_like(state[0])
    cash[-1] = 1.0
    return torch.where(ruined.unsqueeze(-1), cash, state)
