"""Imported by Python when it starts, where this directory is on its path: the process follows the clock of its run."""

from chaos.clocks import follow_environment

follow_environment()
