"""The outputs of scripts, as far as they need no Spark: the log of a target, and the publication of its files. Runs anywhere."""
