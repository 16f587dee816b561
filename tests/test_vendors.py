"""Files as vendors write them: each is read as the same closes, oldest or newest row first."""

import pytest
from made_bars import closes

from finpod.market.tidy import read_bars

DAYS = {
    "16": {"iso": "2024-01-16", "num": "20240116", "s": 1705363200, "c": 10, "e": 20},
    "17": {"iso": "2024-01-17", "num": "20240117", "s": 1705449600, "c": 11, "e": 21},
}
"""Day of January 2024 -> what a row says of it: `c` is the close of AAPL, `e` that of MSFT."""
ONE = {
    "yfinance history": "Date,Open,Close,Dividends,Stock Splits\n{iso} 00:00:00-05:00,9.5,{c},0.0,0.0",
    "yfinance, line of tickers cut": "Price,Close,High\nDate,,\n{iso},{c},12",
    "Nasdaq.com": 'Date,Close/Last,Volume,Open,High,Low\n01/{d}/2024,${c},"4,272,703",$9,$12,$8',
    "Alpha Vantage": "timestamp,open,close,adjusted_close,dividend_amount,split_coefficient\n{iso},9,{c},{c},0.0000,1.0",
    "Google": "\ufeffDate,Open,High,Low,Close,Volume\n{d}-Jan-24,9,12,8,{c},1000",
    "Google sheet": "Date,Open,High,Low,Close,Volume\n01/{d}/2024 16:00:00,9,12,8,{c},1000",
    "semicolons": "DATE;OPEN;CLOSE;VOLUME\n{d}.01.2024;9,50;{c},00;1.000",
    "tabs, no name for the date": "\tOpen\thIgH\tLow\tClose\n{iso} 16:00:00-05:00\t9\t12\t8\t{c}",
    "WSJ": "Date, Open, High, Low, Close, Volume\n01/{d}/24, 9, 12, 8, {c}, 5",
    "Investing.com": '\ufeff"Date","Price","Open","Vol.","Change %"\n"01/{d}/2024","{c}","9","1.23M","-0.52%"',
    "ccxt": "timestamp,open,high,low,close,volume\n{s}000,9,12,8,{c},1.5",
    "Tiingo": "date,close,adjClose,divCash,splitFactor\n{iso}T00:00:00.000Z,{c},{c},0.0,1.0",
    "MetaTrader": "<DATE>\t<OPEN>\t<CLOSE>\t<TICKVOL>\t<VOL>\n2024.01.{d}\t9\t{c}\t5\t0",
    "Binance": "Open time,Open,Close,Close time,Ignore\n{s}000,9,{c},1704239999999,0",
    "Dukascopy": "Local time,Open,Close\n{d}.01.2024 00:00:00.000 GMT-0500,9,{c}",
}
"""Vendor -> header and row of a file of one asset."""
TWO = {
    "yfinance": "Price,Close,Close,High,High\nTicker,AAPL,MSFT,AAPL,MSFT\nDate,,,,\n{iso},{c},{e},11,21",
    "yfinance by ticker": "Ticker,AAPL,AAPL,MSFT,MSFT\nPrice,Open,Close,Open,Close\nDate,,,,\n{iso},9,{c},19,{e}",
    "yfinance, no names of levels": ",Adj Close,Close,Close\n,AAPL,AAPL,MSFT\nDate,,,\n{iso},5,{c},{e}",
    "yfinance, read and written again": "Price,Close,Close.1,High\nTicker,AAPL,MSFT,AAPL\nDate,,,\n{iso},{c},{e},1",
    "wide": "Date,AAPL,MSFT\n{iso},{c},{e}",
    "CRSP": "PERMNO,date,TICKER,COMNAM,BIDLO,ASKHI,PRC,RET\n1,{num},AAPL,APPLE INC,9,12,{c},C\n2,{num},MSFT,MS,9,31,{e},C",
    "Compustat": "gvkey,iid,datadate,tic,prccd\n001690,01,{iso},AAPL,{c}\n012141,01,{iso},MSFT,{e}",
    "Alpaca": "symbol,timestamp,close,vwap\nAAPL,{iso} 05:00:00+00:00,{c},9\nMSFT,{iso} 05:00:00+00:00,{e},9",
    "Polygon": "ticker,close,window_start,transactions\nAAPL,{c},{s}000000000,5\nMSFT,{e},{s}000000000,5",
    "Kaggle, tickers last": "date,open,close,Name\n{iso},9,{c},AAPL\n{iso},9,{e},MSFT",
    "Kaggle, brands": "Date,Close,Brand_Name,Ticker,Country\n{iso},{c},apple,AAPL,usa\n{iso},{e},microsoft,MSFT,usa",
    "Tushare": ",ts_code,trade_date,close,vol\n0,AAPL,{num},{c},5\n1,MSFT,{num},{e},5",
    "NSE": "SYMBOL,SERIES,CLOSE,LAST,TIMESTAMP,ISIN,\nAAPL,EQ,{c},8,{d}-JAN-2024,INE1,\nMSFT,EQ,{e},8,{d}-JAN-2024,INE2,",
}
"""Vendor -> header and rows of a file of AAPL and MSFT."""
OTHER = {
    "Stooq": ("<TICKER>,<PER>,<DATE>,<TIME>,<CLOSE>,<OPENINT>\nAAPL.US,D,{num},000000,{c},0", "AAPL.US"),
    "yfinance, one ticker": ("Price,Close,High\nTicker,MSFT,MSFT\nDate,,\n{iso},{c},12", "MSFT"),
    "two levels, a permno": ("Price,Close\nTicker,10107\nDate,\n{iso},{c}", "10107"),
    "two levels of one label": (",Close\n,MSFT\nDate,\n{iso},{c}", "MSFT"),
    "FRED": ("observation_date,SP500\n{iso},{c}", "SP500"),
}


@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize("vendor", [*ONE, *TWO, *OTHER])
def test_files_as_vendors_write_them(tmp_path, vendor, newest_first):
    text, ticker = OTHER.get(vendor) or (ONE.get(vendor) or TWO[vendor], "AAA")
    lines = text.split("\n")
    first = next(number for number, line in enumerate(lines) if "{" in line)
    days = sorted(DAYS, reverse=newest_first)
    body = ["\n".join(lines[first:]).format(d=day, **DAYS[day]) for day in days]
    (tmp_path / "AAA.csv").write_text("\n".join([*lines[:first], *body]) + "\n", encoding="utf-8")
    expected = {"AAPL": [10, 11], "MSFT": [20, 21]} if vendor in TWO else {ticker: [10, 11]}
    bars = read_bars(tmp_path / "AAA.csv")
    assert closes(bars) == expected
    assert sorted({f"{day:%Y-%m-%d}" for day in bars["date"]}) == ["2024-01-16", "2024-01-17"]
    if vendor not in TWO:
        assert closes(read_bars(tmp_path / "AAA.csv", ticker="zzz")) == {"ZZZ": [10, 11]}
