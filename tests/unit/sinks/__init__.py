"""Tests of the log of a target and of the publication of its files. Run anywhere."""
