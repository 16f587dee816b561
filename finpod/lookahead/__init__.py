"""The look-ahead audit: does a strategy, or a feature, use data that was not known at the time of a decision?"""
