"""The audit must pass what is causal and catch what is not."""

import json

import numpy as np
import pytest
from made_audits import sentences
from made_markets import make_market, random_market

from finpod.backtesting.sentences import unchecked
from finpod.errors import InputError, StrategyError
from finpod.files import to_json
from finpod.lookahead import examination
from finpod.lookahead.audit import UNCHECKED, audit, audit_features, quick_audit, with_noise_after
from finpod.lookahead.examination import AFTER, HISTORY
from finpod.lookahead.playing import play, played
from finpod.records import Audit
from finpod.rules import RULES, EqualWeight, Momentum
from finpod.strategy import Strategy, equal_parts, top_k
from finpod.synthetic import simulate_market
from finpod.trading.execution import build_execution
from finpod.trading.simulate import Terms, Window, simulate
from finpod.weights import decide_once, decisions_of


@pytest.fixture(scope="module")
def market():
    return random_market(days=330, names=12, gaps=0.02)


def tomorrow(market):
    """A leak: the return of the next session."""
    table = np.full(market.shape, np.nan)
    table[:-1] = market.close[1:] / market.close[:-1] - 1
    return table


def yesterday(market):
    """No leak: the return of the last session."""
    table = np.full(market.shape, np.nan)
    table[1:] = market.close[1:] / market.close[:-1] - 1
    return table


def full_sample_scale(market):
    """A leak of the quiet kind: closes over their mean over all time."""
    return market.close / np.nanmean(market.close, axis=0)


def days_to_live(market):
    """A leak through the last bar: how long the name will still be there."""
    return np.where(
        market.has_bar, (market.last_bar - market.dates[:, None]).astype("timedelta64[D]").astype(float), np.nan
    )


def future_member(market):
    """A leak through membership: whether the name is in the universe five sessions on."""
    later = np.full(market.shape, np.nan)
    later[:-5] = market.member[5:]
    return later


class Waits(Strategy):
    """Looks ahead, but only after 40 steps of a run."""

    every = 5

    def decide(self, view):
        if view.step < 40:
            return None
        return top_k(np.nan_to_num(tomorrow(view._market)[view._row]), 1)


class Monthly(Strategy):
    """Looks ahead, but on the first session of a month only."""

    def decide(self, view):
        dates, row = view._market.dates.astype("datetime64[M]"), view._row
        if row and dates[row] == dates[row - 1]:
            return None
        return top_k(np.nan_to_num(tomorrow(view._market)[view._row]), 1)


class Counts(Strategy):
    """Looks ahead, but only once it remembers thirty decisions."""

    every = 2

    def __init__(self):
        self.seen = 0

    def decide(self, view):
        self.seen += 1
        return top_k(np.nan_to_num(tomorrow(view._market)[view._row]), 1) if self.seen > 30 else None


class Never(Strategy):
    """Decides nothing, ever."""

    def decide(self, view):
        return None


class Ranks(Strategy):
    """Holds the three highest of a feature."""

    name = "ranks"

    def __init__(self, feature, **attributes) -> None:
        self.feature = feature
        vars(self).update(attributes)

    def decide(self, view):
        return top_k(view.features(self.feature)[:, 0], 3, among=view.tradable)


@pytest.mark.parametrize("name", list(RULES)[:4])
def test_the_built_in_strategies_pass(market, name):
    verdict = audit(RULES[name](), market)
    assert verdict.passed, str(verdict)
    assert sentences(verdict) == ()
    assert len(verdict.days) == 12
    assert str(verdict).startswith(f"strategy {name}: no look-ahead found on 12 days from 20")


def test_a_causal_feature_and_the_oracle_pass(market):
    assert audit(Ranks(yesterday, features=[yesterday, "return_5"]), market).passed
    simulated = simulate_market(names=5, days=60, signal=0.5)
    assert audit(simulated.oracle, simulated).passed


@pytest.mark.parametrize("feature", [tomorrow, full_sample_scale, days_to_live, future_member])
def test_a_strategy_on_a_leaking_feature_is_caught(market, feature):
    verdict = audit(Ranks(feature), market, days=20)
    assert not verdict.passed
    text = str(verdict)
    assert text.startswith("strategy ranks: LOOKS AHEAD, checked on 20 days")
    assert "decisions: first leak on " in text


