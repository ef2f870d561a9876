"""The `sluice` command: a large room, with a file a command and few that commands share."""
