"""`BacktestResult`: what it says, and that it comes back from disk as it went."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from made_markets import make_market, random_market

from finpod.backtesting.comparison import compare
from finpod.backtesting.comparison_text import headings
from finpod.backtesting.engine import backtest
from finpod.backtesting.result_io import ADDED, checksums, load_result
from finpod.errors import InputError
from finpod.files import new_folder
from finpod.records import ResultWarning
from finpod.result import BacktestResult
from finpod.rules import BuyAndHold, EqualWeight, Momentum
from finpod.strategy import Strategy
from finpod.trading.ledger import Costs

FILES = {"result.json", "run.json", "returns.csv", "trades.csv", "weights.parquet", "SHA256SUMS"}


class Constant(Strategy):
    """The same weights every day."""

    name = "constant"

    def __init__(self, *weights: float, **attributes) -> None:
        self.weights = np.array(weights)
        vars(self).update(attributes)

    def decide(self, view):
        return self.weights


def run(days=60, **options) -> BacktestResult:
    market = random_market(days=days)
    return backtest(Momentum(lookback=5, k=2), market, **{"start": market.dates[6], "risk_free": 0.01, **options})


def test_two_runs_are_byte_identical(tmp_path):
    folders = [run().save(tmp_path / name, run={"seconds": clock}) for name, clock in (("one", 1.5), ("two", 2.5))]
    for name in FILES - {"run.json"}:
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes(), name
    assert json.loads((folders[0] / "run.json").read_text()) == {"seconds": 1.5}


@pytest.mark.parametrize(
    "options", [{"opened": 3}, {"fill": "close", "whole_shares": True, "costs": Costs(per_share=0.01)}]
)
def test_what_is_saved_is_loaded(tmp_path, options):
    result = run(**options)
    folder = result.save(tmp_path / "deep" / "run")
    assert {path.name for path in folder.iterdir()} == FILES
    back = load_result(folder)
    assert back.to_json() == result.to_json()
    for name in ("equity", "benchmark_equity", "equal_weight_equity", "anchor_equity", "turnover", "returns"):
        pd.testing.assert_series_equal(
            getattr(back, name), getattr(result, name), check_names=False, check_freq=False, rtol=0, atol=0
        )
    pd.testing.assert_frame_equal(back.weights, result.weights, check_freq=False, rtol=0, atol=0)
    pd.testing.assert_frame_equal(back.trades, result.trades, check_dtype=False, rtol=0, atol=0)
    assert back.costs == result.costs
    assert back.metrics == result.metrics


def test_a_run_without_a_trade_is_saved_and_loaded(tmp_path):
    market = make_market([10] * 8, tickers=("NA",))  # a ticker that must not be read as a missing value
    result = backtest(Constant(0.0), market)
    back = load_result(result.save(tmp_path / "idle"))
    assert back.trades.empty
    assert back.to_json() == result.to_json()
    traded = backtest(Constant(1.0), market)
    assert load_result(traded.save(tmp_path / "na")).trades["ticker"].tolist() == traded.trades["ticker"].tolist()


def test_undefined_figures_are_null_in_json():
    content = json.loads(backtest(Constant(0.0), make_market([10] * 8)).to_json())
    assert content["metrics"]["sharpe"] is None
    assert content["metrics"]["calmar"] is None
    assert content["metrics"]["total_return"] == 0
    assert "NaN" not in json.dumps(content)


def test_json_holds_no_clock_and_all_provenance():
    market = random_market(days=30)
    content = json.loads(backtest(EqualWeight(), market, start=market.dates[2], costs=Costs(fee_bps=7)).to_json())
    assert content["data_hash"] == market.content_hash
    assert content["costs"]["fee_bps"] == 7
    assert (content["start"], content["end"]) == (f"{market.dates[2]!s:.10}", f"{market.dates[-1]!s:.10}")
    assert not {"created", "time", "seconds", "duration"} & set(content)


def test_an_existing_folder_is_kept_unless_told(tmp_path):
    result = run()
    folder = result.save(tmp_path / "run")
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="run exists already; choose another name, or pass overwrite=True"):
        result.save(folder)
    with pytest.raises(InputError, match=r"run holds 'notes.txt', which is no part of a backtest"):
        result.save(folder, overwrite=True)
    assert (folder / "notes.txt").read_text() == "mine"
    (folder / "notes.txt").unlink()
    result.save(folder, overwrite=True, run={"again": True})
    assert {path.name for path in folder.iterdir()} == FILES
    assert json.loads((folder / "run.json").read_text()) == {"again": True}


def test_a_failed_save_leaves_nothing_behind(tmp_path):
    unwritable = replace(run(), manifest={"source": object()})
    with pytest.raises(TypeError):
        unwritable.save(tmp_path / "run")
    assert list(tmp_path.iterdir()) == []
    kept = run().save(tmp_path / "run")
    before = (kept / "result.json").read_bytes()
    with pytest.raises(TypeError):
        unwritable.save(kept, overwrite=True)
    assert (kept / "result.json").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_folder_keeps_its_old_content_if_the_new_cannot_take_its_place(tmp_path, monkeypatch):
    target = tmp_path / "run"
    target.mkdir()
    (target / "result.json").write_text("old")
    rename, calls = Path.replace, []

    def second_fails(self, other):
        calls.append(other)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        return rename(self, other)

    monkeypatch.setattr(Path, "replace", second_fails)
    with pytest.raises(InputError, match="No space left"), new_folder(target, overwrite=True) as fresh:
        (fresh / "result.json").write_bytes(b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert (target / "result.json").read_text() == "old"


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot write .*file/run: .*file is not a folder; move it away"):
        run().save(tmp_path / "file" / "run")


def edit(**changes):
    """Change fields of result.json; a field is named with two underscores between levels."""

    def damage(folder):
        content = json.loads((folder / "result.json").read_text())
        for name, value in changes.items():
            *levels, last = name.split("__")
            inner = content
            for level in levels:
                inner = inner[level]
            inner[last] = value
        (folder / "result.json").write_text(json.dumps(content))

    return damage


def lines(file, change):
    """Change the lines of a CSV."""

    def damage(folder):
        path = folder / file
        path.write_text("".join(change(path.read_text().splitlines(keepends=True))))

    return damage


def cell(row, column, value):
    def change(rows):
        cells = rows[row].rstrip().split(",")
        cells[column] = value
        return [*rows[:row], ",".join(cells) + "\n", *rows[row + 1 :]] if row >= 0 else [*rows[:row], ",".join(cells)]

    return change


def fewer_weights(folder):
    path = folder / "weights.parquet"
    pd.read_parquet(path).iloc[:-1].to_parquet(path)


def half_weights(folder):
    path = folder / "weights.parquet"
    (pd.read_parquet(path) * 0.5).to_parquet(path)


def word_weights(folder):
    path = folder / "weights.parquet"
    pd.read_parquet(path).astype(str).replace("0.0", "none").to_parquet(path)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "result.json").unlink(), "holds no backtest result"),
        (lambda folder: (folder / "result.json").write_text("{"), "holds no backtest result"),
        (lambda folder: (folder / "result.json").write_text("[]"), "holds no backtest result"),
        (lambda folder: (folder / "result.json").write_text('{"format": 3}'), r"is damaged \(it lacks 'strategy'\)"),
        (lambda folder: (folder / "returns.csv").unlink(), r"is damaged \(.*No such file.*returns.csv"),
        (lambda folder: (folder / "returns.csv").write_text(""), r"is damaged \("),
        (lambda folder: (folder / "returns.csv").write_text("a,b\n1,2\n"), r"is damaged \("),
        (lambda folder: (folder / "trades.csv").unlink(), r"is damaged \(.*No such file.*trades.csv"),
        (lambda folder: (folder / "weights.parquet").write_bytes(b"no"), r"weights.parquet cannot be read"),
        (fewer_weights, "not of the same days"),
        (word_weights, "weights.parquet: .* not a number"),
        (lines("returns.csv", lambda rows: rows[:20]), "not of the same days"),
        (lines("returns.csv", cell(5, 1, "many")), "returns.csv: equity holds 'many', not a number"),
        (lines("returns.csv", cell(5, 1, "")), "no whole equity curve"),
        (lines("returns.csv", cell(5, 0, "2001-01-01")), "not of the same days"),
        (lines("returns.csv", cell(-1, 1, "5.0")), "total return of strategy is .* in result.json, but "),
        (lines("returns.csv", cell(-1, 2, "5.0")), "total return of benchmark is"),
        (lines("returns.csv", cell(1, 1, "999.0")), "cash is 1000000.0 in result.json, but 999.0"),
        (lines("trades.csv", lambda rows: rows[:-1]), "costs is .* in result.json, but"),
        (lines("trades.csv", cell(1, 2, "few")), "trades.csv: shares holds 'few', not a number"),
        (edit(start="2001-01-02"), "start is 2001-01-02 in result.json, but 20"),
        (edit(end="2001-01-02"), "end is 2001-01-02 in result.json"),
        (edit(metrics__days=7), "returns is 7 in result.json, but 53"),
        (edit(table__strategy__total_return="much"), r"is damaged \("),
        (edit(costs__fee_bps=-5), "fee_bps is -5"),
        (edit(costs__fee_bps="five"), r"is damaged \("),
        (edit(costs__bogus=1), "bogus"),
        (edit(risk_free="low"), "risk_free is 'low'"),
        (edit(trials=True), "trials is True"),
        (edit(windows=[1, 2]), r"is damaged \("),
        (lines("returns.csv", cell(20, 1, "999999.0")), "is damaged: returns.csv is not what was written; run"),
        (lines("returns.csv", cell(20, 3, "999999.0")), "returns.csv is not what was written"),
        (half_weights, "weights.parquet is not what was written"),
        (lines("trades.csv", cell(1, 3, "1.0")), "trades.csv is not what was written"),
        (edit(cost_sweep={"5.0": {}}), "result.json is not what was written"),
        (edit(warnings=[]), "result.json is not what was written"),
        (lambda folder: (folder / "run.json").unlink(), "is damaged: run.json is missing"),
        (lambda folder: (folder / "SHA256SUMS").unlink(), "is damaged: SHA256SUMS is missing"),
        (lines("SHA256SUMS", lambda rows: rows[1:]), "result.json is not what was written"),
        (lines("SHA256SUMS", lambda rows: ["nonsense\n", *rows]), "SHA256SUMS is not what was written"),
        (edit(spread={"seed 1": {}}), r"variants is \['seed 1'\] in result.json, but \[\]"),
    ],
)
def test_a_damaged_folder_is_one_line(tmp_path, damage, message):
    folder = run().save(tmp_path / "run")
    damage(folder)
    with pytest.raises(InputError, match=message) as raised:
        load_result(folder)
    assert "\n" not in str(raised.value)
    assert str(folder) in str(raised.value)


def test_a_fan_that_was_taken_away_or_put_in_is_missed(tmp_path):
    result = run()
    fan = pd.DataFrame({"random 1": result.equity, "random 2": result.equal_weight_equity})
    folder = replace(result, fan=fan).save(tmp_path / "run")
    assert load_result(folder).fan.shape == fan.shape
    kept = (folder / "fan.parquet").read_bytes()
    (folder / "fan.parquet").unlink()
    with pytest.raises(InputError, match=r"is damaged: fan.parquet is missing; run the backtest again"):
        load_result(folder)
    without = result.save(tmp_path / "without")
    (without / "fan.parquet").write_bytes(kept)
    with pytest.raises(InputError, match=r"fan.parquet is not what was written"):
        load_result(without)


def test_the_checksums_are_those_of_sha256sum(tmp_path):
    """And what else lies in the folder is no matter."""
    folder = run().save(tmp_path / "run")
    (folder / ".DS_Store").write_text("")
    lines = (folder / "SHA256SUMS").read_text().splitlines()
    assert [line[66:] for line in lines] == ["result.json", "returns.csv", "trades.csv", "weights.parquet"]
    for line in lines:
        assert hashlib.sha256((folder / line[66:]).read_bytes()).hexdigest() + "  " == line[:66]
    assert load_result(folder).strategy == "momentum"


def test_a_result_without_an_anchor_is_over_equal_weight(tmp_path):
    """As results were written before they had one."""
    folder = run(opened=3).save(tmp_path / "run")
    content = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps({name: content[name] for name in content.keys() - ADDED.keys()}))
    pd.read_csv(folder / "returns.csv").drop(columns="anchor").to_csv(folder / "returns.csv", index=False)
    (folder / "SHA256SUMS").write_text(checksums(folder))
    earlier = load_result(folder)
    assert not earlier.has_own_anchor
    assert (earlier.anchor, earlier.anchor_every, earlier.opened) == ("equal-weight", 1, 1)


def test_another_format_is_refused(tmp_path):
    folder = run().save(tmp_path / "run")
    content = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps(content | {"format": 99}))
    with pytest.raises(InputError, match="has result format 99, this finpod reads 3; run it again"):
        load_result(folder)


def test_the_table_and_the_attributes_show_the_same_figures():
    result = run()
    table = result.table
    assert list(table) == ["strategy", "benchmark", "equal_weight"]
    own, benchmark = table["strategy"], table["benchmark"]
    assert own["sharpe"] == result.metrics.sharpe
    assert own["excess"] == result.metrics.total_return - result.benchmark_metrics.total_return
    assert own["beta"] == result.relative.beta
    assert own["costs"] == result.fees == result.trades["cost"].sum()
    assert own["turnover"] == result.turnover.sum()
    assert benchmark["excess"] == 0
    fills = result.trades[result.trades["kind"] == "fill"]
    assert own["buys"] + own["sells"] == len(fills)
    assert own["cash"] == pytest.approx(result.cash_weight.iloc[1:].mean())
    assert own["excess_over_equal_weight"] == result.relative_to_equal_weight.excess


def test_a14_after_ruin_everything_is_finite():
    market = make_market([100, 100, 110, np.nan, np.nan], open=[100, 100, 100, np.nan, np.nan])
    result = backtest(
        BuyAndHold(), market, start=market.dates[1], cash=100, costs=Costs(fee_bps=0), delisting_return=-1
    )
    assert result.equity.tolist() == [100, 110, 0, 0]
    assert result.returns.tolist() == pytest.approx([0.1, -1, 0])
    assert (result.metrics.total_return, result.metrics.cagr, result.metrics.max_drawdown) == (-1, -1, -1)
    assert np.isfinite(result.weights).all().all()
    assert result.cash_weight.iloc[-1] == 0


# --- warnings ------------------------------------------------------------------------------------------------------


def codes_of(strategy, market, **options) -> set[str]:
    return {warning.code for warning in backtest(strategy, market, **options).warnings}


def flat(days=30, **manifest):
    prices = np.full((days, 3), 10.0)
    return make_market(prices, open=prices, manifest=manifest)


@pytest.mark.parametrize(
    ("weights", "code"),
    [((0, 0, 0), "never_traded"), ((0.01, 0.01, 0.01), "all_cash"), ((0.97, 0, 0), "one_asset")],
)
def test_degenerate_policies_are_named(weights, code):
    assert code in codes_of(Constant(*weights), flat())
    assert code not in codes_of(EqualWeight(), flat())


def test_buy_and_hold_is_named():
    assert "one_trading_day" in codes_of(BuyAndHold(), flat())


@pytest.mark.parametrize(("days", "short"), [(20, True), (21, False)])
def test_a13_a_short_history_is_warned_of(days, short):
    assert ("short_history" in codes_of(EqualWeight(), flat(days))) == short


@pytest.mark.parametrize(
    ("manifest", "warning"),
    [
        ({"source": "simulated"}, ResultWarning("simulated", {"title": "no title"})),
        (
            {"survivorship": True, "membership": "list of 2026"},
            ResultWarning("survivorship", {"membership": "list of 2026"}),
        ),
        ({"benchmark_kind": "price return"}, ResultWarning("price_return_benchmark", {"benchmark": "QQQ"})),
        ({"missing": ["XYZ"]}, ResultWarning("missing_members", {"tickers": ["XYZ"], "count": 1})),
        ({"notes": ["mind this"]}, ResultWarning("note", {"text": "mind this"})),
    ],
)
def test_the_data_speak_for_themselves(manifest, warning):
    assert warning in backtest(EqualWeight(), flat(**manifest)).warnings
    assert warning not in backtest(EqualWeight(), flat()).warnings


def test_a_note_of_the_vendor_is_never_grave(tmp_path):
    """A note that speaks of in-sample files says nothing of the strategy."""
    notes = ["in-sample and out-of-sample files of the vendor were joined", "LOOKS AHEAD of nothing"]
    result = backtest(EqualWeight(), flat(notes=notes))
    other = backtest(BuyAndHold(), flat(notes=notes))
    assert not any(warning.grave for warning in result.warnings)
    page = result.report(tmp_path / "page.html").read_text()
    assert '<li class="red">' not in page
    assert "In-sample and out-of-sample files of the vendor were joined" in page
    compared = compare([result, other])
    assert set(compared.flaws.values()) == {""}
    assert headings(compared) == ["equal-weight", "buy-and-hold"]


def test_selection_is_warned_of_and_in_sample_comes_first():
    strategy = Constant(0.3, 0.3, 0.3, trained_until="2024-02-01", trials=40)
    result = backtest(strategy, flat(survivorship=True), allow_in_sample=True)
    assert result.warnings[0] == ResultWarning("in_sample", {"trained_until": "2024-02-01"})
    assert ResultWarning("many_trials", {"trials": 40, "on": "validation"}) in result.warnings
