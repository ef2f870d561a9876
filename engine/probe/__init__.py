"""What this machine computes fastest, found out at start by short races, and kept."""