def test_the_finding_names_the_day_the_size_and_the_ticker():
    close = np.full((8, 4), 10.0)
    close[1:, 2] = 10 * 1.1 ** np.arange(1, 8)  # C alone rises
    close[1:, [0, 1, 3]] = 10 * 0.9 ** np.arange(1, 8)[:, None]

    class OneAhead(Strategy):
        name = "one ahead"

        def decide(self, view):
            return top_k(view.features(tomorrow)[:, 0], 1)

    market = make_market(close)
    verdict = audit(OneAhead(), market, days=3, start=market.dates[2], end=market.dates[4])
    assert sentences(verdict)[0] == (
        "decisions: first leak on 2024-01-03; the weight of C on 2024-01-03 changes by 1 when "
        "later rows are left out (3 of 3 days)"
    )
    assert verdict.days == ("2024-01-03", "2024-01-04", "2024-01-05")


def test_declared_features_are_audited_by_name(market):
    class Careful(Momentum):
        features = ("return_5", tomorrow)

    verdict = audit(Careful(), market)
    assert len(sentences(verdict)) == 2
    assert all(finding.startswith("feature tomorrow: first leak on") for finding in sentences(verdict))


def test_looking_ahead_only_once_invested_is_caught(market):
    class Patient(Strategy):
        every = 5

        def decide(self, view):
            if view.step == 0 or view.held.sum() < 0.5:
                return equal_parts(view.tradable & view.member)
            return top_k(view.features(tomorrow)[:, 0], 3, among=view.tradable)

    verdict = audit(Patient(), market)
    assert not verdict.passed
    assert {finding.split(":")[0] for finding in sentences(verdict)} == {"decisions once invested"}


def test_a_strategy_that_remembers_its_first_decision_is_audited_as_in_a_run(market):
    steps = []

    class Entered(Strategy):
        every = 21

        def decide(self, view):
            if view.step == 0:
                self.entered = view.closes(1)[0]
            steps.append((view.step, str(view.date)[:10], view.cash, round(view.held.sum(), 9)))
            return top_k(np.nan_to_num(view.closes(1)[0] / self.entered), 3, among=view.tradable)

    row = 60
    assert audit(Entered(), market, start=market.dates[30], end=market.dates[row], days=31).passed
    later = [entry for entry in steps if entry[0] and entry[3] == 1.0]  # the rest is in the account of the run
    assert {step for step, *_ in later} == {21}
    assert all(abs(cash) < 1e-9 for _, _, cash, _ in later)
    before = [
        steps[i - 1][1] for i, entry in enumerate(steps) if entry in later and entry[1] == str(market.dates[row])[:10]
    ]
    assert set(before) == {str(market.dates[row - 21])[:10]}
    assert min(day for _, day, *_ in steps) >= str(market.dates[30])[:10]


def test_the_verdict_says_what_was_not_checked(market):
    verdict = audit(Momentum(), market, days=2)
    assert verdict.unchecked == UNCHECKED
    assert str(verdict).splitlines()[-1] == "  not checked: " + "; ".join(unchecked(verdict))
    features = audit_features(market, "return_5", days=2)
    assert "not checked: days that were not sampled" in str(features)
    assert set(features.unchecked) == set(UNCHECKED) - {"other_accounts", "memory"}


def test_features_are_computed_once_a_market(market):
    """Once for the whole market, and on each of the two that stand in for it on a day; once more for the run."""
    seen = []

    def counted(on):
        seen.append(on.content_hash)
        return yesterday(on)

    assert audit(Ranks([counted, "return_5"], features=[counted, "return_5"]), market, days=4).passed
    assert len(seen) - 1 == len(set(seen)) == 1 + 2 * 4
    seen.clear()
    assert audit_features(market, [counted], days=4).passed
    assert len(seen) == 1 + 2 * 4


def test_features_that_roll_dice_are_not_taken_for_look_ahead(market):
    def dice(on):
        return np.random.default_rng().random(on.shape)

    verdict = audit(Ranks(dice), market, days=3)
    assert (verdict.passed, sentences(verdict)) == (None, ())
    assert verdict.reason == "not_repeatable"


