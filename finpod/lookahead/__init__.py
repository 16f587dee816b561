"""The look-ahead audit: does a strategy, or a feature, use data that was not known on the day of the decision?"""
