"""`MarketEnv`: thousands of accounts in one market, reset and stepped together in plain torch.

The accounts do not move prices, so all share the market's tables. An observation has two parts: the number of a table
row, and the `account_state` [E, N + 1] at the close of this row. The E = G * M accounts form G groups. The M accounts
of a group are always at the same row. Account e is in group e // M. The tensors of public methods have shapes
[E, ...], those of private methods [G, M, ...].
"""

from functools import cached_property
from typing import Literal, overload

import torch
from torch import Tensor

from finpod.devices import torch_seed
from finpod.envs.actions import TradingConfig, account_state, target_weights
from finpod.envs.step import Observation, Returns, Step
from finpod.errors import CheckpointError, InputError, require_seed
from finpod.trading.anchors import anchor_weights
from finpod.trading.execution import Account, Execution
from finpod.trading.ledger import orders_for, value
from finpod.trading.simulate import opening, trade

RUIN = 1e-12
"""Lower bound of the equity ratio in a log return, so that a total loss has a finite reward: ln 1e-12 = -27.6."""


class MarketEnv:
    """E accounts that trade from row `first` to row `last` of a market; see the conventions in finpod/README.md.

    The row numbers of groups are on the CPU, so delistings and ends of episodes are found without a read from the GPU.
    An action that is NaN or infinite trades nothing, and makes the next `check` raise an error. A step gives the same
    values as a backtest, to the last bit. With `compile`, steps are several times faster and agree to 1e-6; the first
    step takes a minute, and needs a C++ compiler. `anchor` [T, N] has the anchor's weights at each row of the market.
    If `anchor` is None, the weights are computed from `config.anchor`, which must then not be 'extra:COLUMN'.
    """

    def __init__(
        self, execution: Execution, first: int, last: int, config: TradingConfig, seed: int = 0, *,
        compile: bool = False, anchor: Tensor | None = None,
    ) -> None:  # fmt: skip
        self.execution, self.config = execution, config
        self.first, self.last = max(first, execution.lag), last
        if self.last - self.first < config.hold:
            bars = f"the window has {self.last - self.first} bars to trade, fewer than hold={config.hold}"
            raise InputError(f"{bars}; choose a longer window, or a smaller hold")
        self.num_envs, self.names = config.num_envs, execution.mark.shape[1]
        self.num_actions = self.names + (config.action == "softmax")
        self.device = execution.mark.device
        self.groups, self.differentiable = config.groups, config.undifferentiable is None
        self._shape = (config.groups, config.num_envs // config.groups)
        self.anchor = anchor_weights(execution, config.anchor) if anchor is None else anchor
        self._any_delisted = execution.delisted.any(-1).cpu()
        execution.impact_for(config.costs)  # raises before the first step if there are no volumes
        self._generator = torch.Generator().manual_seed(torch_seed(require_seed(seed)))
        self._bad = torch.full((3,), -1, dtype=torch.int64, device=self.device)
        self._clock = 0
        if compile:
            for name in ("_trade", "_mark_accounts"):
                setattr(self, name, torch.compile(getattr(self, name), dynamic=False))
        self.reset()

    def reset(self, seed: int | None = None) -> Observation:
        """Begin all episodes, at random rows if `config.random_start`. A seed makes all episodes reproducible."""
        if seed is not None:
            self._generator.manual_seed(torch_seed(require_seed(seed)))
        self._days = self._draw(self.config.groups)
        self._decisions = torch.zeros_like(self._days)
        self._rows = self._on_device(self._days)
        self.account = self.seen = opening(self.execution, self.config, self._shape)
        self.equity = self.account.cash
        return self.observe()

    def observe(self) -> Observation:
        """Return the current observations."""
        return self._observation(account_state(self.seen, self.execution.mark[self._rows - self.execution.lag]))

    @overload
    def step(self, action: Tensor) -> Step: ...
    @overload
    def step(self, action: Tensor, *, grad: Literal[True], smooth: float = 0.0) -> tuple[Step, Returns]: ...
    def step(self, action: Tensor, *, grad: bool = False, smooth: float = 0.0) -> Step | tuple[Step, Returns]:
        """Trade on actions [E, A], and advance by `hold` rows. Return the `Step`; with `grad`, (`Step`, `Returns`).

        With `grad`, gradients pass from step to step until `detach` is called, and `smooth` is passed to `settle`. If a
        setting blocks the gradient, an InputError names the setting.
        """
        if not grad:
            with torch.no_grad():
                return self._step(action, 0.0)[0]
        if what := self.config.undifferentiable:
            raise InputError(f"no gradient passes through {what}; call step without grad=True")
        days, before = self._days - self.first, self.equity
        step, notional, equity = self._step(action, smooth)
        baseline = self._on_device(self.baseline[days]).expand(self._shape)
        return step, Returns((equity / before - 1).flatten(), baseline.flatten(), (notional / before).flatten())

    def detach(self) -> None:
        """Stop gradients of later steps from reaching earlier steps."""
        self.equity = self.equity.detach()
        self.account, self.seen = (Account(*(x.detach() for x in one)) for one in (self.account, self.seen))

    @cached_property
    def baseline(self) -> Tensor:
        """[n] returns of the anchor, net of costs, on the CPU. Return i is from the close of row `first` + i to the
        close `hold` rows later. The last return ends at row `last`."""
        execution, hold, terms = self.execution, self.config.hold, self.config.uncapped
        account, latest = opening(execution, terms, (hold,)), self.last - hold
        equity = [account.cash]
        for begin in range(self.first, latest + 1, hold):  # account p trades at row `begin` + p
            rows = torch.arange(begin, begin + hold, device=self.device).clamp(max=latest)
            account = trade(execution, rows, account, self.anchor[rows - execution.lag], terms).account
            if self._any_delisted[begin : begin + 2 * hold].any():
                for after in range(hold):
                    account = execution.carry(account, rows + after, terms.delisting_return)
            equity.append(value(*account, execution.mark[rows + hold]))
        growth = torch.stack(equity[1:]) / torch.stack(equity[:-1])
        return (growth - 1).flatten()[: latest + 1 - self.first].cpu()  # without the clamped rows

    def _step(self, action: Tensor, smooth: float) -> tuple[Step, Tensor, Tensor]:
        """Return (step, traded notional [G, M] in currency, equity [G, M] before any reset)."""
        config = self.config
        action = action.unflatten(0, self._shape)
        account, notional, good = self._trade(action, self._rows, self.account, smooth)
        self._record_bad(action, good)
        seen = account
        for _ in range(config.hold):
            seen = account
            self._days = self._days + 1  # not in place: on the CPU, _rows shares its memory
            if self._any_delisted[self._days].any():
                account = self.execution.carry(account, self._rows, config.delisting_return)
            self._rows = self._rows + 1
        self.account, self.seen = account, seen if self.execution.lag else account
        self.equity, reward, ruined, state = self._mark_accounts(self._rows, self.account, self.seen, self.equity)
        self._decisions = self._decisions + 1
        self._clock += 1
        final = self._observation(state)
        over = self._days + config.hold > self.last
        if config.horizon is not None:
            over |= self._decisions >= config.horizon
        truncated = self._on_device(over) & ~ruined
        equity, obs = self.equity, self._restart(over, ruined, final)
        return Step(obs, reward.flatten(), ruined.flatten(), truncated.flatten(), final), notional, equity

    def check(self) -> None:
        """Raise InputError, with environment, step and column, for the first non-finite action since the last check."""
        env, step, column = self._bad.tolist()
        self._bad.fill_(-1)
        if env >= 0:
            raise InputError(f"the action of environment {env} at step {step} is not finite in column {column}")

    def state_dict(self) -> dict[str, Tensor | int]:
        """Return tensors and plain values from which `load_state_dict` continues exactly."""
        tensors = {"days": self._days, "decisions": self._decisions, "equity": self.equity}
        tensors |= {"cash": self.account.cash, "shares": self.account.shares}
        tensors |= {"seen_cash": self.seen.cash, "seen_shares": self.seen.shares}
        state: dict[str, Tensor | int] = {name: value.clone() for name, value in tensors.items()}
        return state | {"clock": self._clock, "generator": self._generator.get_state()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue from the state of an environment with the same settings. Raises CheckpointError if shapes differ."""
        shape, expected = tuple(state["shares"].shape), (*self._shape, self.names)
        if shape != expected:
            text = f"the stored accounts have shape {shape}, but the environment needs {expected}"
            raise CheckpointError(f"{text}; use the market and the settings of the stored run")
        self._days, self._decisions, self._clock = state["days"].cpu(), state["decisions"].cpu(), int(state["clock"])
        cash, shares, seen_cash, seen_shares, self.equity = (
            state[name].to(self.device) for name in ("cash", "shares", "seen_cash", "seen_shares", "equity")
        )
        self.account, self.seen = Account(cash, shares), Account(seen_cash, seen_shares)
        self._rows = self._on_device(self._days)
        self._generator.set_state(state["generator"].cpu())

    def _on_device(self, host: Tensor) -> Tensor:
        """Return a host tensor [G] as [G, 1] on the device."""
        return host.to(self.device, non_blocking=True).unsqueeze(1)

    def _observation(self, state: Tensor) -> Observation:
        row = (self._rows - self.execution.lag).expand(self._shape).reshape(-1)
        return Observation(state.flatten(0, 1), row)

    def _draw(self, count: int) -> Tensor:
        """Return the start rows [count] of episodes: random rows if `config.random_start`, otherwise `first`. Random
        rows leave room for an episode (for one step if the horizon is None), unless the window is too short."""
        if not self.config.random_start:
            return torch.full((count,), self.first, dtype=torch.int64)
        latest = max(self.last - self.config.hold * (self.config.horizon or 1), self.first)
        return torch.randint(self.first, latest + 1, (count,), generator=self._generator)

    def _weights(self, action: Tensor, rows: Tensor, account: Account) -> Tensor:
        config, seen = self.config, rows - self.execution.lag
        anchor = self.anchor[seen] if config.around else None
        weights = target_weights(action, self.execution.among[seen], config.action, config.tilt, anchor)
        return self.execution.within(weights, account, rows, config.max_weight, config.max_turnover)

    def _trade(self, action: Tensor, rows: Tensor, account: Account, smooth: float) -> tuple[Account, Tensor, Tensor]:
        """Return (account after the fill, traded notional [G, M], mask [G, M] of finite actions)."""
        config, execution = self.config, self.execution
        good = (action - action).sum(-1) == 0  # inf - inf and NaN - NaN are NaN
        if config.action == "shares":
            orders = action.double().clamp(-1, 1) * config.hmax
            orders = orders.trunc() if config.whole_shares else orders
            orders = orders if execution.factor is None else orders / execution.factor[execution.fill_row(rows)]
            orders = orders.where(execution.has_bar[rows - execution.lag], 0.0)
        else:
            price = execution.price[execution.fill_row(rows)]
            orders = orders_for(self._weights(action, rows, account), value(*account, price), account.shares, price)
        orders = orders.where(good.unsqueeze(-1), 0.0)
        fill = execution.trade(account, rows, orders, config.costs, whole_shares=config.whole_shares, smooth=smooth)
        return Account(fill.cash, fill.shares), fill.notional, good

    def _mark_accounts(
        self, rows: Tensor, account: Account, seen: Account, before: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return (equity at the close of `rows`, reward, mask of ruined accounts, state) after a step. `before` is the
        equity before the step, and the state is the result of `account_state`."""
        config, execution = self.config, self.execution
        equity = value(*account, execution.mark[rows])
        gain = (equity / before).clamp(min=RUIN).log() if config.reward == "log" else equity - before
        state = account_state(seen, execution.mark[rows - execution.lag])
        return equity, (gain * config.reward_scale).float(), equity <= 0, state

    def _record_bad(self, action: Tensor, good: Tensor) -> None:
        """Record the environment, step and column of the first bad action. The record stays on the device."""
        env = (~good).flatten().to(torch.uint8).argmax()
        row = action.flatten(0, 1).index_select(0, env.view(1))[0]  # indexing with a tensor would synchronise
        column = (~row.isfinite()).to(torch.uint8).argmax()
        bad = torch.stack([env, torch.full_like(env, self._clock), column])
        self._bad = torch.where((self._bad[0] < 0) & ~good.all(), bad, self._bad)

    def _restart(self, over: Tensor, ruined: Tensor, final: Observation) -> Observation:
        """Reset accounts whose episode has ended. Return the observations; `final` has those before the reset. Groups
        that `over` [G] marks begin at a new row. Other accounts that `ruined` marks stay at their row."""
        again = ruined
        if over.any():
            self._days = torch.where(over, self._draw(len(over)), self._days)
            self._decisions = torch.where(over, 0, self._decisions)
            self._rows = self._on_device(self._days)
            again = ruined | self._on_device(over)
        cash = self.config.cash
        self.equity = self.equity.masked_fill(again, cash)
        accounts = [
            Account(account.cash.masked_fill(again, cash), account.shares.masked_fill(again.unsqueeze(-1), 0.0))
            for account in ((self.account, self.seen) if self.execution.lag else (self.account,))
        ]
        self.account, self.seen = accounts[0], accounts[-1]
        in_cash = torch.zeros_like(final.state[0])
        in_cash[-1] = 1.0
        return self._observation(torch.where(again.unsqueeze(-1), in_cash, final.state.unflatten(0, self._shape)))