def test_progress_is_told(market):
    told = []
    audit(Momentum(), market, days=3, progress=lambda doing, share: told.append((doing, share)))
    assert [share for _, share in told] == [0.0, 0.0, 1 / 3, 2 / 3, 1.0]
    assert told[0][0] == "running it once, then auditing day 1 of 3"
    assert "day 1 of 3" in told[1][0]


def test_a_copy_of_the_data_is_found(market):
    """A strategy that carries the whole market decides alike whatever the view is cut to."""

    class Carries(Strategy):
        def decide(self, view):
            row = int(np.searchsorted(market.dates, view.date))
            return top_k(np.nan_to_num(market.close[min(row + 1, 329)] / market.close[row]), 3, among=view.tradable)

    verdict = audit(Carries(), market)
    assert sentences(verdict) == (
        f"decisions: on {verdict.days[0]} market of Carries.decide holds a market [330, 12] up to "
        "2025-04-04; pass what it needs, such as market.tickers, instead",
    )


def test_each_decision_is_taken_by_a_fresh_copy(market):
    class Remembers(Strategy):
        def __init__(self):
            self.seen = []

        def decide(self, view):
            self.seen.append(view.date)
            return equal_parts(view.tradable) / len(self.seen)

    strategy = Remembers()
    assert audit(strategy, market).passed
    assert strategy.seen == []


def test_chance_is_told_from_look_ahead(market):
    class Dice(Strategy):
        def decide(self, view):
            return np.random.default_rng().dirichlet(np.ones(12))

    verdict = audit(Dice(), market)
    assert (verdict.passed, sentences(verdict)) == (None, ())
    assert verdict.reason == "not_repeatable"
    assert str(verdict).startswith("strategy Dice: NOT REPEATABLE: ")

    class OwnDice(Strategy):
        def __init__(self):
            self.random = np.random.default_rng(0)

        def decide(self, view):
            return self.random.dirichlet(np.ones(12))

    assert audit(OwnDice(), market).passed


def test_a_strategy_that_breaks_without_the_future_is_caught(market):
    class Ahead(Strategy):
        def decide(self, view):
            rows = view._market.close[view._row + 1]
            return top_k(np.nan_to_num(rows), 2)

    finding = audit(Ahead(), market).findings[0]
    assert (finding.kind, finding.size) == ("cut", np.inf)
    assert (finding.data["days"], finding.data["checked"]) == (12, 12)


def test_a_strategy_that_fails_by_itself_is_an_error(market):
    with pytest.raises(StrategyError, match="strategy Strategy failed on"):
        audit(Strategy(), market)
    unique = Momentum()
    unique.log = open(__file__)  # type: ignore[attr-defined]  # noqa: PTH123, SIM115
    with unique.log, pytest.raises(StrategyError, match="strategy momentum cannot be audited, for it cannot be copied"):
        audit(unique, market)


# --- decisions that are seldom taken --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Waits, Monthly, Counts])
def test_a_strategy_that_seldom_decides_is_seen_deciding(market, kind):
    for verdict in (audit(kind(), market, days=4), _backtested(kind(), market)):
        assert verdict.passed is False
        assert "first leak on" in str(verdict)


def _backtested(strategy, market):
    """Its short audit on the decisions of a run."""
    first, last = 10, len(market.dates) - 1
    return quick_audit(strategy, market, first, last, run=play(strategy, market, first, last))


@pytest.mark.parametrize("kind", [Waits, Monthly, Counts])
def test_a_strategy_that_seldom_decides_without_looking_ahead_passes(market, kind):
    class Honest(kind):
        def decide(self, view):
            decision = super().decide(view)
            return decision if decision is None else equal_parts(view.tradable)

    assert audit(Honest(), market, days=4).passed
    assert _backtested(Honest(), market).passed


def test_without_a_decision_nothing_is_said(market):
    for verdict in (
        audit(Never(), market, days=4),
        quick_audit(Never(), market, 10, 300),
        _backtested(Never(), market),
    ):
        assert (verdict.passed, sentences(verdict), verdict.days) == (None, (), ())
        assert verdict.reason == "no_decision"
        assert str(verdict).startswith("strategy Never: not audited: ")


