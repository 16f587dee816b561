"""Does a strategy, or a feature, use what could not be known on the day?"""
