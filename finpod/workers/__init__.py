"""Engines: where pieces of work run. In this process, or on Ray; the work does not know."""
