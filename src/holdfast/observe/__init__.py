"""What is told about the work: counters, gauges, traces and log lines; nothing here decides anything."""
