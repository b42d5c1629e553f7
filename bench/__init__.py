"""Speed, measured: ratios of runs that took turns in one process, never single times."""
