"""The bundled sample: real prices that need no network."""

from finpod.market.cleaning import package_versions
from finpod.market.data import MarketData


def sample_market() -> MarketData:
    """Twenty large US stocks, 1990-01-02 to 2022-12-28, adjusted daily closes only, from the data that ship with skfolio.

    The benchmark is the S&P 500 price index, which leaves dividends out, and the names are survivors: both flatter
    every strategy, and the manifest says so.
    """
    from skfolio.datasets import load_sp500_dataset, load_sp500_index

    prices = load_sp500_dataset()
    index = load_sp500_index()["SP500"].reindex(prices.index)
    first, last = (f"{prices.index[row]:%Y-%m-%d}" for row in (0, -1))
    names = tuple(str(ticker) for ticker in prices.columns)
    membership = f"static list of {len(names)} large US stocks, all of them survivors to {last}"
    return MarketData(
        dates=prices.index.to_numpy().astype("datetime64[ns]"),
        tickers=names,
        close=prices.to_numpy(dtype=float),
        benchmark="S&P 500 price index (dividends left out)",
        benchmark_close=index.to_numpy(dtype=float),
        manifest={
            "source": "sample",
            "title": f"bundled sample: {len(names)} large US stocks, {first} to {last}, adjusted daily closes (skfolio)",
            "path": "sample",
            "benchmark_kind": "price return",
            "membership": membership,
            "survivorship": True,
            "missing": [],
            "coverage": {str(year): 1.0 for year in sorted(set(prices.index.year))},
            "repairs": [],
            "suspicions": [],
            "notes": [],
            "versions": package_versions("skfolio"),
        },
        origin={"path": "sample"},
    )