@pytest.mark.parametrize("fill", ["open", "close"])
def test_the_decisions_of_a_run_are_read_off_its_account(market, fill):
    asked = []

    class Notes(Strategy):
        every = 7

        def decide(self, view):
            asked.append((view._row, view.step, view.equity, view.cash, view.held.copy()))
            return equal_parts(view.tradable) if view.step % 2 else None

    execution = build_execution(market, fill)
    window = Window(market=market, execution=execution, first=20, last=120)
    strategy = Notes()
    path = simulate(execution, 20, 120, decisions_of(strategy, "notes", window), Terms())
    run = played(path, window, strategy.every)
    rows, steps, equity, cash, held = map(np.array, zip(*asked, strict=True))
    np.testing.assert_array_equal(run.rows, rows)
    np.testing.assert_array_equal(run.steps, steps)
    np.testing.assert_array_equal(run.decided, steps % 2 == 1)
    np.testing.assert_allclose(run.equity, equity)
    np.testing.assert_allclose(run.cash, cash, atol=1e-6)
    np.testing.assert_allclose(run.held, held, atol=1e-12)


# --- features -----------------------------------------------------------------------------------------------------


def test_the_built_in_features_pass(market):
    for bars in (market, simulate_market(names=8, days=320)):
        verdict = audit_features(bars, ["default", "published"], days=5)
        assert verdict.passed, str(verdict)


@pytest.mark.parametrize("leak", [tomorrow, full_sample_scale, days_to_live, future_member])
def test_a_leaking_feature_is_named_with_day_and_size(market, leak):
    verdict = audit_features(market, [yesterday, leak], start=market.dates[40], end=market.dates[80])
    assert not verdict.passed
    assert {finding.split(":")[0] for finding in sentences(verdict)} == {f"feature {leak.__name__}"}
    assert f"{verdict.days[0]}" in sentences(verdict)[0]


def test_noise_leaves_the_past_and_the_shapes(market):
    noisy = with_noise_after(market, 100, seed=3)
    for name in ("open", "close", "factor", "member", "benchmark_close"):
        before, after = getattr(market, name), getattr(noisy, name)
        np.testing.assert_array_equal(after[:101], before[:101])
        assert after.shape == before.shape
        assert not np.array_equal(after[101:], before[101:], equal_nan=True)
    assert noisy.tickers == market.tickers
    assert noisy.volume is None
    ended = market.last_bar <= market.dates[100]
    np.testing.assert_array_equal(noisy.last_bar[ended], market.last_bar[ended])
    assert (noisy.last_bar[~ended] > market.dates[100]).all()
    assert noisy.content_hash == with_noise_after(market, 100, seed=3).content_hash


# --- the days -----------------------------------------------------------------------------------------------------


def test_the_days_are_sampled_from_the_window_and_have_a_day_after(market):
    verdict = audit(Momentum(), market, days=1000, start=market.dates[320])
    assert verdict.days == tuple(f"{day!s:.10}" for day in market.dates[320:329])
    one, again, other = (audit(Momentum(), market, days=5, seed=seed).days for seed in (1, 1, 2))
    assert one == again != other


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"days": 0}, "days is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"start": "2031-01-01"}, "lies outside the data"),
    ],
)
def test_an_audit_of_nothing_is_refused(market, options, message):
    with pytest.raises(InputError, match=message):
        audit(Momentum(), market, **options)


def test_the_last_session_alone_cannot_be_audited(market):
    with pytest.raises(InputError, match=r"no session follows .*; audit an earlier window"):
        audit(Momentum(), market, start=market.dates[-1])


# --- the short form, for every backtest ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def long_market():
    """More sessions than a piece of the market has."""
    return random_market(days=HISTORY + AFTER + 200, names=5, gaps=0.01)


def test_a_short_audit_samples_decisions_of_the_backtest(market):
    verdict = quick_audit(Momentum(20, 3), market, 100, 110, days=50)
    assert verdict.days == tuple(f"{day!s:.10}" for day in market.dates[100:110])
    assert verdict.passed
    assert verdict.subject == "strategy momentum"
    assert len(quick_audit(Momentum(20, 3), market, 100, 110).days) == 2
    one, again, other = (quick_audit(Momentum(20, 3), market, 0, 329, seed=seed).days for seed in (1, 1, 2))
    assert one == again != other


def test_a_short_audit_of_a_window_without_a_decision_says_so(market):
    for window in ((329, 329), (328, 328)):
        verdict = quick_audit(Momentum(), market, *window)
        assert verdict.days == ()
        assert verdict.passed is None
        assert str(verdict).startswith("strategy momentum: not audited: no session follows 2025-04-0")


