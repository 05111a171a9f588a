"""What the numbers of a comparison are computed with: pure functions over plain values, no store, no ledgers.

``docs/statistics.md`` says what each number means and what it does not show. scipy, statsmodels and numpy are imported
inside the functions that need them, because they take longer to load than a whole command may take to start.
"""