def test_a_short_audit_never_raises_for_a_strategy_that_fails(market):
    class Fails(Strategy):
        def decide(self, view):
            raise ValueError("out of order")

    class Odd(Momentum):
        @property
        def features(self):
            raise KeyError("odd")

    unique = Momentum()
    unique.log = (line for line in "ab")  # type: ignore[attr-defined]
    for strategy, reason in [
        (Fails(), "failed on 20"),
        (Odd(), "KeyError"),
        (unique, "cannot be audited"),
        (Strategy(), "no decide"),
    ]:
        verdict = quick_audit(strategy, market, 0, 329)
        assert verdict.days == sentences(verdict) == ()
        assert verdict.passed is None
        assert verdict.reason == "failed"
        assert reason in verdict.note


def test_a_short_audit_looks_at_pieces_of_the_market(long_market, monkeypatch):
    shapes = []

    def spy(strategy, view, label):
        shapes.append((view._row + 1, len(view._market.dates)))
        return decide_once(strategy, view, label)

    monkeypatch.setattr(examination, "decide_once", spy)
    last = len(long_market.dates) - 1
    verdict = quick_audit(EqualWeight(), long_market, 500, 501)
    assert verdict.unchecked == (*UNCHECKED, "far")
    assert f"more than {HISTORY} before a sampled day or {AFTER} after it" in str(verdict)
    assert set(shapes) == {(HISTORY, HISTORY), (HISTORY, HISTORY + AFTER)}
    shapes.clear()
    assert quick_audit(EqualWeight(), long_market, last - 1, last).passed
    assert max(shapes) == (HISTORY, HISTORY + 1)
    assert quick_audit(EqualWeight(), long_market.rows(0, HISTORY), 5, 20).unchecked[-1] == "far"
    assert quick_audit(EqualWeight(), long_market.rows(0, AFTER), 5, 20).unchecked == UNCHECKED


@pytest.mark.parametrize("how", ["asks for more", "lacks a feature", "fails"])
def test_a_short_audit_turns_to_the_whole_market_where_a_piece_does_not_do(long_market, how):
    """Each of these looks ahead in a way that a piece would hide."""
    last = len(long_market.dates) - 1

    def far_back(on):
        table = np.full(on.shape, np.nan)
        table[HISTORY + 20 : -1] = on.close[HISTORY + 21 :]
        return table

    class Far(Strategy):
        def decide(self, view):
            if how == "asks for more":
                old = view.closes(HISTORY + 20)[0]
                return top_k(np.where(np.isnan(old), np.nan, tomorrow(view._market)[view._row]), 1)
            if how == "lacks a feature":
                return top_k(view.features(far_back)[:, 0], 1)
            if view._row < HISTORY + 10:
                raise ValueError("too little")
            return top_k(tomorrow(view._market)[view._row], 1)

    verdict = quick_audit(Far(), long_market, last - 100, last, days=3)
    assert len(verdict.days) == 3
    assert "decisions: first leak on 20" in str(verdict)
    assert verdict.unchecked == UNCHECKED


def test_a_short_audit_leaves_what_a_strategy_notes_as_it_was(market):
    notes, count = [], {"decisions": 0}

    class Notes(Strategy):
        def decide(self, view):
            notes.append(f"{view.date!s:.10}")
            count["decisions"] += 1
            return equal_parts(view.tradable)

    assert quick_audit(Notes(), market, 10, 100).passed
    assert (notes, count) == ([], {"decisions": 0})
    assert audit(Notes(), market, days=2).passed  # one that is asked for may be read along with
    assert len(notes) > 2
    assert count == {"decisions": 0}


def test_verdicts_as_plain_values(market):
    verdict = audit(Ranks(tomorrow), market, days=2)
    assert Audit.from_record(json.loads(to_json(verdict.to_record()))) == verdict
    one = Audit(True, days=("2024-01-01",), subject="strategy one")
    assert str(one) == "strategy one: no look-ahead found on 1 day from 2024-01-01 to 2024-01-01"


def test_a_strategy_that_is_asked_no_feature_may_declare_none(market):
    class Plain(Momentum):
        features = ()

    assert audit(Plain(20, 3), market, days=2).passed
